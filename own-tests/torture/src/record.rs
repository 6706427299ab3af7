//! What the threads of a run share: the clock, the history, and the registers that the locks protect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::history::{Answer, Call, Entry, Fault, Operation};
use crate::topology::Kind;

const UNHARMED: &str = "no thread panics while it has the mutex";

#[derive(Debug)]
pub(crate) struct Record {
    began: Instant,
    ended: AtomicBool,
    holds: AtomicU64,
    entries: Mutex<Vec<Entry>>,
    registers: Mutex<BTreeMap<String, Register>>,
    uses: Mutex<Vec<Use>>,
}

/// A lock that a client has, or waits for.
#[derive(Debug)]
struct Use {
    client: usize,
    hold: u64,
    key: String,
    has: bool,
}

/// What a lock protects.
#[derive(Clone, Copy, Debug, Default)]
struct Register {
    /// The highest token that was claimed.
    claimed: u64,
    /// Written only with that token.
    fenced: u64,
    /// Written by anybody.
    plain: u64,
}

impl Record {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            ended: AtomicBool::new(false),
            holds: AtomicU64::new(0),
            entries: Mutex::default(),
            registers: Mutex::default(),
            uses: Mutex::default(),
        }
    }

    /// The time of the run, in µs.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).expect("a run is short")
    }

    /// Makes all threads stop.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Sleeps, but not beyond the end of the run.
    pub(crate) fn sleep(&self, time: Duration) {
        const STEP: Duration = Duration::from_millis(50);
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now())
            && !self.has_ended()
        {
            std::thread::sleep(left.min(STEP));
        }
    }

    pub(crate) fn next_hold(&self) -> u64 {
        self.holds.fetch_add(1, Ordering::Relaxed)
    }

    /// The number of acquisitions that were begun.
    pub(crate) fn holds(&self) -> u64 {
        self.holds.load(Ordering::Relaxed)
    }

    /// Notes that a client asks for a lock.
    pub(crate) fn asks(&self, begun: &Operation) {
        self.uses.lock().expect(UNHARMED).push(Use {
            client: begun.client,
            hold: begun.hold,
            key: begun.key.clone(),
            has: false,
        });
    }

    /// The clients that have a lock which another one waits for.
    pub(crate) fn in_the_way(&self) -> Vec<usize> {
        let uses = self.uses.lock().expect(UNHARMED);
        let waits = |it: &Use, key: &str| !it.has && it.key == key;
        let wanted = |it: &&Use| it.has && uses.iter().any(|other| waits(other, &it.key));
        let clients: BTreeSet<usize> = uses.iter().filter(wanted).map(|it| it.client).collect();
        clients.into_iter().collect()
    }

    /// Notes what an answer says about the locks of a client.
    fn note(&self, operation: &Operation, answer: &Answer) {
        let mut uses = self.uses.lock().expect(UNHARMED);
        match (operation.call, answer) {
            (_, Answer::Killed | Answer::Silence) => {
                uses.retain(|it| it.client != operation.client);
            }
            (Call::Acquire { .. }, Answer::Held { .. }) => {
                let uses = uses.iter_mut().filter(|it| it.hold == operation.hold);
                uses.for_each(|it| it.has = true);
            }
            (Call::Convert { .. }, Answer::Error(_))
            | (Call::Acquire { .. } | Call::Release, _) => {
                uses.retain(|it| it.hold != operation.hold);
            }
            _ => {}
        }
    }

    /// Records an operation that ends now, or never if there is no answer.
    pub(crate) fn operation(&self, begun: Operation, answer: Answer) {
        self.note(&begun, &answer);
        let answered = !matches!(answer, Answer::Killed | Answer::Silence);
        self.push(Entry::Operation(Operation {
            completed: answered.then(|| self.now()),
            answer,
            ..begun
        }));
    }

    /// Records a fault that ends now.
    pub(crate) fn fault(&self, kind: Kind, client: Option<usize>, from: u64) {
        self.push(Entry::Fault(Fault {
            kind: kind.name.into(),
            client,
            from,
            until: self.now(),
            delays: kind.delays,
            breaks: kind.breaks,
        }));
    }

    pub(crate) fn left(&self, what: String) {
        self.push(Entry::Left { what });
    }

    /// Reads the register without fences.
    pub(crate) fn plain(&self, key: &str) -> u64 {
        let registers = self.registers.lock().expect(UNHARMED);
        registers.get(key).map_or(0, |register| register.plain)
    }

    pub(crate) fn apply(&self, begun: Operation) -> Answer {
        let mut registers = self.registers.lock().expect(UNHARMED);
        let register = registers.entry(begun.key.clone()).or_default();
        let mut answer = Answer::Accepted { value: None };
        match begun.call {
            Call::Claim { token } | Call::Write { token, .. } if token < register.claimed => {
                answer = Answer::Refused;
            }
            Call::Claim { token } => {
                register.claimed = token;
                let value = Some(register.fenced);
                answer = Answer::Accepted { value };
            }
            Call::Write { token, value } => (register.claimed, register.fenced) = (token, value),
            Call::PlainWrite { value } => register.plain = value,
            Call::Acquire { .. } | Call::Check | Call::Release | Call::Convert { .. } => {
                unreachable!("not on a register")
            }
        }
        // Still under the lock, so the history has the order in which the register was written.
        self.operation(begun, answer.clone());
        answer
    }

    pub(crate) fn so_far(&self) -> Vec<Entry> {
        self.entries.lock().expect(UNHARMED).clone()
    }

    fn push(&self, entry: Entry) {
        self.entries.lock().expect(UNHARMED).push(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Form;

    #[test]
    fn fenced_register_refuses_tokens_below_the_highest() {
        let record = Record::new();
        let apply = |call| record.apply(Operation::begin(0, 0, "one", call, 0));
        let claim = |token| apply(Call::Claim { token });
        let write = |token, value| apply(Call::Write { token, value });
        let read = |value| Answer::Accepted { value: Some(value) };
        let accepted = Answer::Accepted { value: None };
        assert_eq!(claim(33), read(0));
        assert_eq!(write(33, 1), accepted);
        assert_eq!(claim(34), read(1));
        assert_eq!(write(33, 2), Answer::Refused);
        assert_eq!(claim(33), Answer::Refused);
        assert_eq!(write(34, 2), accepted);
        assert_eq!(claim(34), read(2));
        assert_eq!(record.so_far().len(), 7);
    }
    #[test]
    fn client_is_in_the_way_while_another_waits_for_its_lock() {
        const NOBODY: [usize; 0] = [];
        let record = Record::new();
        let mode = crate::protocol::Mode::Mutex;
        let acquire = Call::Acquire {
            mode,
            wait_ms: 1,
            form: Form::Plain,
        };
        let asks = |client, hold, key| {
            let begun = Operation::begin(client, hold, key, acquire, 0);
            record.asks(&begun);
            begun
        };
        let ended = |begun: &Operation, call, answer| {
            record.operation(
                Operation {
                    call,
                    ..begun.clone()
                },
                answer,
            );
        };
        let held = Answer::Held { token: None };
        let first = asks(0, 10, "one");
        let other = asks(1, 11, "two");
        ended(&first, acquire, held.clone());
        ended(&other, acquire, held.clone());
        assert_eq!(record.in_the_way(), NOBODY);
        let waiter = asks(2, 12, "one");
        assert_eq!(record.in_the_way(), [0]);
        ended(&waiter, acquire, Answer::Free);
        assert_eq!(record.in_the_way(), NOBODY);
        asks(2, 13, "two");
        assert_eq!(record.in_the_way(), [1]);
        ended(&other, Call::Release, held);
        assert_eq!(record.in_the_way(), NOBODY);
        asks(3, 14, "one");
        ended(&first, Call::Check, Answer::Killed);
        assert_eq!(record.in_the_way(), NOBODY);
    }
}

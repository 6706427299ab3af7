//! What the threads of a run share: the clock, the history, and the registers that the locks protect.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::history::{Answer, Call, Entry, Fault, Operation};
use crate::topology::Kind;

/// The record of a run.
#[derive(Debug)]
pub(crate) struct Record {
    began: Instant,
    ended: AtomicBool,
    holds: AtomicU64,
    entries: Mutex<Vec<Entry>>,
    registers: Mutex<BTreeMap<String, Register>>,
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

/// An operation that has begun.
#[derive(Clone, Debug)]
pub(crate) struct Begun {
    pub(crate) client: usize,
    pub(crate) hold: u64,
    pub(crate) key: String,
    pub(crate) call: Call,
    pub(crate) invoked: u64,
}

impl Begun {
    fn end(self, completed: Option<u64>, answer: Answer) -> Entry {
        Entry::Operation(Operation {
            client: self.client,
            hold: self.hold,
            key: self.key,
            call: self.call,
            invoked: self.invoked,
            completed,
            answer,
        })
    }
}

impl Record {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            ended: AtomicBool::new(false),
            holds: AtomicU64::new(0),
            entries: Mutex::default(),
            registers: Mutex::default(),
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

    /// A number for an acquisition.
    pub(crate) fn next_hold(&self) -> u64 {
        self.holds.fetch_add(1, Ordering::Relaxed)
    }

    /// The number of acquisitions that were begun.
    pub(crate) fn holds(&self) -> u64 {
        self.holds.load(Ordering::Relaxed)
    }

    /// Records an operation that ends now, or never if there is no answer.
    pub(crate) fn operation(&self, begun: Begun, answer: Answer) {
        let answered = !matches!(answer, Answer::Killed | Answer::Silence);
        let completed = answered.then(|| self.now());
        self.push(begun.end(completed, answer));
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
        self.registers()
            .get(key)
            .map_or(0, |register| register.plain)
    }

    /// Applies an operation on a register. Returns the answer.
    pub(crate) fn apply(&self, begun: Begun) -> Answer {
        let mut registers = self.registers();
        let register = registers.entry(begun.key.clone()).or_default();
        let accepted = Answer::Accepted { value: None };
        let answer = match begun.call {
            Call::Claim { token } | Call::Write { token, .. } if token < register.claimed => {
                Answer::Refused
            }
            Call::Claim { token } => {
                register.claimed = token;
                Answer::Accepted {
                    value: Some(register.fenced),
                }
            }
            Call::Write { token, value } => {
                (register.claimed, register.fenced) = (token, value);
                accepted
            }
            Call::PlainWrite { value } => {
                register.plain = value;
                accepted
            }
            Call::Acquire { .. } | Call::Check | Call::Release => unreachable!("not on a register"),
        };
        // Still under the lock, so the history has the order in which the register was written.
        self.operation(begun, answer.clone());
        answer
    }

    /// Takes the entries.
    pub(crate) fn take(&self) -> Vec<Entry> {
        std::mem::take(&mut *self.entries())
    }

    fn push(&self, entry: Entry) {
        self.entries().push(entry);
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn registers(&self) -> MutexGuard<'_, BTreeMap<String, Register>> {
        self.registers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fenced_register_refuses_tokens_below_the_highest() {
        let record = Record::new();
        let apply = |call| {
            record.apply(Begun {
                client: 0,
                hold: 0,
                key: "one".into(),
                call,
                invoked: 0,
            })
        };
        let read = |value| Answer::Accepted { value: Some(value) };
        let accepted = Answer::Accepted { value: None };
        assert_eq!(apply(Call::Claim { token: 33 }), read(0));
        assert_eq!(
            apply(Call::Write {
                token: 33,
                value: 1
            }),
            accepted
        );
        assert_eq!(apply(Call::Claim { token: 34 }), read(1));
        assert_eq!(
            apply(Call::Write {
                token: 33,
                value: 2
            }),
            Answer::Refused
        );
        assert_eq!(apply(Call::Claim { token: 33 }), Answer::Refused);
        assert_eq!(
            apply(Call::Write {
                token: 34,
                value: 2
            }),
            accepted
        );
        assert_eq!(apply(Call::Claim { token: 34 }), read(2));
        assert_eq!(record.take().len(), 7);
    }
}

//! When each waiter of a session is polled, and the answers.
//!
//! A waiter says by when it is to be polled, and how much earlier that may happen. When the first
//! is due, its batch is filled with others that may be polled already. A lone waiter never waits
//! for others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::bounds::MAX_BATCH;
use crate::client::state::answer::Answer;
use crate::client::state::signal::Signal;
use crate::error::BackendError;
use crate::id::{Key, Operation};
use crate::reply::PollReply;
use crate::runtime::Moment;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering};

/// Polls come at most this much earlier than their waiter asked for.
const LONGEST_EARLY: Duration = Duration::from_millis(250);

type PollAnswer = Result<Answer<PollReply>, BackendError>;

/// When a place is to be polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// Not later than this from now on.
    pub(crate) within: Duration,
    /// How much earlier it may be, to share a batch.
    pub(crate) early: Duration,
}

impl Due {
    pub(crate) const NOW: Self = Self::exactly(Duration::ZERO);

    pub(crate) const fn exactly(within: Duration) -> Self {
        Self {
            within,
            early: Duration::ZERO,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Polls {
    state: Mutex<Schedule>,
    pub(crate) changed: Signal,
    started: AtomicBool,
}

#[derive(Debug, Default)]
struct Schedule {
    /// By the sequence of the operation.
    waiters: BTreeMap<u64, Entry>,
    queue: BTreeSet<(Moment, u64)>,
    /// When the task wakes by itself.
    armed: Option<Moment>,
}

#[derive(Debug)]
struct Entry {
    waiter: Arc<PolledWaiter>,
    /// Until when it is to be polled, and from when on it may be.
    due: Option<(Moment, Moment)>,
}

#[derive(Debug)]
pub(crate) struct PolledWaiter {
    pub(crate) key: Key,
    pub(crate) operation: Operation,
    answers: Mutex<VecDeque<PollAnswer>>,
    changed: Signal,
}

impl PolledWaiter {
    pub(crate) fn put(&self, answer: PollAnswer) {
        self.answers.lock().push_back(answer);
        self.changed.notify();
    }
}

impl Schedule {
    fn set_due(&mut self, sequence: u64, due: Option<(Moment, Moment)>) {
        if let Some(entry) = self.waiters.get_mut(&sequence) {
            if let Some((before, _)) = std::mem::replace(&mut entry.due, due) {
                self.queue.remove(&(before, sequence));
            }
            if let Some((until, _)) = due {
                self.queue.insert((until, sequence));
            }
        }
    }

    /// Whether the task sleeps for too long for what is due then. Timers need not count the time
    /// of a suspend, so that it may even sleep past what was due before.
    fn must_wake(&self, now: Moment, until: Moment) -> bool {
        self.armed.is_none_or(|armed| until < armed || armed <= now)
    }

    /// Takes out what is due, in batches, the last one filled with what may be polled by now.
    fn take_due(&mut self, now: Moment) -> Vec<Vec<Arc<PolledWaiter>>> {
        let may_be_due = now.saturating_add(LONGEST_EARLY);
        let mut due = Vec::new();
        for (until, sequence) in self.queue.iter().copied() {
            let is_due = until <= now;
            let is_full = due.len() % MAX_BATCH == 0;
            if !is_due && (is_full || until > may_be_due) {
                break;
            }
            let entry = self.waiters.get(&sequence).and_then(|entry| entry.due);
            if is_due || entry.is_some_and(|(_, from)| from <= now) {
                due.push(sequence);
            }
        }
        let batch = |sequences: &[u64]| {
            let waiters = sequences.iter().filter_map(|sequence| {
                self.set_due(*sequence, None);
                let entry = self.waiters.get(sequence)?;
                Some(Arc::clone(&entry.waiter))
            });
            waiters.collect()
        };
        due.chunks(MAX_BATCH).map(batch).collect()
    }
}

impl Polls {
    fn schedule(&self, sequence: u64, now: Moment, due: Due) {
        let until = now.saturating_add(due.within);
        let from = until.saturating_sub(due.early.min(LONGEST_EARLY));
        let wake = {
            let mut state = self.state.lock();
            let before = state.waiters.get(&sequence).and_then(|entry| entry.due);
            if before.is_none_or(|(before, _)| before > until) {
                state.set_due(sequence, Some((until, from)));
            }
            state.must_wake(now, until)
        };
        if wake {
            self.changed.notify();
        }
    }

    /// Takes out what is due by now, in batches.
    pub(crate) fn take_due(&self, now: Moment) -> Vec<Vec<Arc<PolledWaiter>>> {
        self.state.lock().take_due(now)
    }

    /// Whether this is the first caller, which starts the task.
    pub(crate) fn start(&self) -> bool {
        !self.started.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn arm(&self) -> Option<Moment> {
        let mut state = self.state.lock();
        state.armed = state.queue.first().map(|(until, _)| *until);
        state.armed
    }
}

/// A waiter's part: its place is polled as long as this lives.
#[derive(Debug)]
pub(crate) struct Polled {
    polls: Arc<Polls>,
    waiter: Arc<PolledWaiter>,
}

impl Polled {
    /// Takes a waiter in.
    pub(crate) fn begin(polls: &Arc<Polls>, key: &Key, operation: Operation) -> Self {
        let waiter = Arc::new(PolledWaiter {
            key: key.clone(),
            operation,
            answers: Mutex::default(),
            changed: Signal::default(),
        });
        let entry = Entry {
            waiter: Arc::clone(&waiter),
            due: None,
        };
        let mut state = polls.state.lock();
        state.waiters.insert(operation.sequence, entry);
        drop(state);
        Self {
            polls: Arc::clone(polls),
            waiter,
        }
    }

    /// Has the place polled, unless that is to happen earlier already: the answer to a poll must
    /// not put off the one that a later notification has asked for. Polls under way go on beside it.
    pub(crate) fn ask(&self, now: Moment, due: Due) {
        let sequence = self.waiter.operation.sequence;
        self.polls.schedule(sequence, now, due);
    }

    /// The next answer; safe to drop and to ask again.
    pub(crate) async fn answer(&self) -> PollAnswer {
        loop {
            let version = self.waiter.changed.version();
            let answer = self.waiter.answers.lock().pop_front();
            if let Some(answer) = answer {
                return answer;
            }
            self.waiter.changed.changed(version).await;
        }
    }
}

impl Drop for Polled {
    fn drop(&mut self) {
        let sequence = self.waiter.operation.sequence;
        let mut state = self.polls.state.lock();
        state.set_due(sequence, None);
        let removed = state.waiters.remove(&sequence);
        drop(state);
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{OwnerId, SessionId};

    fn at(ms: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(ms))
    }

    fn schedule(windows: impl IntoIterator<Item = (u64, u64)>) -> Schedule {
        let mut schedule = Schedule::default();
        for (sequence, (until, from)) in (1..).zip(windows) {
            let waiter = Arc::new(PolledWaiter {
                key: Key::new("k").expect("valid"),
                operation: Operation {
                    session: SessionId::from_bytes([0; 16]),
                    sequence,
                    owner: OwnerId::from_u64(1),
                },
                answers: Mutex::default(),
                changed: Signal::default(),
            });
            schedule
                .waiters
                .insert(sequence, Entry { waiter, due: None });
            schedule.set_due(sequence, Some((at(until), at(from))));
        }
        schedule
    }

    fn taken(schedule: &mut Schedule, ms: u64) -> Vec<Vec<u64>> {
        let batches = schedule.take_due(at(ms)).into_iter();
        let sequences = |batch: Vec<Arc<PolledWaiter>>| {
            let waiters = batch.iter().map(|waiter| waiter.operation.sequence);
            waiters.collect()
        };
        batches.map(sequences).collect()
    }

    #[test]
    fn nothing_is_sent_before_one_is_due_and_then_what_may_go_along() {
        let mut schedule = schedule([(100, 80), (120, 95), (110, 110), (390, 0), (130, 100)]);
        assert!(taken(&mut schedule, 99).is_empty());
        assert_eq!(taken(&mut schedule, 100), [[1, 2, 5]]);
        assert!(taken(&mut schedule, 109).is_empty());
        assert_eq!(taken(&mut schedule, 390), [[3, 4]]);
        assert!(taken(&mut schedule, 9_999).is_empty());
    }

    #[test]
    fn batches_are_full_but_for_the_last_and_none_is_begun_for_what_is_only_early() {
        let most = u64::try_from(MAX_BATCH).expect("small");
        let due = std::iter::repeat_n((100, 100), MAX_BATCH);
        let early = std::iter::repeat_n((101, 0), 5);
        let mut full = schedule(due.clone().chain(early.clone()));
        let batches = taken(&mut full, 100);
        assert_eq!(batches, [(1..=most).collect::<Vec<_>>()]);
        let mut over = schedule(due.chain([(100, 100)]).chain(early));
        let sizes: Vec<_> = taken(&mut over, 100).iter().map(Vec::len).collect();
        assert_eq!(sizes, [MAX_BATCH, 6]);
    }
}

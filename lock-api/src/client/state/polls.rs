//! The schedule of polls for the waiters of a session, and their answers.
//!
//! Each waiter has a due time, and an earlier moment after which it may be polled to share a batch.
//! When the first waiter is due, the schedule takes out all that are due, in batches. It fills the
//! last batch with waiters that may be polled already. A due poll is never delayed for others. A
//! batch lists its waiters by key.
//!
//! `armed` is the moment when the task wakes next. A new due time wakes the task only if it is
//! earlier, or if the task has overslept. A waiter may have several polls in flight. Their answers
//! go into its queue in the order in which they arrive.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::bounds::MAX_BATCH;
use crate::client::state::answer::Answer;
use crate::client::state::signal::{Signal, StartFlag, Watched};
use crate::error::BackendError;
use crate::id::{Key, Operation};
use crate::reply::PollReply;
use crate::runtime::Moment;
use crate::sync::{Arc, Mutex};

/// A poll is sent at most this much before its due time.
const MAX_EARLY: Duration = Duration::from_millis(500);

type PollAnswer = Result<Answer<PollReply>, BackendError>;

/// When a waiter is polled next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// The poll is due after this time.
    pub(crate) after: Duration,
    /// How much earlier it may be sent to share a batch.
    pub(crate) early: Duration,
}

impl Due {
    pub(crate) const NOW: Self = Self {
        after: Duration::ZERO,
        early: Duration::ZERO,
    };
}

#[derive(Debug, Default)]
pub(crate) struct Polls {
    state: Mutex<Schedule>,
    pub(crate) changed: Signal,
    pub(crate) started: StartFlag,
}

#[derive(Debug, Default)]
struct Schedule {
    /// By the sequence number of the operation.
    waiters: BTreeMap<u64, Entry>,
    queue: BTreeSet<(Moment, u64)>,
    /// When the task wakes next.
    armed: Option<Moment>,
}

#[derive(Debug)]
struct Entry {
    waiter: Arc<PolledWaiter>,
    /// The due time, and the moment after which an early poll may share a batch.
    due: Option<(Moment, Moment)>,
    /// When a poll was sent, if the next one isn't scheduled yet: its answer does that.
    sent: Option<Moment>,
}

#[derive(Debug)]
pub(crate) struct PolledWaiter {
    pub(crate) key: Key,
    pub(crate) operation: Operation,
    pub(crate) answers: Watched<VecDeque<PollAnswer>>,
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

    /// Whether the task must be woken for a poll that is due at `until`. Timers may not count a
    /// suspend of the machine, so the task may also have overslept an earlier poll.
    fn must_wake(&self, now: Moment, until: Moment) -> bool {
        self.armed.is_none_or(|armed| until < armed || armed <= now)
    }

    /// Takes out the waiters that are due, in batches. Fills the last batch with waiters that may
    /// be polled early.
    fn take_due(&mut self, now: Moment) -> Vec<Vec<Arc<PolledWaiter>>> {
        let latest_early = now.saturating_add(MAX_EARLY);
        let mut due = Vec::new();
        for (until, sequence) in self.queue.iter().copied() {
            let is_due = until <= now;
            let is_full = due.len() % MAX_BATCH == 0;
            if !is_due && (is_full || until > latest_early) {
                break;
            }
            let entry = self.waiters.get(&sequence).and_then(|entry| entry.due);
            if is_due || entry.is_some_and(|(_, from)| from <= now) {
                due.push(sequence);
            }
        }
        let take_batch = |sequences: &[u64]| {
            let waiters = sequences.iter().filter_map(|sequence| {
                self.set_due(*sequence, None);
                let entry = self.waiters.get_mut(sequence)?;
                entry.sent = Some(now);
                Some(Arc::clone(&entry.waiter))
            });
            let mut batch: Vec<Arc<PolledWaiter>> = waiters.collect();
            // A backend may serve neighbours with the same key together.
            batch.sort_by(|one, other| one.key.cmp(&other.key));
            batch
        };
        due.chunks(MAX_BATCH).map(take_batch).collect()
    }
}

impl Polls {
    pub(crate) fn take_due(&self, now: Moment) -> Vec<Vec<Arc<PolledWaiter>>> {
        self.state.lock().take_due(now)
    }

    /// Notes and returns the moment when the task wakes next.
    pub(crate) fn arm(&self) -> Option<Moment> {
        let mut state = self.state.lock();
        state.armed = state.queue.first().map(|(until, _)| *until);
        state.armed
    }
}

/// The registration of a waiter. Dropping it stops the polls.
#[derive(Debug)]
pub(crate) struct PollHandle {
    polls: Arc<Polls>,
    waiter: Arc<PolledWaiter>,
}

impl PollHandle {
    /// Registers a waiter. It is not polled until [`schedule`](Self::schedule) is called.
    pub(crate) fn register(polls: &Arc<Polls>, key: &Key, operation: Operation) -> Self {
        let waiter = Arc::new(PolledWaiter {
            key: key.clone(),
            operation,
            answers: Watched::default(),
        });
        let entry = Entry {
            waiter: Arc::clone(&waiter),
            due: None,
            sent: None,
        };
        let mut state = polls.state.lock();
        state.waiters.insert(operation.sequence, entry);
        drop(state);
        Self {
            polls: Arc::clone(polls),
            waiter,
        }
    }

    /// Schedules a poll, unless an earlier one is scheduled: the answer to a poll must not delay
    /// the poll that a notification asked for meanwhile. Polls in flight are not affected.
    pub(crate) fn schedule(&self, now: Moment, due: Due) {
        let sequence = self.waiter.operation.sequence;
        let until = now.saturating_add(due.after);
        let from = until.saturating_sub(due.early.min(MAX_EARLY));
        let wake = {
            let mut state = self.polls.state.lock();
            let entry = state.waiters.get_mut(&sequence);
            let before = entry.and_then(|entry| {
                entry.sent = None;
                entry.due
            });
            if before.is_none_or(|(before, _)| before > until) {
                state.set_due(sequence, Some((until, from)));
            }
            state.must_wake(now, until)
        };
        if wake {
            self.polls.changed.notify();
        }
    }

    /// When a poll was sent that has no answer yet, if nothing has come since that asks for the next one.
    pub(crate) fn unanswered_since(&self) -> Option<Moment> {
        let state = self.polls.state.lock();
        state.waiters.get(&self.waiter.operation.sequence)?.sent
    }

    /// Waits for the next answer. Cancel safe.
    pub(crate) async fn next_answer(&self) -> PollAnswer {
        self.waiter.answers.wait_for(VecDeque::pop_front).await
    }
}

impl Drop for PollHandle {
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
    use crate::client::state::holder::tests::{at, hold};

    fn schedule(windows: impl IntoIterator<Item = (u64, u64)>) -> Schedule {
        schedule_of(windows.into_iter().map(|window| ("k", window)))
    }

    fn schedule_of(waiters: impl IntoIterator<Item = (&'static str, (u64, u64))>) -> Schedule {
        let mut schedule = Schedule::default();
        for (sequence, (key, (until, from))) in (1..).zip(waiters) {
            let waiter = Arc::new(PolledWaiter {
                key: Key::new(key).expect("valid"),
                operation: hold(sequence, 0).operation,
                answers: Watched::default(),
            });
            let entry = Entry {
                waiter,
                due: None,
                sent: None,
            };
            schedule.waiters.insert(sequence, entry);
            schedule.set_due(sequence, Some((at(until), at(from))));
        }
        schedule
    }

    fn take_sequences(schedule: &mut Schedule, ms: u64) -> Vec<Vec<u64>> {
        let batches = schedule.take_due(at(ms)).into_iter();
        let sequences = |batch: Vec<Arc<PolledWaiter>>| {
            let waiters = batch.iter().map(|waiter| waiter.operation.sequence);
            waiters.collect()
        };
        batches.map(sequences).collect()
    }

    #[test]
    fn early_polls_join_a_due_poll() {
        let mut schedule = schedule([(100, 80), (120, 95), (110, 110), (640, 0), (130, 100)]);
        assert!(take_sequences(&mut schedule, 99).is_empty());
        assert_eq!(take_sequences(&mut schedule, 100), [[1, 2, 5]]);
        assert!(take_sequences(&mut schedule, 109).is_empty());
        assert_eq!(take_sequences(&mut schedule, 640), [[3, 4]]);
        assert!(take_sequences(&mut schedule, 9_999).is_empty());
    }

    #[test]
    fn batch_lists_its_waiters_by_key() {
        let keys = ["b", "a", "b", "c", "a"];
        let mut schedule = schedule_of(keys.map(|key| (key, (100, 100))));
        assert_eq!(take_sequences(&mut schedule, 100), [[2, 5, 1, 3, 4]]);
    }

    #[test]
    fn early_polls_only_fill_the_last_batch() {
        let count = u64::try_from(MAX_BATCH).expect("small");
        let due = std::iter::repeat_n((100, 100), MAX_BATCH);
        let early = std::iter::repeat_n((101, 0), 5);
        let mut full = schedule(due.clone().chain(early.clone()));
        let batches = take_sequences(&mut full, 100);
        assert_eq!(batches, [(1..=count).collect::<Vec<_>>()]);
        let mut overfull = schedule(due.chain([(100, 100)]).chain(early));
        let sizes: Vec<_> = take_sequences(&mut overfull, 100)
            .iter()
            .map(Vec::len)
            .collect();
        assert_eq!(sizes, [MAX_BATCH, 6]);
    }
}

//! Turns: the calls of one client on one key are executed in the order in which they came, by one task. The
//! calls that come while it is busy share its next turn: one read and one write for all of them.
//!
//! So the calls of a client never spoil each other's compare-and-set, and a release waits for at most one
//! other write of its client, however many tasks use the key.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use futures_channel::oneshot;
use futures_util::FutureExt;
use leasehold_api::{BackendError, Key, bounds};

use crate::call::Call;
use crate::lock;

/// The calls that wait for their turn, by key. A key is there while a task executes calls on it.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<BTreeMap<Key, Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    calls: VecDeque<Call>,
    /// Dropped when a release comes.
    until_release: Option<oneshot::Sender<()>>,
}

/// The task of a key. If it is dropped before its end, the calls that wait hear it, and the next call starts another
/// task.
#[derive(Debug)]
pub(crate) struct Task {
    turns: Arc<Turns>,
    key: Key,
    ended: bool,
}

impl Turns {
    /// Adds a call. If no task executes calls on the key, returns one, which the caller spawns.
    pub(crate) fn add(self: &Arc<Self>, key: &Key, call: Call) -> Option<Task> {
        let mut keys = lock(&self.0);
        let is_free = !keys.contains_key(key);
        let waiting = keys.entry(key.clone()).or_default();
        if call.releases() {
            waiting.until_release = None;
        }
        waiting.calls.push_back(call);
        is_free.then(|| Task {
            turns: Arc::clone(self),
            key: key.clone(),
            ended: false,
        })
    }
}

impl Task {
    pub(crate) const fn key(&self) -> &Key {
        &self.key
    }

    /// Takes calls that nobody awaits any more out of the next turn, and adds those that wait, the oldest
    /// first. Returns `false` if no call is left. Then the task has ended.
    pub(crate) fn next_turn(&mut self, calls: &mut Vec<Call>) -> bool {
        calls.retain(Call::is_awaited);
        let mut size: usize = calls.iter().map(Call::size).sum();
        let mut keys = lock(&self.turns.0);
        if let Some(Waiting { calls: waiting, .. }) = keys.get_mut(&self.key) {
            waiting.retain(Call::is_awaited);
            while let Some(next) = waiting.front() {
                size += next.size();
                if size > bounds::MAX_BATCH && !calls.is_empty() {
                    break;
                }
                calls.extend(waiting.pop_front());
            }
        }
        if calls.is_empty() {
            self.ended = true;
            keys.remove(&self.key);
        }
        !self.ended
    }

    /// Completes when a release waits for its turn.
    pub(crate) fn release(&self) -> impl Future<Output = ()> + use<> {
        let (sender, dropped) = oneshot::channel();
        if let Some(waiting) = lock(&self.turns.0).get_mut(&self.key)
            && !waiting.calls.iter().any(Call::releases)
        {
            waiting.until_release = Some(sender);
        }
        dropped.map(|_| ())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let waiting = lock(&self.turns.0).remove(&self.key);
        let error = match std::thread::panicking() {
            true => BackendError::unavailable("the store has panicked; nothing was written"),
            false => BackendError::Closed, // Its runtime has ended.
        };
        for call in waiting.into_iter().flat_map(|waiting| waiting.calls) {
            call.answer(Err(error.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use leasehold_api::Moment;
    use leasehold_api::machine::Command;

    use super::*;
    use crate::call::Caller;

    fn call(commands: usize) -> (Call, Caller) {
        Call::new(vec![Command::Inspect; commands], Moment::default())
    }

    fn sizes(calls: &[Call]) -> Vec<usize> {
        calls.iter().map(Call::size).collect()
    }

    #[test]
    fn calls_that_wait_share_the_next_turn_in_order() {
        let (turns, key) = (Arc::new(Turns::default()), Key::new("a").expect("valid"));
        let (first, _caller) = call(1);
        let mut task = turns.add(&key, first).expect("a task");
        let mut turn = Vec::new();
        assert!(task.next_turn(&mut turn));
        assert_eq!(sizes(&turn), [1]);
        let others: Vec<_> = (2..=4).map(call).collect();
        let mut callers = Vec::new();
        for (call, caller) in others {
            assert!(turns.add(&key, call).is_none(), "the task goes on");
            callers.push(caller);
        }
        let (full, _caller) = call(bounds::MAX_BATCH);
        turns.add(&key, full);
        // Nobody awaits the second of them any more.
        callers.remove(1);
        turn.clear();
        assert!(task.next_turn(&mut turn));
        assert_eq!(sizes(&turn), [2, 4], "a turn has a limit");
        turn.clear();
        assert!(task.next_turn(&mut turn));
        assert_eq!(sizes(&turn), [bounds::MAX_BATCH]);
        turn.clear();
        assert!(!task.next_turn(&mut turn));
        assert_eq!(lock(&turns.0).len(), 0, "keys are forgotten");
    }

    #[test]
    fn task_that_is_dropped_leaves_no_key_behind() {
        let (turns, key) = (Arc::new(Turns::default()), Key::new("a").expect("valid"));
        let mut old = turns.add(&key, call(1).0).expect("a task");
        assert!(!old.next_turn(&mut Vec::new()), "nobody awaits the call");
        let (next, caller) = call(1);
        let new = turns.add(&key, next).expect("another task");
        drop(old);
        assert!(turns.add(&key, call(1).0).is_none(), "the new task goes on");
        drop(new);
        let answer = caller.answer().expect("it hears of the end");
        assert!(matches!(answer, Err(BackendError::Closed)), "{answer:?}");
        assert!(turns.add(&key, call(1).0).is_some());
    }
}

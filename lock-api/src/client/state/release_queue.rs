//! The queue of releases that the background task sends, and of those that it retries.
//!
//! New releases are sent in order. A release that fails goes into the retries, ordered by the moment of its next
//! attempt. New releases and retries have separate batches and at most [`MAX_CALLS`] calls in flight each, so
//! retries that get no answer hold up no new release. While that many calls are in flight, further releases collect
//! into larger batches. Where the keys may be on several servers, each release is a call of its own, because one
//! server may not answer (decision 0056).
//!
//! A release is given up when nothing of its operation can be left on the server. `busy` counts the work
//! that may still queue a release. A shutdown waits until the queue is empty and `busy` is 0.

use std::collections::btree_map::OccupiedEntry;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::backoff::Backoff;
use crate::bounds::{DEFAULT_WAITER_LEASE, DELIVERY_WINDOW, MAX_BATCH};
use crate::client::state::holder::HolderCell;
use crate::client::state::release_outcome::{Acknowledged, ReleaseResult};
use crate::client::state::session::Session;
use crate::client::state::signal::{Signal, StartFlag};
use crate::error::BackendError;
use crate::id::{Key, Operation};
use crate::reply::ReleaseReply;
use crate::request::Release;
use crate::runtime::Moment;
use crate::sync::{Arc, Mutex};

/// Maximum number of calls in flight: for new releases, and for retries. Without batches there are as many releases in
/// flight.
const MAX_CALLS: usize = 8;

#[derive(Debug)]
pub(crate) struct PendingRelease {
    pub(crate) key: Key,
    pub(crate) operation: Operation,
    pub(crate) session: Arc<Session>,
    /// The holder, if the operation was a hold. It may have other holds.
    pub(crate) holder: Option<Arc<HolderCell>>,
    /// After this moment nothing can be left on the server, unless its holder has other holds.
    pub(crate) give_up: Moment,
    /// Whether an earlier attempt got no answer and may have been executed.
    pub(crate) in_doubt: bool,
    /// Whether the server has refused an earlier attempt.
    pub(crate) was_refused: bool,
    /// Whether its guard was lost before the release began.
    pub(crate) was_lost: bool,
    /// The pauses between the attempts of the background task.
    pub(crate) backoff: Backoff,
    pub(crate) background: bool,
    pub(crate) result: Arc<ReleaseResult>,
}

impl PendingRelease {
    /// A release that the background task sends.
    pub(crate) fn new(
        key: Key,
        operation: Operation,
        session: Arc<Session>,
        give_up: Moment,
        result: Arc<ReleaseResult>,
    ) -> Self {
        Self {
            key,
            operation,
            session,
            holder: None,
            give_up,
            in_doubt: false,
            was_refused: false,
            was_lost: false,
            backoff: Backoff::background(),
            background: true,
            result,
        }
    }

    pub(crate) fn request(&self) -> Release {
        Release::new(self.key.clone(), self.operation)
    }

    pub(crate) const fn acknowledged(&self, reply: ReleaseReply) -> Acknowledged {
        Acknowledged {
            reply,
            in_doubt: self.in_doubt,
            was_lost: self.was_lost,
        }
    }

    /// Removes the operation from the router and passes the result to the callers that wait for it.
    pub(crate) fn complete(&self, result: Result<Acknowledged, BackendError>) {
        self.session.router.remove(self.operation.sequence);
        self.result.update(|known| {
            // A refusal is the result of one attempt, and is replaced. The first acknowledgement stays.
            if !matches!(known, Some(Ok(_))) {
                *known = Some(result);
            }
        });
    }

    /// Tells the callers that wait that the server refuses the release, which goes on.
    pub(crate) fn refused(&mut self, error: BackendError) {
        self.was_refused = true;
        self.result.update(|known| {
            known.get_or_insert(Err(error));
        });
    }
}

/// When nothing of an operation can be left on the server, if its release begins now. Until then, its acquire
/// may still be delivered, its waiter may last for a waiter lease, and for another one if a late poll refreshes
/// it, and its hold for a lease.
pub(crate) fn give_up_at(now: Moment, lease: Duration) -> Moment {
    now.saturating_add(DELIVERY_WINDOW + lease + DEFAULT_WAITER_LEASE * 2)
}

#[derive(Debug, Default)]
pub(crate) struct ReleaseQueue {
    state: Mutex<Queue>,
    pub(crate) changed: Signal,
    pub(crate) started: StartFlag,
}

#[derive(Debug, Default)]
struct Queue {
    /// Releases that the task has not sent yet.
    fresh: VecDeque<PendingRelease>,
    /// Releases to retry, by the moment of the next attempt and a unique number.
    retries: BTreeMap<(Moment, u64), PendingRelease>,
    last_number: u64,
    /// How many releases of each key are queued or in flight.
    keys: BTreeMap<Key, usize>,
    /// Calls of the task in flight: for new releases, then for retries.
    calls: [usize; 2],
    /// Work that may still queue a release.
    busy: usize,
}

impl ReleaseQueue {
    /// Queues a release. Never blocks, spawns or panics.
    pub(crate) fn push(&self, job: PendingRelease) {
        let mut state = self.state.lock();
        *state.keys.entry(job.key.clone()).or_default() += 1;
        state.fresh.push_back(job);
        drop(state);
        self.changed.notify();
    }

    /// Whether a release of this key is queued or in flight.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.state.lock().keys.contains_key(key)
    }

    /// Whether no release is queued or in flight, and no work may queue one.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.is_empty() && state.busy == 0
    }

    /// Takes out the releases to send now, as calls: in batches, or one by one.
    pub(crate) fn take(&self, now: Moment, in_batches: bool) -> Work {
        let (most_calls, most_jobs) = match in_batches {
            true => (MAX_CALLS, MAX_BATCH),
            false => (MAX_CALLS * MAX_BATCH, 1),
        };
        let mut state = self.state.lock();
        let mut calls = Vec::new();
        for kind in [CallKind::Fresh, CallKind::Retry] {
            while state.calls[kind as usize] < most_calls {
                let jobs = state.take(kind, now, most_jobs);
                if jobs.is_empty() {
                    break;
                }
                state.calls[kind as usize] += 1;
                calls.push((kind, jobs));
            }
        }
        let first = state.retries.keys().next().map(|(at, _)| *at);
        Work {
            calls,
            next: first.filter(|_| state.calls[CallKind::Retry as usize] < most_calls),
            is_empty: state.is_empty(),
        }
    }

    /// Notes that a call with releases of these keys has completed, and queues the failed ones for a
    /// retry.
    pub(crate) fn finish_call(
        &self,
        kind: CallKind,
        keys: &[Key],
        failed: Vec<(Moment, PendingRelease)>,
    ) {
        let mut state = self.state.lock();
        state.calls[kind as usize] -= 1;
        for (_, job) in &failed {
            *state.keys.entry(job.key.clone()).or_default() += 1;
        }
        for key in keys {
            state.forget(key);
        }
        for (at, job) in failed {
            state.last_number += 1;
            let number = state.last_number;
            state.retries.insert((at, number), job);
        }
        drop(state);
        self.changed.notify();
    }

    /// Counts work that may still queue a release.
    pub(crate) fn begin_work(&self) {
        self.state.lock().busy += 1;
    }

    pub(crate) fn end_work(&self) {
        self.state.lock().busy -= 1;
    }

    /// Waits until the queue [is idle](Self::is_idle).
    pub(crate) async fn drained(&self) {
        let idle = || self.is_idle().then_some(());
        self.changed.wait_for(idle).await;
    }
}

/// New releases and retries are sent in separate calls.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallKind {
    Fresh,
    Retry,
}

pub(crate) struct Work {
    pub(crate) calls: Vec<(CallKind, Vec<PendingRelease>)>,
    /// When the next retry is due.
    pub(crate) next: Option<Moment>,
    pub(crate) is_empty: bool,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.retries.is_empty() && self.calls == [0, 0]
    }

    fn forget(&mut self, key: &Key) {
        if let Some(count) = self.keys.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.keys.remove(key);
            }
        }
    }

    fn take(&mut self, kind: CallKind, now: Moment, most: usize) -> Vec<PendingRelease> {
        let mut jobs = Vec::new();
        while jobs.len() < most {
            let job = match kind {
                CallKind::Fresh => self.fresh.pop_front(),
                CallKind::Retry => {
                    let first = self.retries.first_entry();
                    let due = first.filter(|job| job.key().0 <= now);
                    due.map(OccupiedEntry::remove)
                }
            };
            let Some(job) = job else {
                break;
            };
            jobs.push(job);
        }
        jobs
    }
}

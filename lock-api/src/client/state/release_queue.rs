//! Releases that are waiting to be sent, for the first time or again.

use std::collections::btree_map::OccupiedEntry;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::bounds::{DELIVERY_WINDOW, MAX_BATCH};
use crate::client::state::backoff::Backoff;
use crate::client::state::holder::HolderCell;
use crate::client::state::release_outcome::{Acknowledged, ReleaseResult};
use crate::client::state::session::Session;
use crate::client::state::signal::Signal;
use crate::error::BackendError;
use crate::id::{Key, Operation};
use crate::reply::ReleaseReply;
use crate::request::Release;
use crate::runtime::Moment;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering};

/// Calls under way at a time, of either sort: while they are, others come together in batches.
const CALLS: usize = 8;

/// An operation whose end has been decided.
#[derive(Debug)]
pub(crate) struct PendingRelease {
    pub(crate) key: Key,
    pub(crate) operation: Operation,
    pub(crate) session: Arc<Session>,
    /// The holder that may go on without this hold.
    pub(crate) holder: Option<Arc<HolderCell>>,
    /// After this the server has ended it without being asked.
    pub(crate) give_up: Moment,
    /// Whether an earlier attempt got no answer and may have been executed.
    pub(crate) in_doubt: bool,
    /// Whether its guard was lost before.
    pub(crate) was_lost: bool,
    /// The pauses before the client's task sends it again.
    pub(crate) backoff: Backoff,
    /// Whether the client's task sends it.
    pub(crate) background: bool,
    pub(crate) done: Arc<ReleaseResult>,
}

impl PendingRelease {
    /// The release of an operation by the client's task.
    pub(crate) fn new(
        key: Key,
        operation: Operation,
        session: Arc<Session>,
        give_up: Moment,
        done: Arc<ReleaseResult>,
    ) -> Self {
        Self {
            key,
            operation,
            session,
            holder: None,
            give_up,
            in_doubt: false,
            was_lost: false,
            backoff: Backoff::background(),
            background: true,
            done,
        }
    }

    pub(crate) fn request(&self) -> Release {
        Release::new(self.key.clone(), self.operation)
    }

    /// Tells the callers that wait for the outcome.
    pub(crate) fn close(&self, result: Result<ReleaseReply, BackendError>) {
        self.session.router.remove(self.operation.sequence);
        self.done.set(result.map(|reply| Acknowledged {
            reply,
            in_doubt: self.in_doubt,
            was_lost: self.was_lost,
        }));
    }
}

/// Until when ending an operation is worth the trouble, if its end is decided now: it may still
/// be delivered, wait for a place's length, be granted, and last for a lease.
pub(crate) fn give_up_at(now: Moment, lease: Duration, waiter_lease: Duration) -> Moment {
    now.saturating_add(DELIVERY_WINDOW + lease + waiter_lease * 2)
}

#[derive(Debug, Default)]
pub(crate) struct ReleaseQueue {
    state: Mutex<Queue>,
    pub(crate) changed: Signal,
    started: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    /// Not sent by the task yet.
    fresh: VecDeque<PendingRelease>,
    /// Those to be sent again, by when, and a number that tells those of one moment apart.
    again: BTreeMap<(Moment, u64), PendingRelease>,
    numbers: u64,
    /// Calls of the task that are under way: of fresh ends, and of those sent again.
    calls: [usize; 2],
    /// Work under way that may still queue a release.
    busy: usize,
}

impl ReleaseQueue {
    /// Queues an end. Never blocks, spawns or panics.
    pub(crate) fn push(&self, job: PendingRelease) {
        self.state.lock().fresh.push_back(job);
        self.changed.notify();
    }

    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.is_empty() && state.busy == 0
    }

    /// Takes out what is to be sent now.
    pub(crate) fn take(&self, now: Moment) -> Work {
        let mut state = self.state.lock();
        let mut batches = Vec::new();
        for sort in [Sort::Fresh, Sort::Again] {
            while let Some(jobs) = state.take(sort, now) {
                state.calls[sort as usize] += 1;
                batches.push((sort, jobs));
            }
        }
        let first = state.again.keys().next().map(|(at, _)| *at);
        Work {
            batches,
            next: first.filter(|_| state.calls[Sort::Again as usize] < CALLS),
            is_empty: state.is_empty(),
        }
    }

    /// A call has ended; these releases are sent again, each at its moment.
    pub(crate) fn put_back(&self, sort: Sort, jobs: Vec<(Moment, PendingRelease)>) {
        let mut state = self.state.lock();
        state.calls[sort as usize] -= 1;
        for (at, job) in jobs {
            state.numbers += 1;
            let number = state.numbers;
            state.again.insert((at, number), job);
        }
        drop(state);
        self.changed.notify();
    }

    /// Counts work under way that may still queue a release.
    pub(crate) fn begin_work(&self) {
        self.state.lock().busy += 1;
    }

    /// The end of that work.
    pub(crate) fn end_work(&self) {
        self.state.lock().busy -= 1;
    }

    /// Whether this is the first caller, which starts the task.
    pub(crate) fn start(&self) -> bool {
        !self.started.swap(true, Ordering::AcqRel)
    }

    /// Ends when nothing is left to do.
    pub(crate) async fn drained(&self) {
        loop {
            let version = self.changed.version();
            if self.is_idle() {
                return;
            }
            self.changed.changed(version).await;
        }
    }
}

/// What a batch is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sort {
    Fresh,
    Again,
}

/// What the task has to do.
pub(crate) struct Work {
    pub(crate) batches: Vec<(Sort, Vec<PendingRelease>)>,
    /// When there is more to do by itself.
    pub(crate) next: Option<Moment>,
    /// Whether nothing is left, not even a call.
    pub(crate) is_empty: bool,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.again.is_empty() && self.calls == [0, 0]
    }

    fn take(&mut self, sort: Sort, now: Moment) -> Option<Vec<PendingRelease>> {
        let mut jobs = Vec::new();
        while self.calls[sort as usize] < CALLS && jobs.len() < MAX_BATCH {
            let job = match sort {
                Sort::Fresh => self.fresh.pop_front(),
                Sort::Again => {
                    let first = self.again.first_entry();
                    let due = first.filter(|job| job.key().0 <= now);
                    due.map(OccupiedEntry::remove)
                }
            };
            let Some(job) = job else {
                break;
            };
            jobs.push(job);
        }
        (!jobs.is_empty()).then_some(jobs)
    }
}

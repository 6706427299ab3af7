//! Ends in the background: of guards that were dropped, attempts that were given up, calls whose
//! outcome nobody knows.
//!
//! Whoever gives something up queues its end here, which neither blocks nor spawns. The client's
//! task sends the ends in batches and repeats each until the server acknowledges it, or until
//! nothing can be left that a lease would not have ended. Each is repeated after a pause of its
//! own, in batches and calls apart from those sent for the first time, so that a key that cannot
//! be reached slows no other.

use std::collections::btree_map::OccupiedEntry;
use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;

use crate::bounds::{HORIZON, MAX_BATCH};
use crate::client::clock::local_deadline;
use crate::client::convoy::travel;
use crate::client::core::{Answer, Core};
use crate::client::session::Session;
use crate::client::signal::Signal;
use crate::client::tenure::{HoldState, Standing, Tenure};
use crate::error::BackendError;
use crate::id::{Key, Operation};
use crate::reply::EndReply;
use crate::request::End;
use crate::runtime::{BoxFuture, Moment};
use crate::sync::{Arc, AtomicBool, Mutex, Ordering};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Calls under way at a time, of either sort: while they are, others come together in batches.
const CALLS: usize = 8;

/// An operation whose end has been decided.
#[derive(Debug)]
pub(crate) struct EndJob {
    pub(crate) key: Key,
    pub(crate) operation: Operation,
    pub(crate) session: Arc<Session>,
    /// The tenure that may go on without this hold.
    pub(crate) tenure: Option<Arc<Tenure>>,
    /// After this the server has ended it without being asked.
    pub(crate) give_up: Moment,
    /// Whether an earlier attempt got no answer and may have been executed.
    pub(crate) in_doubt: bool,
    /// Whether its guard was lost before.
    pub(crate) was_lost: bool,
    /// How often the client's task has sent it in vain.
    pub(crate) failures: u32,
    /// Whether the client's task sends it.
    pub(crate) background: bool,
    pub(crate) done: Arc<EndResult>,
}

/// What an end came to, once it is known.
#[derive(Debug, Default)]
pub(crate) struct EndResult {
    state: Mutex<Option<Result<Ended, BackendError>>>,
    changed: Signal,
}

/// An acknowledged end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) reply: EndReply,
    pub(crate) in_doubt: bool,
    pub(crate) was_lost: bool,
}

impl EndResult {
    fn set(&self, result: Result<Ended, BackendError>) {
        self.state.lock().get_or_insert(result);
        self.changed.notify();
    }

    fn get(&self) -> Option<Result<Ended, BackendError>> {
        self.state.lock().clone()
    }

    async fn wait(&self) -> Result<Ended, BackendError> {
        loop {
            let version = self.changed.version();
            if let Some(result) = self.get() {
                return result;
            }
            self.changed.changed(version).await;
        }
    }
}

/// Until when ending an operation is worth the trouble, if its end is decided now: it may still
/// be delivered, wait for a place's length, be granted, and last for a lease.
pub(crate) fn give_up_at(now: Moment, lease: Duration, waiter_lease: Duration) -> Moment {
    now.saturating_add(HORIZON + lease + waiter_lease * 2)
}

#[derive(Debug, Default)]
pub(crate) struct Cleanup {
    state: Mutex<Queue>,
    pub(crate) changed: Signal,
    started: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    /// Not sent by the task yet.
    fresh: VecDeque<EndJob>,
    /// Those to be sent again, by when, and a number that tells those of one moment apart.
    again: BTreeMap<(Moment, u64), EndJob>,
    numbers: u64,
    /// Calls of the task that are under way: of fresh ends, and of those sent again.
    calls: [usize; 2],
    /// What is [busy](Busy).
    busy: usize,
}

impl Cleanup {
    /// Queues an end. Never blocks, spawns or panics.
    pub(crate) fn push(&self, job: EndJob) {
        self.state.lock().fresh.push_back(job);
        self.changed.notify();
    }

    pub(super) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.is_empty() && state.busy == 0
    }

    /// Takes out what is to be sent now.
    fn take(&self, now: Moment) -> Work {
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

    /// A call has ended; these are to be sent again.
    fn put_back(&self, core: &Core, sort: Sort, jobs: Vec<EndJob>) {
        let now = core.now();
        let mut state = self.state.lock();
        state.calls[sort as usize] -= 1;
        for mut job in jobs {
            let pause = (FIRST_PAUSE * (1 << job.failures.min(10))).min(LONGEST_PAUSE);
            let pause = core.random_between(pause / 2, pause);
            job.failures += 1;
            state.numbers += 1;
            let number = state.numbers;
            state.again.insert((now.saturating_add(pause), number), job);
        }
        drop(state);
        self.changed.notify();
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

    /// Starts the task, once.
    pub(crate) fn start(core: &Arc<Core>) {
        if !core.cleanup.started.swap(true, Ordering::AcqRel) {
            core.runtime.spawn(Box::pin(run(Arc::clone(core))));
        }
    }
}

/// What a batch is made of.
#[derive(Clone, Copy, Debug)]
enum Sort {
    Fresh,
    Again,
}

/// What the task has to do.
struct Work {
    batches: Vec<(Sort, Vec<EndJob>)>,
    /// When there is more to do by itself.
    next: Option<Moment>,
    /// Whether nothing is left, not even a call.
    is_empty: bool,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.again.is_empty() && self.calls == [0, 0]
    }

    fn take(&mut self, sort: Sort, now: Moment) -> Option<Vec<EndJob>> {
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

pub(super) async fn run(core: Arc<Core>) {
    let cleanup = &core.cleanup;
    let mut calls: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    loop {
        let version = cleanup.changed.version();
        // Before the jobs: the last user may queue one, and go, between the two looks.
        let orphaned = core.is_orphaned();
        let work = cleanup.take(core.now());
        if orphaned && work.is_empty {
            return;
        }
        for (sort, jobs) in work.batches {
            let core = Arc::clone(&core);
            calls.push(Box::pin(async move {
                let failed = end_batch(&core, jobs).await;
                core.cleanup.put_back(&core, sort, failed);
            }));
        }
        core.until_work(&cleanup.changed, version, work.next, &mut calls)
            .await;
    }
}

/// Sends a batch of ends; those to be sent again.
async fn end_batch(core: &Core, jobs: Vec<EndJob>) -> Vec<EndJob> {
    let requests: Vec<End> = jobs.iter().map(EndJob::request).collect();
    let call = core.backend.end(&requests);
    let limit = core.settings.call_timeout;
    let answers = core.exchange_batch(limit, requests.len(), call).await;
    jobs.into_iter()
        .zip(answers)
        .filter_map(|(job, answer)| job.finish(core, answer))
        .collect()
}

/// Sends an end, once. What has no answer is repeated in the background, also if this future is
/// dropped.
pub(crate) async fn send(core: &Arc<Core>, job: EndJob) {
    let request = job.request();
    let sent = Sent::new(core, Some(job));
    let limit = core.settings.call_timeout;
    let answer = match core.convoys.alone() {
        Some(_under_way) => {
            let call = core.backend.end(std::slice::from_ref(&request));
            core.exchange_one(limit, call).await
        }
        None => travel(core, limit, request).await,
    };
    sent.finish([answer]);
}

/// The same for several, in one batch.
pub(crate) async fn send_all(core: &Arc<Core>, jobs: Vec<EndJob>) {
    let requests: Vec<End> = jobs.iter().map(EndJob::request).collect();
    let sent = Sent::new(core, jobs);
    let _under_way = core.convoys.alone();
    let call = core.backend.end(&requests);
    let limit = core.settings.call_timeout;
    sent.finish(core.exchange_batch(limit, requests.len(), call).await);
}

impl EndJob {
    /// The end of a hold that the tenure no longer counts.
    pub(crate) fn of_hold(core: &Core, tenure: &Arc<Tenure>, hold: HoldState) -> Self {
        tenure.session.hub.ending(hold.operation.sequence);
        core.renewals.remove_if_over(tenure);
        Self {
            key: tenure.key.clone(),
            operation: hold.operation,
            session: Arc::clone(&tenure.session),
            tenure: Some(Arc::clone(tenure)),
            give_up: give_up_at(core.now(), hold.lease, hold.waiter_lease),
            in_doubt: false,
            was_lost: hold.told,
            failures: 0,
            background: true,
            done: hold.ended,
        }
    }

    fn request(&self) -> End {
        End::new(self.key.clone(), self.operation)
    }

    /// Takes the answer; gives the job back if it must be sent again.
    fn finish(
        mut self,
        core: &Core,
        answer: Result<Answer<EndReply>, BackendError>,
    ) -> Option<Self> {
        match answer {
            Ok(answer) => {
                if let EndReply::Released {
                    tenure: Some(view), ..
                } = answer.reply
                    && let Some(tenure) = &self.tenure
                {
                    let standing = Standing {
                        token: view.token,
                        deadline: local_deadline(answer.sent, view.remaining),
                        clock: answer.stamp.clock,
                    };
                    core.extend(tenure, standing);
                }
                self.close(core, Ok(answer.reply));
                None
            }
            Err(error) if error.is_transient() && core.now() < self.give_up => {
                core.events.end_failed(&self.key, &error);
                self.in_doubt |= matches!(error, BackendError::OutcomeUnknown { .. });
                Some(self)
            }
            Err(error) => {
                self.close(core, Err(error));
                None
            }
        }
    }

    fn close(&self, core: &Core, result: Result<EndReply, BackendError>) {
        core.events.ended(&self.key, self.background, &result);
        self.session.hub.remove(self.operation.sequence);
        self.done.set(result.map(|reply| Ended {
            reply,
            in_doubt: self.in_doubt,
            was_lost: self.was_lost,
        }));
    }
}

/// Work under way that may still queue an end: a shutdown waits for it.
#[derive(Debug)]
pub(crate) struct Busy<'a>(&'a Core);

impl<'a> Busy<'a> {
    pub(crate) fn begin(core: &'a Core) -> Self {
        core.cleanup.state.lock().busy += 1;
        Self(core)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.cleanup.state.lock().busy -= 1;
        // Looked at only now: who closes the client and finds it busy then waits to be told.
        if self.0.is_closed() {
            self.0.cleanup.changed.notify();
        }
    }
}

/// Jobs that a caller has sent; the background gets them if the call is dropped midway.
struct Sent<'a, J: Jobs> {
    core: &'a Core,
    jobs: J,
}

/// One job or several.
trait Jobs: IntoIterator<Item = EndJob> + Default {}
impl<J: IntoIterator<Item = EndJob> + Default> Jobs for J {}

impl<'a, J: Jobs> Sent<'a, J> {
    const fn new(core: &'a Core, jobs: J) -> Self {
        Self { core, jobs }
    }

    /// Takes the answers; who got none goes to the background.
    fn finish(mut self, answers: impl IntoIterator<Item = Result<Answer<EndReply>, BackendError>>) {
        for (mut job, answer) in std::mem::take(&mut self.jobs).into_iter().zip(answers) {
            job.background = false;
            if let Some(mut again) = job.finish(self.core, answer) {
                again.background = true;
                self.core.cleanup.push(again);
            }
        }
    }
}

impl<J: Jobs> Drop for Sent<'_, J> {
    fn drop(&mut self) {
        for mut job in std::mem::take(&mut self.jobs) {
            job.in_doubt = true;
            self.core.cleanup.push(job);
        }
    }
}

/// Waits for the end of an operation, but no longer than a few calls take.
pub(crate) async fn await_end(core: &Core, done: &EndResult) -> Result<Ended, BackendError> {
    if let Some(result) = done.get() {
        return result;
    }
    let limit = core.settings.call_timeout * 2;
    match select(pin!(done.wait()), core.runtime.sleep(limit)).await {
        Either::Left((result, _)) => result,
        Either::Right(_) => {
            let why = "the end was not acknowledged yet; it is repeated";
            Err(BackendError::outcome_unknown(why))
        }
    }
}

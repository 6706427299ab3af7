//! Renewal of all guards of a client, by one task in the guardian's place.
//!
//! A tenure is due a third of its lease after its last renewal was sent. Due times are rounded
//! down to a grid, so that tenures with the same lease fall due together and share a batch; the
//! grid's origin is drawn for each client, so that clients do not fall due together. What is
//! definite is final: the server's word that the tenure is lost, or the deadline.
//!
//! A renewal that fails is tried again after a short random pause, until the deadline. One that
//! has no answer after the time of a try is tried again *beside* it: a call is given up only
//! after the time-out of a call, and an answer counts whenever it comes, since it says how long
//! the tenure lasts from the moment when its own request was sent. So a network that is slower
//! than a try loses no lock.
//!
//! The same task notices losses and tells of them, whether anybody waits for one or not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::stream::FuturesUnordered;

use crate::bounds::{MAX_BATCH, MAX_RENEW_ATTEMPT, RENEWALS_PER_LEASE};
use crate::client::clock::local_deadline;
use crate::client::core::{Answer, Core, reply_of};
use crate::client::error::Loss;
use crate::client::signal::Signal;
use crate::client::tenure::{Plan, Standing, Tenure};
use crate::error::BackendError;
use crate::mutants::mutant;
use crate::reply::{RenewReply, Why};
use crate::request::Renew;
use crate::runtime::{BoxFuture, Moment};
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, Weak};
use crate::time::ClockId;

/// The grid is this fraction of the interval between two renewals.
const GRID_PARTS: u32 = 8;

/// How long a try is waited for, before another is sent beside it.
pub(crate) fn try_limit(lease: Duration) -> Duration {
    MAX_RENEW_ATTEMPT.min(lease / 10)
}

#[derive(Debug)]
pub(crate) struct Renewals {
    state: Mutex<Schedule>,
    pub(crate) changed: Signal,
    next_id: AtomicU64,
    started: AtomicBool,
    phase: u64,
}

#[derive(Debug, Default)]
struct Schedule {
    tenures: BTreeMap<u64, Entry>,
    queue: BTreeSet<(Moment, u64)>,
    /// When the task wakes by itself.
    armed: Option<Moment>,
}

#[derive(Debug)]
struct Entry {
    tenure: Arc<Tenure>,
    /// When it is to be renewed; while that is under way, when that is tried again; `None` if
    /// nobody wants it.
    renew: Option<Moment>,
    /// Tries so far.
    tries: u64,
    /// When it is looked at: to renew it, or to tell of a loss.
    due: Option<Moment>,
}

impl Schedule {
    /// Has a tenure looked at, at the latest, at a moment. What is due sooner stays: to look
    /// once too often does no harm. Whether the task must be woken for it.
    fn look_by(&mut self, id: u64, by: Moment) -> bool {
        let Some(entry) = self.tenures.get_mut(&id) else {
            return false;
        };
        if entry.due.is_some_and(|due| due <= by) {
            return false;
        }
        if let Some(before) = entry.due.replace(by) {
            self.queue.remove(&(before, id));
        }
        self.queue.insert((by, id));
        self.armed.is_none_or(|armed| by < armed)
    }

    /// Whether the task should have woken by now: timers need not count the time of a suspend.
    fn oversleeps(&self, now: Moment) -> bool {
        self.armed.is_some_and(|armed| armed <= now)
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        let removed = self.tenures.remove(&id);
        if let Some(due) = removed.as_ref().and_then(|entry| entry.due) {
            self.queue.remove(&(due, id));
        }
        removed
    }

    /// Has a tenure looked at then and not before.
    fn look_at(&mut self, id: u64, at: Moment) {
        if let Some(entry) = self.tenures.get_mut(&id) {
            if let Some(before) = entry.due.replace(at) {
                self.queue.remove(&(before, id));
            }
            self.queue.insert((at, id));
        }
    }
}

/// A tenure's place among the renewals of its client.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) id: u64,
    by: Weak<Renewals>,
}

impl Watched {
    /// Of a tenure that no client has.
    #[cfg(test)]
    pub(crate) const fn by_nobody() -> Self {
        Self {
            id: 1,
            by: Weak::new(),
        }
    }

    /// Has the task look at the tenure now.
    pub(crate) fn alarm(&self) {
        if let Some(renewals) = self.by.upgrade() {
            renewals.look_now(self.id);
        }
    }
}

impl Renewals {
    pub(crate) fn new(phase: u64) -> Self {
        Self {
            state: Mutex::default(),
            changed: Signal::default(),
            next_id: AtomicU64::new(1),
            started: AtomicBool::new(false),
            phase,
        }
    }

    /// A place for a tenure that begins.
    pub(crate) fn enrol(self: &Arc<Self>) -> Watched {
        Watched {
            id: self.next_id.fetch_add(1, Ordering::Relaxed),
            by: Arc::downgrade(self),
        }
    }

    /// When a tenure whose renewal was sent at `sent` is due again.
    pub(crate) fn due_after(&self, sent: Moment, lease: Duration) -> Moment {
        let interval = lease / RENEWALS_PER_LEASE;
        let grid = u64::try_from((interval / GRID_PARTS).as_micros())
            .unwrap_or(u64::MAX)
            .max(1);
        let due = sent.saturating_add(interval);
        let micros = u64::try_from(due.since_origin().as_micros()).unwrap_or(u64::MAX);
        let over = micros.wrapping_add(self.phase % grid) % grid;
        due.saturating_sub(Duration::from_micros(over))
    }

    /// Takes a tenure into the schedule, or changes when it is renewed.
    pub(crate) fn schedule(&self, tenure: &Arc<Tenure>, now: Moment, due: Moment) {
        self.enter(tenure, now, Some(due));
    }

    /// Takes it in without a renewal: its losses are noticed.
    pub(crate) fn watch(&self, tenure: &Arc<Tenure>, now: Moment) {
        self.enter(tenure, now, None);
    }

    fn enter(&self, tenure: &Arc<Tenure>, now: Moment, renew: Option<Moment>) {
        let loss = tenure.next_loss();
        let wake = {
            let mut state = self.state.lock();
            let entry = state.tenures.entry(tenure.id).or_insert_with(|| Entry {
                tenure: Arc::clone(tenure),
                renew: None,
                tries: 0,
                due: None,
            });
            entry.renew = renew.or(entry.renew);
            let by = entry.renew.into_iter().chain(loss).min();
            let sooner = by.is_some_and(|by| state.look_by(tenure.id, by));
            sooner || state.oversleeps(now)
        };
        if wake {
            self.changed.notify();
        }
    }

    /// Has a tenure that was looked at looked at again when that is next of use.
    fn look_again(&self, tenure: &Tenure) {
        let loss = tenure.next_loss();
        let mut state = self.state.lock();
        let renew = state.tenures.get(&tenure.id).and_then(|entry| entry.renew);
        if let Some(by) = renew.into_iter().chain(loss).min() {
            state.look_by(tenure.id, by);
        }
    }

    fn look_now(&self, id: u64) {
        let wake = self.state.lock().look_by(id, Moment::default());
        if wake {
            self.changed.notify();
        }
    }

    /// Counts a try that is sent now, and sets the time for another without its answer; the
    /// number of this one.
    fn begin_try(&self, tenure: &Tenure, again: Moment) -> u64 {
        let mut state = self.state.lock();
        let Some(entry) = state.tenures.get_mut(&tenure.id) else {
            return 0;
        };
        entry.tries += 1;
        let number = entry.tries;
        if !mutant!(OneErrorEndsRenewal) {
            entry.renew = Some(again);
            state.look_by(tenure.id, again);
        }
        number
    }

    /// Takes what came of a try.
    fn end_try(&self, tenure: &Tenure, number: u64, next: Next) {
        let mut state = self.state.lock();
        let Some(entry) = state.tenures.get_mut(&tenure.id) else {
            return;
        };
        let by = match next {
            Next::Never => return,
            Next::Renewed(due) if entry.tries == number => due,
            // A later try is under way, or was answered.
            Next::Renewed(due) => entry.renew.map_or(due, |renew| renew.max(due)),
            Next::Again(at) if entry.tries == number => {
                entry.renew.map_or(at, |renew| renew.min(at))
            }
            Next::Again(_) => return,
        };
        entry.renew = Some(by);
        // Under the lock, so that no alarm of a loss is put off.
        let at = tenure.next_loss().map_or(by, |loss| loss.min(by));
        state.look_at(tenure.id, at);
    }

    pub(crate) fn remove(&self, id: u64) {
        let removed = self.state.lock().remove(id);
        drop(removed);
    }

    /// The same, unless a nested hold has joined the tenure again meanwhile.
    pub(crate) fn remove_if_over(&self, tenure: &Tenure) {
        let mut state = self.state.lock();
        if tenure.is_over() {
            let removed = state.remove(tenure.id);
            drop(state);
            drop(removed);
        }
    }

    pub(crate) fn clock_stepped(&self, clock: ClockId) {
        for tenure in self.tenures() {
            tenure.clock_stepped(clock);
        }
    }

    /// All tenures that have a guard.
    pub(crate) fn tenures(&self) -> Vec<Arc<Tenure>> {
        let state = self.state.lock();
        state
            .tenures
            .values()
            .map(|entry| Arc::clone(&entry.tenure))
            .collect()
    }

    /// Takes out what is due by now, each with whether it is to be renewed.
    fn take_due(&self, now: Moment) -> Vec<(Arc<Tenure>, bool)> {
        let mut state = self.state.lock();
        let mut due = Vec::new();
        while let Some((at, id)) = state.queue.first().copied().filter(|(at, _)| *at <= now) {
            state.queue.remove(&(at, id));
            if let Some(entry) = state.tenures.get_mut(&id) {
                entry.due = None;
                let renew = entry.renew.take_if(|at| *at <= now).is_some();
                due.push((Arc::clone(&entry.tenure), renew));
            }
        }
        due
    }

    fn arm(&self) -> Option<Moment> {
        let mut state = self.state.lock();
        state.armed = state.queue.first().map(|(at, _)| *at);
        state.armed
    }

    /// Starts the task, once.
    pub(crate) fn start(core: &Arc<Core>) {
        if !core.renewals.started.swap(true, Ordering::AcqRel) {
            core.runtime.spawn_guardian(Box::pin(run(Arc::clone(core))));
        }
    }
}

async fn run(core: Arc<Core>) {
    let mut calls: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    loop {
        let version = core.renewals.changed.version();
        let orphaned = core.is_orphaned();
        for batch in batches(&core) {
            calls.push(Box::pin(renew(Arc::clone(&core), batch)));
        }
        core.events.call_hook();
        if orphaned {
            return;
        }
        let until = core.renewals.arm();
        core.until_work(&core.renewals.changed, version, until, &mut calls)
            .await;
    }
}

/// One tenure's part in a call.
pub(super) struct Member {
    tenure: Arc<Tenure>,
    plan: Plan,
    /// The number of the try.
    number: u64,
}

/// What is due.
pub(super) fn batches(core: &Core) -> Vec<Vec<Member>> {
    let now = core.now();
    let mut members = Vec::new();
    for (tenure, renew) in core.renewals.take_due(now) {
        core.tell_losses(&tenure, now);
        core.renewals.look_again(&tenure);
        if renew && let Some(plan) = tenure.plan(now) {
            let again = now.saturating_add(try_limit(plan.lease) + pause(core, plan.lease));
            let number = core.renewals.begin_try(&tenure, again);
            members.push(Member {
                tenure,
                plan,
                number,
            });
        }
    }
    let mut batches = Vec::new();
    while !members.is_empty() {
        let later = members.split_off(members.len().min(MAX_BATCH));
        batches.push(std::mem::replace(&mut members, later));
    }
    batches
}

/// The pause before a renewal is tried again.
fn pause(core: &Core, lease: Duration) -> Duration {
    let limit = try_limit(lease);
    core.random_between(limit / 4, limit / 2)
}

pub(super) async fn renew(core: Arc<Core>, batch: Vec<Member>) {
    let requests: Vec<Renew> = batch
        .iter()
        .map(|Member { tenure, plan, .. }| Renew {
            key: tenure.key.clone(),
            operation: plan.operation,
            lease: plan.lease,
        })
        .collect();
    let call = core.backend.renew(&requests);
    let limit = core.settings.call_timeout;
    let answers = core.exchange_batch(limit, requests.len(), call).await;
    let mut errors = answers.iter().filter_map(|answer| answer.as_ref().err());
    if let Some(error) = errors.next() {
        let failed = 1 + errors.count();
        core.events.renewals_failed(failed, answers.len(), error);
    }
    for (member, answer) in batch.iter().zip(answers) {
        core.events.renewal(&member.tenure.key, reply_of(&answer));
        let next = apply(&core, &member.tenure, member.plan, &answer);
        if let Next::Renewed(due) = next
            && mutant!(CancelBeforeSchedule)
        {
            // Its end may have begun, and taken it out of the schedule.
            core.renewals.schedule(&member.tenure, core.now(), due);
            continue;
        }
        core.renewals.end_try(&member.tenure, member.number, next);
    }
}

/// What follows from the answer to a try.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// It stands; when it is to be renewed again.
    Renewed(Moment),
    /// Nothing is known yet; when to try again.
    Again(Moment),
    /// It is lost.
    Never,
}

/// Takes the answer to a renewal.
fn apply(
    core: &Core,
    tenure: &Tenure,
    plan: Plan,
    answer: &Result<Answer<RenewReply>, BackendError>,
) -> Next {
    let now = core.now();
    let unless_lost = |lost: bool| if lost { Next::Never } else { Next::Again(now) };
    match answer {
        Ok(Answer {
            sent,
            stamp,
            reply: RenewReply::Renewed { token, remaining },
        }) => {
            let standing = Standing {
                token: *token,
                deadline: local_deadline(*sent, *remaining),
                clock: stamp.clock,
            };
            let stands = core.extend(tenure, standing);
            if stands {
                Next::Renewed(core.renewals.due_after(*sent, plan.lease))
            } else {
                Next::Never
            }
        }
        Ok(Answer {
            reply: RenewReply::Lost(why),
            ..
        }) => {
            // If its end has begun, another hold may keep the tenure: renew through that one.
            unless_lost(tenure.lose_through(plan.operation.sequence, *why))
        }
        Err(BackendError::ForeignValue { .. }) => {
            // Somebody wrote over the key, and the hold with it.
            unless_lost(tenure.lose_through(plan.operation.sequence, Why::Unknown))
        }
        Err(BackendError::Closed) => {
            tenure.lose(Loss::ClientClosed);
            Next::Never
        }
        Err(_) if mutant!(OneErrorEndsRenewal) => Next::Never,
        Err(_) => Next::Again(now.saturating_add(pause(core, plan.lease))),
    }
}

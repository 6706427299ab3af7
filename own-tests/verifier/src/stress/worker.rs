//! A user of a lock: acquires it, works, writes to the protected resource, and releases the lock.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join3;
use leasehold_api::{
    Error, Key, Kind, LockBackend as _, Loss, Mode, Note, Operation, Outcome, Refused,
};
use leasehold_sim::SimBackend;

use crate::checker::{GuardId, Holding, Situation, TrackableGuard};
use crate::stress::handle::{AnyGuard, GuardSlot, Handle, WaitLimit};
use crate::stress::healed::Healed;
use crate::stress::machine::{Locks, Machine};
use crate::stress::monitor::Monitor;
use crate::stress::plan::{LONGEST_VISIT, Plan, span};

/// A worker, with its client and its key.
pub(crate) struct Worker {
    pub(crate) client: usize,
    pub(crate) backend: SimBackend,
    pub(crate) machine: Arc<Machine>,
    pub(crate) key: Key,
    pub(crate) plan: Plan,
    pub(crate) monitor: Monitor,
    /// Set when the faulty phase has ended.
    pub(crate) healed: Arc<Healed>,
}

/// Whether the resource may refuse a write of a valid guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MayRefuse {
    /// It may not.
    No,
    /// It may, because the holder may have a later token than the guard knows. Another hold was
    /// released, which may have downgraded the holder (rule 6).
    Yes,
}

/// An owner of holds.
struct Owner {
    handle: Handle,
    /// The lock client of the handle.
    locks: Locks,
    /// The number by which the checker knows it.
    number: u64,
}

/// A held lock, whose guard is tracked.
struct HeldLock {
    slot: Arc<GuardSlot>,
    id: GuardId,
    /// When the call began that got it.
    asked: Duration,
    since: Duration,
    operation: Option<Operation>,
}

/// Whether the resource must accept the guard's token now.
fn is_valid(held: &HeldLock, may_refuse: MayRefuse) -> bool {
    may_refuse == MayRefuse::No && held.slot.guard().is_some_and(|guard| guard.is_valid())
}

/// When a pending future is dropped.
#[derive(Clone, Copy)]
enum Cancel {
    /// After this many polls.
    Polls(u32),
    /// When it is woken after the server has granted the lock, or after this many polls.
    Granted(u32),
    /// After a time, even if the future was woken at the same instant.
    After(Duration),
}

/// How soon a client leaves nothing at the server after it gave up a wait or released a lock.
const GONE: Duration = Duration::from_secs(2);

/// A time to keep a note that outlasts everything else of a run.
const LONG_KEPT: Duration = Duration::from_secs(3_600);

/// The longest work during the recovery, which only tests that every client gets the lock.
const LAST_WORK: Duration = Duration::from_secs(2);

impl Worker {
    fn draw(&self, bound: u32) -> u32 {
        self.monitor.sim.draw(bound)
    }

    fn span(&self, most: Duration) -> Duration {
        span(&self.monitor.sim, most)
    }

    /// The longest work under the lock.
    fn pace(&self) -> Duration {
        if self.healed.is() {
            self.plan.pace.min(self.plan.terms.lease).min(LAST_WORK)
        } else {
            self.plan.pace
        }
    }

    async fn sleep(&self, time: Duration) {
        if !time.is_zero() {
            self.backend.runtime().sleep(time).await;
        }
    }

    /// Runs all rounds, and one more after recovery, in which the worker must get the lock.
    pub(crate) async fn run(self) {
        for _ in 0..self.plan.rounds {
            if self.healed.is() {
                break;
            }
            let how = self.draw(6);
            let wait_limit = match how {
                0..=3 => WaitLimit::Forever,
                4 => WaitLimit::Within(self.span(self.plan.pace * 3)),
                _ => WaitLimit::Try,
            };
            self.round(wait_limit, self.plan.fault_mix.cancels).await;
            self.sleep(self.span(self.plan.pace / 2)).await;
        }
        self.healed.wait().await;
        self.round(WaitLimit::Forever, false).await;
    }

    fn mode(&self) -> Mode {
        match self.plan.terms.kind {
            Kind::Mutex => Mode::Exclusive,
            Kind::RwLock if self.draw(2) == 0 => Mode::Exclusive,
            Kind::RwLock => Mode::Shared,
            Kind::Semaphore => Mode::Permits(1 + self.draw(self.plan.terms.capacity)),
        }
    }

    /// Acquires the lock once, works, and releases it.
    async fn round(&self, wait_limit: WaitLimit, may_cancel: bool) {
        let cancel = match self.draw(8) {
            3..=5 if may_cancel => Some(Cancel::Polls(1 + self.draw(12))),
            6 if may_cancel => Some(Cancel::Granted(2 + self.draw(20))),
            7 if may_cancel => Some(Cancel::After(self.span(self.plan.pace))),
            _ => None,
        };
        let Some((held, owner)) = self.acquire_first(wait_limit, cancel).await else {
            return self.check_left(6).await;
        };
        self.work(&held, MayRefuse::No).await;
        let mut all = vec![held];
        if self.plan.terms.reentrant {
            match self.draw(6) {
                0..=2 => {}
                3 | 4 => all.extend(self.nest(&owner).await),
                // During the work, and their answers may come in any order.
                _ => {
                    let nest = || self.nest(&owner);
                    let work = self.work(&all[0], MayRefuse::No);
                    let ((), one, other) = join3(work, nest(), nest()).await;
                    all.extend(one.into_iter().chain(other));
                }
            }
        }
        for nested in &all[1..] {
            self.work(nested, MayRefuse::No).await;
        }
        if self.plan.terms.kind == Kind::RwLock {
            // An odd number of conversions changes the mode.
            let times = [0, 0, 0, 1, 1, 3][self.draw(6) as usize];
            for _ in 0..times {
                // The error has taken the guard.
                if !self.convert(&all[0]).await && self.plan.fault_mix.shutdowns {
                    let again = WaitLimit::Within(self.span(self.plan.pace));
                    all.extend(self.acquire_first(again, None).await.map(|it| it.0));
                }
            }
        }
        self.work(&all[0], MayRefuse::No).await;
        let is_nested = all.len() > 1;
        while let Some(next) = self.take_one(&mut all) {
            self.give_back(next, may_cancel).await;
            if !all.is_empty() && self.draw(8) == 7 {
                // The release may not be answered yet.
                all.extend(self.nest(&owner).await);
            }
            if let Some(last) = all.last() {
                self.work(last, MayRefuse::Yes).await;
            }
        }
        if !is_nested {
            self.check_left(1).await;
        }
    }

    /// Takes any of these out.
    fn take_one(&self, all: &mut Vec<HeldLock>) -> Option<HeldLock> {
        match u32::try_from(all.len()).unwrap_or(u32::MAX) {
            0 | 1 => all.pop(),
            count => Some(all.swap_remove(self.draw(count) as usize)),
        }
    }

    /// In `often` of eight cases, waits and then checks that nothing is left at the server.
    async fn check_left(&self, often: u32) {
        if (1..=often).contains(&self.draw(8)) {
            self.sleep(GONE + self.plan.round_trip * 4).await;
            let at = self.monitor.sim.elapsed();
            self.monitor
                .checker(|it| it.check_nothing_left(at, self.client, &self.key, GONE));
        }
    }

    /// Takes another hold for the same owner, perhaps with a shorter lease.
    async fn nest(&self, owner: &Owner) -> Option<HeldLock> {
        let lease = if self.draw(2) == 1 {
            (self.plan.terms.lease / 3).max(Duration::from_millis(100))
        } else {
            self.plan.terms.lease
        };
        let owner = Owner {
            handle: owner.handle.clone().with_lease(lease),
            locks: owner.locks.clone(),
            number: owner.number,
        };
        let wait_limit = WaitLimit::Within(Duration::from_secs(3));
        let nested = self.acquire(&owner, self.mode(), wait_limit, None);
        nested.await.ok().flatten()
    }

    /// Acquires the lock for a new owner. After an error, the user of a machine whose clients are shut down tries again,
    /// on any of them.
    async fn acquire_first(
        &self,
        wait_limit: WaitLimit,
        cancel: Option<Cancel>,
    ) -> Option<(HeldLock, Owner)> {
        let mut locks = self.machine.any();
        // In the end, it must get the lock.
        let tries = if self.healed.is() { u32::MAX } else { 3 };
        for _ in 0..tries {
            let handle = match Handle::new(&locks.client, self.key.as_str(), &self.plan.terms) {
                Ok(handle) => handle,
                Err(error) => {
                    self.check_error("making a handle", &error);
                    return None;
                }
            };
            let owner = Owner {
                handle,
                locks,
                number: self.monitor.next_owner(),
            };
            let acquire = self.acquire(&owner, self.mode(), wait_limit, cancel);
            match acquire.await {
                Ok(held) => return held.map(|held| (held, owner)),
                Err(_) if self.plan.fault_mix.shutdowns => {}
                Err(_) => return None,
            }
            locks = match self.draw(2) {
                0 => self.machine.newest(),
                _ => self.machine.any(),
            };
        }
        None
    }

    fn timed<F: Future>(
        &self,
        limit: Option<Duration>,
        name: &str,
        call: F,
    ) -> impl Future<Output = F::Output> {
        self.monitor.timed(self.client, limit, name, call)
    }

    /// Acquires the lock, unless `cancel` drops the future first.
    async fn acquire(
        &self,
        owner: &Owner,
        mode: Mode,
        wait_limit: WaitLimit,
        cancel: Option<Cancel>,
    ) -> Result<Option<HeldLock>, Error> {
        let asked = self.monitor.sim.elapsed();
        let limit = match wait_limit {
            WaitLimit::Try => Some(Duration::from_secs(1)),
            WaitLimit::Within(time) if time.is_zero() => Some(Duration::from_secs(1)),
            WaitLimit::Within(time) => Some(time),
            WaitLimit::Forever => None,
        };
        let acquire = self.run_or_drop(owner.handle.acquire(mode, wait_limit), cancel);
        match self.timed(limit, "an acquire", acquire).await {
            None => self.monitor.reached(Situation::Cancelled),
            Some(Ok(Outcome::Acquired(guard))) => {
                return Ok(Some(self.hold(guard, mode, owner, asked)));
            }
            Some(Ok(Outcome::Contended(_))) => {
                if matches!(wait_limit, WaitLimit::Within(_)) {
                    self.monitor.reached(Situation::TimedOut);
                }
            }
            Some(Err(error)) => {
                self.check_error("an acquire", &error);
                return Err(error);
            }
        }
        Ok(None)
    }

    fn hold(&self, guard: AnyGuard, mode: Mode, owner: &Owner, asked: Duration) -> HeldLock {
        let token = guard.token();
        self.monitor.excuse(self.client);
        let slot = Arc::new(GuardSlot::new(guard, self.plan.stubborn));
        let id = self.monitor.track(Holding {
            client: self.client,
            label: owner.locks.label.clone(),
            key: self.key.clone(),
            mode,
            owner: owner.number,
            capacity: self.plan.terms.capacity,
            kept: self.plan.kept(),
            guard: Arc::clone(&slot) as Arc<dyn TrackableGuard>,
        });
        if self.monitor.notes {
            self.backend.note(format!("holds {mode:?}, token {token}"));
        }
        if self.plan.fault_mix.replicas && self.draw(4) == 3 {
            // It knows this grant, and not what follows.
            self.monitor.sim.cut_off_replica(self.plan.reads);
        }
        let since = self.monitor.sim.elapsed();
        let operation = self.monitor.checker(|it| it.guards.operation(id));
        HeldLock {
            slot,
            id,
            asked,
            since,
            operation,
        }
    }

    /// Perhaps sends the requests of the client to the replica for some time.
    fn visit_replica(&self) {
        if !self.plan.fault_mix.replicas || self.healed.is() || self.draw(4) < 3 {
            return;
        }
        self.backend.visit_replica();
        let (sim, backend) = (self.monitor.sim.clone(), self.backend.clone());
        let time = self.span(LONGEST_VISIT);
        drop(self.monitor.sim.spawn(async move {
            sim.sleep(time).await;
            backend.leave_replica();
        }));
    }

    /// Works for some time, and writes before and after, even if its guard is lost meanwhile.
    async fn work(&self, held: &HeldLock, may_refuse: MayRefuse) {
        held.slot.set_in_use(true);
        let claimed = self.claim(held, may_refuse);
        self.write(held, may_refuse).await;
        self.leave_note(held).await;
        let read = claimed.map(|token| (token, self.monitor.read(&self.key)));
        if self.draw(8) == 7
            && let Some(guard) = held.slot.guard()
        {
            let sent = self.monitor.sim.elapsed();
            self.monitor.excuse(self.client);
            let limit = Some(Duration::from_secs(1));
            let renewed = self.timed(limit, "a renewal", guard.renew()).await;
            self.monitor.excuse(self.client);
            match renewed {
                Ok(_) => self.monitor.check_clock_step(held.asked, held.since, sent),
                Err(error) => {
                    self.note_loss(&error);
                    if self.plan.fault_mix.shutdowns {
                        let again = self.timed(limit, "a renewal", guard.renew());
                        drop(again.await);
                        self.monitor.excuse(self.client);
                    }
                }
            }
        }
        self.sleep(self.span(self.pace())).await;
        if self.draw(16) == 15 {
            // Longer than a fixed lease.
            self.monitor.check_guards();
            self.sleep(self.plan.terms.lease * 3 / 2).await;
        }
        self.monitor.check_guards();
        self.write(held, may_refuse).await;
        self.leave_note(held).await;
        if let Some((token, read)) = read {
            let valid = is_valid(held, may_refuse);
            self.monitor.add(&self.key, token, read, valid);
        }
        held.slot.set_in_use(false);
    }

    /// Claims the token of an exclusive guard at the resource. Returns the token if it was accepted.
    fn claim(&self, held: &HeldLock, may_refuse: MayRefuse) -> Option<u64> {
        let guard = held.slot.guard().filter(|guard| guard.is_exclusive())?;
        let token = guard.token();
        let valid = is_valid(held, may_refuse);
        self.monitor.claim(&self.key, token, valid).then_some(token)
    }

    /// Sends a write to the resource, which may arrive later.
    async fn write(&self, held: &HeldLock, may_refuse: MayRefuse) {
        let Some(guard) = held.slot.guard() else {
            return;
        };
        let (token, sent_valid) = (guard.token(), guard.is_valid());
        drop(guard);
        if self.draw(4) == 3 {
            self.sleep(self.span(self.pace())).await;
        }
        // A guard that was valid when the write was sent may be lost when it arrives.
        let valid = sent_valid && is_valid(held, may_refuse);
        let kind = self.plan.terms.kind;
        let effective = self.monitor.write(&self.key, token, valid, kind);
        if self.monitor.notes {
            let outcome = if effective { "writes" } else { "is refused" };
            self.backend.note(format!("{outcome} with token {token}"));
        }
    }

    /// Perhaps leaves a note, even if the guard is lost. The checker judges the answer.
    async fn leave_note(&self, held: &HeldLock) {
        let Some(operation) = held.operation.filter(|_| self.plan.leaves_notes) else {
            return;
        };
        if self.draw(2) == 0 {
            return;
        }
        let version = self.draw(3);
        let keep = match self.draw(3) {
            0 => Duration::ZERO,
            1 => self.span(self.plan.terms.lease),
            _ => LONG_KEPT,
        };
        let bytes = vec![b'n'; self.draw(4) as usize];
        let note = Note::new(self.key.clone(), operation, version, bytes, keep);
        match note {
            Ok(note) => drop(self.backend.write_note(&note).await),
            Err(error) => self.monitor.broken("L4", format!("a note: {error}")),
        }
    }

    /// Converts the guard. Returns whether it is still there.
    async fn convert(&self, held: &HeldLock) -> bool {
        let Some(guard) = held.slot.take() else {
            return true;
        };
        let set_mode = |mode| self.monitor.checker(|it| it.guards.set_mode(held.id, mode));
        set_mode(Mode::Shared);
        self.visit_replica();
        match guard.convert().await {
            Ok(guard) => {
                let mode = match guard {
                    AnyGuard::Read(_) => Mode::Shared,
                    _ => Mode::Exclusive,
                };
                held.slot.put(guard);
                set_mode(mode);
                self.monitor.check_guards();
                true
            }
            Err(error) => {
                self.monitor.untrack(held.id);
                self.note_loss(&error);
                false
            }
        }
    }

    /// Releases the guard, drops it, or drops the release.
    async fn give_back(&self, held: HeldLock, may_cancel: bool) {
        self.monitor.check_guards();
        self.monitor.untrack(held.id);
        let Some(guard) = held.slot.guard() else {
            return;
        };
        drop(held);
        match self.draw(4) {
            0 | 1 => {
                let tries = if self.plan.fault_mix.shutdowns { 2 } else { 1 };
                for _ in 0..tries {
                    let limit = Some(Duration::from_secs(3));
                    let released = self.timed(limit, "a release", guard.release());
                    match released.await {
                        Ok(_) => break,
                        Err(error) => self.note_loss(&error),
                    }
                }
            }
            2 if may_cancel => {
                let soon = Some(Cancel::Polls(1 + self.draw(4)));
                drop(self.run_or_drop(guard.release(), soon).await);
            }
            _ => {}
        }
    }

    /// Records why a guard was lost.
    fn note_loss(&self, error: &Error) {
        match error {
            Error::Lost {
                reason: Loss::Deadline,
                ..
            } => self.monitor.reached(Situation::LostByDeadline),
            Error::Lost { .. } => self.monitor.reached(Situation::LostByReply),
            _ => {}
        }
        self.check_error("a guard", error);
    }

    /// Reports an error that no user should get.
    fn check_error(&self, source: &str, error: &Error) {
        let on = self.plan.fault_mix;
        let denied = on.refusals && matches!(error, Error::Rejected { .. });
        let closed = on.shutdowns && matches!(error, Error::Closed);
        let expected = matches!(
            error,
            Error::Lost { .. }
                | Error::Unavailable { .. }
                | Error::OutcomeUnknown { .. }
                | Error::Refused {
                    reason: Refused::WouldDeadlock | Refused::HoldLimit,
                    ..
                }
        );
        if !expected && !denied && !closed {
            self.monitor.broken("L4", format!("{source}: {error}"));
        }
    }

    /// Runs a future until it completes, or drops it.
    async fn run_or_drop<F: Future>(&self, future: F, cancel: Option<Cancel>) -> Option<F::Output> {
        let mut future = pin!(future);
        let (most, granted, time) = match cancel {
            Some(Cancel::Polls(most)) => (most, false, None),
            Some(Cancel::Granted(most)) => (most, true, None),
            Some(Cancel::After(time)) => (u32::MAX, false, Some(time)),
            None => return Some(future.await),
        };
        let mut timer = time.map(|time| self.backend.runtime().sleep(time));
        let mut polls = 0;
        poll_fn(|cx| {
            if timer
                .as_mut()
                .is_some_and(|timer| timer.as_mut().poll(cx).is_ready())
            {
                return Poll::Ready(None);
            }
            if granted && self.monitor.leaks(self.client, &self.key) {
                return Poll::Ready(None);
            }
            polls += 1;
            match future.as_mut().poll(cx) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending if polls >= most => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }
}

//! One user of a lock: takes it in some way, works, writes to what it protects, lets go in some
//! way.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use leasehold_api::{Error, Key, Kind, LockBackend as _, LockClient, Loss, Mode, Outcome, Refused};
use leasehold_sim::SimBackend;

use crate::checker::{GuardId, Holding, Situation, Watched};
use crate::stress::handle::{AnyGuard, Handle, Pocket, WaitLimit};
use crate::stress::healed::Healed;
use crate::stress::monitor::Monitor;
use crate::stress::plan::Plan;

/// One worker and what it works with.
pub(crate) struct Worker {
    pub(crate) client: usize,
    pub(crate) backend: SimBackend,
    pub(crate) locks: LockClient,
    pub(crate) key: Key,
    pub(crate) plan: Plan,
    pub(crate) monitor: Monitor,
    /// Set when nothing goes wrong any more.
    pub(crate) healed: Arc<Healed>,
}

/// What a guard's word is worth at the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Valid {
    /// A valid guard is not refused.
    All,
    /// Its holder may be in a later epoch than it knows: another hold of it has ended, and with
    /// that its mode (rule 6).
    NotInTime,
}

/// A lock that is held, and watched.
struct HeldLock {
    pocket: Arc<Pocket>,
    id: GuardId,
    since: Duration,
}

/// When a future is dropped that has not ended.
#[derive(Clone, Copy)]
enum Cancel {
    /// After so many polls.
    Polls(u32),
    /// When it is woken and the server has granted it what it waits for, or at this many polls.
    Granted(u32),
    /// At a time, even if it was woken at the same instant.
    After(Duration),
}

/// How soon nothing of a client is left that has given up or let go.
const GONE: Duration = Duration::from_secs(2);

/// Longest work once nothing goes wrong any more: what is left to see is that everyone gets its turn.
const LAST_WORK: Duration = Duration::from_secs(2);

impl Worker {
    fn draw(&self, bound: u32) -> u32 {
        self.monitor.sim.draw(bound)
    }

    /// A time on the grid, up to about `most`.
    fn span(&self, most: Duration) -> Duration {
        let ms = u32::try_from(most.as_millis()).unwrap_or(u32::MAX);
        Duration::from_millis(self.draw(ms.saturating_add(1)).into())
    }

    /// How long it works at most.
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

    /// All rounds, and one more after healing, in which it must get its turn.
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

    /// Takes the lock once, works, and lets go.
    async fn round(&self, wait_limit: WaitLimit, may_cancel: bool) {
        let handle = match Handle::new(&self.locks, self.key.as_str(), &self.plan.terms) {
            Ok(handle) => handle,
            Err(error) => return self.refused("making a handle", &error),
        };
        let owner = self.monitor.next_owner();
        let cancel = match self.draw(8) {
            3..=5 if may_cancel => Some(Cancel::Polls(1 + self.draw(12))),
            6 if may_cancel => Some(Cancel::Granted(2 + self.draw(20))),
            7 if may_cancel => Some(Cancel::After(self.span(self.plan.pace))),
            _ => None,
        };
        let Some(held) = self
            .take(&handle, self.mode(), wait_limit, owner, cancel)
            .await
        else {
            return self.check_left(6).await;
        };
        self.work(&held, Valid::All).await;
        let nested = if self.plan.terms.reentrant && self.draw(2) == 1 {
            self.nest(&handle, owner).await
        } else {
            None
        };
        if self.plan.terms.kind == Kind::RwLock {
            // There, perhaps back, and there again.
            let times = [0, 0, 0, 1, 1, 3][self.draw(6) as usize];
            for _ in 0..times {
                self.convert(&held).await;
            }
        }
        self.work(&held, Valid::All).await;
        let Some(nested) = nested else {
            self.let_go(held, may_cancel).await;
            return self.check_left(1).await;
        };
        let (first, last) = match self.draw(2) {
            0 => (nested, held),
            _ => (held, nested),
        };
        self.let_go(first, may_cancel).await;
        self.work(&last, Valid::NotInTime).await;
        self.let_go(last, may_cancel).await;
    }

    /// Sometimes, in so many of eight times, waits and looks whether anything was left.
    async fn check_left(&self, often: u32) {
        if (1..=often).contains(&self.draw(8)) {
            self.sleep(GONE + self.plan.round_trip * 4).await;
            self.monitor.left_nothing(self.client, &self.key, GONE);
        }
    }

    /// One more hold of the same owner, perhaps with a shorter lease.
    async fn nest(&self, handle: &Handle, owner: u64) -> Option<HeldLock> {
        let lease = if self.draw(2) == 1 {
            (self.plan.terms.lease / 3).max(Duration::from_millis(100))
        } else {
            self.plan.terms.lease
        };
        let handle = handle.clone().with_lease(lease);
        let wait_limit = WaitLimit::Within(Duration::from_secs(3));
        let held = self
            .take(&handle, self.mode(), wait_limit, owner, None)
            .await;
        if let Some(held) = &held {
            self.work(held, Valid::All).await;
        }
        held
    }

    /// Takes the lock, or drops the future that would.
    async fn take(
        &self,
        handle: &Handle,
        mode: Mode,
        wait_limit: WaitLimit,
        owner: u64,
        cancel: Option<Cancel>,
    ) -> Option<HeldLock> {
        let began = self.monitor.watch(self.client);
        let outcome = self.cancelled(handle.take(mode, wait_limit), cancel).await;
        let limit = match wait_limit {
            WaitLimit::Try => Some(Duration::from_secs(1)),
            WaitLimit::Within(time) if time.is_zero() => Some(Duration::from_secs(1)),
            WaitLimit::Within(time) => Some(time),
            WaitLimit::Forever => None,
        };
        self.monitor
            .took(self.client, began, limit, "taking a lock");
        match outcome {
            None => self.monitor.reached(Situation::Cancelled),
            Some(Ok(Outcome::Acquired(guard))) => {
                return Some(self.hold(guard, mode, owner));
            }
            Some(Ok(Outcome::TimedOut(_))) => self.monitor.reached(Situation::TimedOut),
            Some(Ok(Outcome::Held(_))) => {}
            Some(Err(error)) => self.refused("taking a lock", &error),
        }
        None
    }

    fn hold(&self, guard: AnyGuard, mode: Mode, owner: u64) -> HeldLock {
        let token = guard.token();
        self.monitor.excuse(self.client);
        let pocket = Arc::new(Pocket::new(guard, self.plan.stubborn));
        let id = self.monitor.hold(Holding {
            client: self.client,
            key: self.key.clone(),
            mode,
            owner,
            capacity: self.plan.terms.capacity,
            kept: self.plan.kept(),
            guard: Arc::clone(&pocket) as Arc<dyn Watched>,
        });
        if self.monitor.notes {
            self.backend.note(format!("holds {mode:?} under {token}"));
        }
        let since = self.monitor.sim.elapsed();
        HeldLock { pocket, id, since }
    }

    /// Works for a while, and writes before and after; a careless worker does so even if its
    /// guard was lost.
    async fn work(&self, held: &HeldLock, validity: Valid) {
        held.pocket.set_in_use(true);
        self.write(held, validity).await;
        if self.draw(8) == 7
            && let Some(guard) = held.pocket.guard()
        {
            let began = self.monitor.watch(self.client);
            let asked = self.monitor.sim.elapsed();
            self.monitor.excuse(self.client);
            let renewed = guard.renew().await;
            self.monitor.excuse(self.client);
            let limit = Some(Duration::from_secs(1));
            self.monitor.took(self.client, began, limit, "renewing");
            match renewed {
                Ok(_) => self.monitor.answered(held.since, asked),
                Err(error) => self.lost(&error),
            }
        }
        self.sleep(self.span(self.pace())).await;
        if self.draw(16) == 15 {
            // Longer than a lease that is not renewed.
            self.monitor.look();
            self.sleep(self.plan.terms.lease * 3 / 2).await;
        }
        self.monitor.look();
        self.write(held, validity).await;
        held.pocket.set_in_use(false);
    }

    /// Sends a write to the resource; it arrives a little later.
    async fn write(&self, held: &HeldLock, validity: Valid) {
        let Some(guard) = held.pocket.guard() else {
            return;
        };
        let (token, sent_valid) = (guard.token(), guard.is_valid());
        if self.draw(4) == 3 {
            drop(guard);
            self.sleep(self.span(self.pace())).await;
        } else {
            drop(guard);
        }
        // The holder that was valid when it sent may be too late when the write arrives.
        let valid = validity == Valid::All
            && sent_valid
            && held.pocket.guard().is_some_and(|guard| guard.is_valid());
        let kind = self.plan.terms.kind;
        let effective = self.monitor.write(&self.key, token, valid, kind);
        if self.monitor.notes {
            let what = if effective { "writes" } else { "is refused" };
            self.backend.note(format!("{what} under {token}"));
        }
    }

    async fn convert(&self, held: &HeldLock) {
        let Some(guard) = held.pocket.take() else {
            return;
        };
        self.monitor.set_mode(held.id, Mode::Shared);
        match guard.convert().await {
            Ok(guard) => {
                let mode = match &guard {
                    AnyGuard::Read(_) => Mode::Shared,
                    AnyGuard::Mutex(_) | AnyGuard::Write(_) | AnyGuard::Permits(_) => {
                        Mode::Exclusive
                    }
                };
                held.pocket.put(guard);
                self.monitor.set_mode(held.id, mode);
                self.monitor.look();
            }
            Err(error) => {
                self.monitor.end(held.id);
                self.lost(&error);
            }
        }
    }

    /// Releases, drops, or begins to release and does not wait for it.
    async fn let_go(&self, held: HeldLock, may_cancel: bool) {
        self.monitor.look();
        self.monitor.end(held.id);
        let Some(guard) = held.pocket.guard() else {
            return;
        };
        drop(held);
        match self.draw(4) {
            0 | 1 => {
                let began = self.monitor.watch(self.client);
                let released = guard.release().await;
                let limit = Some(Duration::from_secs(3));
                self.monitor.took(self.client, began, limit, "releasing");
                if let Err(error) = released {
                    self.lost(&error);
                }
            }
            2 if may_cancel => {
                let soon = Some(Cancel::Polls(1 + self.draw(4)));
                drop(self.cancelled(guard.release(), soon).await);
            }
            _ => {}
        }
    }

    /// Notes what a guard was lost to.
    fn lost(&self, error: &Error) {
        match error {
            Error::Lost {
                reason: Loss::Deadline,
                ..
            } => self.monitor.reached(Situation::LostByDeadline),
            Error::Lost { .. } => self.monitor.reached(Situation::LostByWord),
            _ => {}
        }
        self.refused("holding a lock", error);
    }

    /// Errors that a working system gives nobody.
    fn refused(&self, doing: &str, error: &Error) {
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
        if !expected {
            self.monitor.broken("L4", format!("{doing}: {error}"));
        }
    }

    /// Runs a future until it ends, or is dropped.
    async fn cancelled<F: Future>(&self, future: F, cancel: Option<Cancel>) -> Option<F::Output> {
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

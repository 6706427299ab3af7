//! One handle type and one guard type for all kinds of locks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard as StdGuard, PoisonError};
use std::time::Duration;

use leasehold_api::{
    Error, Kind, Limits, LockClient, Mode, Mutex, MutexGuard, Outcome, PermitGuard, ReadGuard,
    RwLock, Semaphore, Upgrade, WriteGuard,
};

use crate::checker::TrackableGuard;
use crate::stress::plan::Terms;

/// How long a worker waits for a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitLimit {
    Try,
    Within(Duration),
    Forever,
}

/// A handle of any kind. A worker makes one for each round, and nests in it if it is reentrant.
#[derive(Clone, Debug)]
pub(crate) enum Handle {
    Mutex(Mutex),
    RwLock(RwLock),
    Semaphore(Semaphore),
}

/// Calls the method of a handle that fits the wait limit.
macro_rules! acquire {
    ($handle:ident, $wait_limit:ident, $guard:ident, $try:ident, $within:ident, $forever:ident) => {
        match $wait_limit {
            WaitLimit::Try => $handle.$try().await?.map(AnyGuard::$guard),
            WaitLimit::Within(time) => $handle.$within(time).await?.map(AnyGuard::$guard),
            WaitLimit::Forever => Outcome::Acquired(AnyGuard::$guard($handle.$forever().await?)),
        }
    };
}

impl Handle {
    /// Makes a handle on a key with these settings.
    pub(crate) fn new(locks: &LockClient, key: &str, terms: &Terms) -> Result<Self, Error> {
        let limits = Limits {
            holds: terms.holds,
            ..Limits::default()
        };
        macro_rules! with_terms {
            ($handle:expr, $variant:ident) => {{
                let handle = $handle.lease(terms.lease).limits(limits);
                Self::$variant(match terms.fixed {
                    true => handle.fixed_lease(),
                    false => handle,
                })
            }};
        }
        Ok(match (terms.kind, terms.reentrant) {
            (Kind::Mutex, false) => with_terms!(locks.mutex(key)?, Mutex),
            (Kind::Mutex, true) => with_terms!(locks.mutex(key)?.reentrant()?, Mutex),
            (Kind::RwLock, false) => with_terms!(locks.rw_lock(key)?, RwLock),
            (Kind::RwLock, true) => with_terms!(locks.rw_lock(key)?.reentrant()?, RwLock),
            (Kind::Semaphore, _) => with_terms!(locks.semaphore(key, terms.capacity)?, Semaphore),
        })
    }

    /// Sets the lease, and keeps the owner.
    pub(crate) fn with_lease(self, lease: Duration) -> Self {
        match self {
            Self::Mutex(handle) => Self::Mutex(handle.lease(lease)),
            Self::RwLock(handle) => Self::RwLock(handle.lease(lease)),
            Self::Semaphore(handle) => Self::Semaphore(handle.lease(lease)),
        }
    }

    /// Acquires the lock.
    pub(crate) async fn acquire(
        &self,
        mode: Mode,
        limit: WaitLimit,
    ) -> Result<Outcome<AnyGuard>, Error> {
        let reads = mode == Mode::Shared;
        Ok(match self {
            Self::Mutex(h) => acquire!(h, limit, Mutex, try_lock, try_lock_for, lock),
            Self::RwLock(h) if reads => acquire!(h, limit, Read, try_read, try_read_for, read),
            Self::RwLock(h) => acquire!(h, limit, Write, try_write, try_write_for, write),
            Self::Semaphore(h) => {
                let permits = match mode {
                    Mode::Permits(permits) => permits,
                    Mode::Exclusive | Mode::Shared => h.capacity(),
                };
                let h = h.permits(permits);
                acquire!(h, limit, Permits, try_acquire, try_acquire_for, acquire)
            }
        })
    }
}

/// A guard of any kind.
#[derive(Debug)]
pub(crate) enum AnyGuard {
    Mutex(MutexGuard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permits(PermitGuard),
}

/// Calls a method on a guard of any kind.
macro_rules! each {
    ($guard:expr, $name:ident => $call:expr) => {
        match $guard {
            AnyGuard::Mutex($name) => $call,
            AnyGuard::Read($name) => $call,
            AnyGuard::Write($name) => $call,
            AnyGuard::Permits($name) => $call,
        }
    };
}

impl AnyGuard {
    pub(crate) fn is_valid(&self) -> bool {
        each!(self, guard => guard.is_valid())
    }

    pub(crate) fn token(&self) -> u64 {
        each!(self, guard => guard.fencing_token().get())
    }

    /// Whether no other guard of the key shares its token, so that its user may read and then write.
    pub(crate) const fn is_exclusive(&self) -> bool {
        matches!(self, Self::Mutex(_) | Self::Write(_))
    }

    pub(crate) fn valid_for(&self) -> Duration {
        each!(self, guard => guard.valid_for())
    }

    pub(crate) async fn renew(&self) -> Result<Duration, Error> {
        each!(self, guard => guard.renew().await)
    }

    pub(crate) async fn release(&self) -> Result<(), Error> {
        each!(self, guard => guard.release().await)
    }

    /// Upgrades a read guard if it can, and downgrades a write guard. Returns other guards unchanged.
    pub(crate) async fn convert(self) -> Result<Self, Error> {
        Ok(match self {
            Self::Read(guard) => match guard.try_upgrade().await? {
                Upgrade::Upgraded(guard) => Self::Write(guard),
                Upgrade::NotSoleHolder(guard) => Self::Read(guard),
            },
            Self::Write(guard) => Self::Read(guard.downgrade().await?),
            other @ (Self::Mutex(_) | Self::Permits(_)) => other,
        })
    }
}

/// The validity of a guard that counts as valid only at this instant.
const THIS_INSTANT: Duration = Duration::from_nanos(1);

/// A worker's guard, shared with the checker. The slot is empty while the worker converts the guard.
#[derive(Debug)]
pub(crate) struct GuardSlot {
    guard: StdMutex<Option<Arc<AnyGuard>>>,
    /// Whether the user checks the guard only before its work. The guard then counts as valid until
    /// the work is done.
    stubborn: bool,
    /// Whether the user is working.
    in_use: AtomicBool,
}

impl GuardSlot {
    pub(crate) fn new(guard: AnyGuard, stubborn: bool) -> Self {
        Self {
            guard: StdMutex::new(Some(Arc::new(guard))),
            stubborn,
            in_use: AtomicBool::new(false),
        }
    }

    /// Records that the user begins or ends its work. It begins only if the guard is valid.
    pub(crate) fn set_in_use(&self, in_use: bool) {
        let valid = in_use && self.guard().is_some_and(|guard| guard.is_valid());
        self.in_use.store(valid, Ordering::Relaxed);
    }

    fn lock(&self) -> StdGuard<'_, Option<Arc<AnyGuard>>> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn put(&self, guard: AnyGuard) {
        *self.lock() = Some(Arc::new(guard));
    }

    pub(crate) fn guard(&self) -> Option<Arc<AnyGuard>> {
        self.lock().clone()
    }

    /// Takes the guard out. Returns `None` if someone else has it too.
    pub(crate) fn take(&self) -> Option<AnyGuard> {
        self.lock().take().and_then(Arc::into_inner)
    }
}

impl TrackableGuard for GuardSlot {
    fn valid_for(&self) -> Duration {
        let valid_for = self.guard().map(|guard| guard.valid_for());
        let valid_for = valid_for.unwrap_or_default();
        if self.stubborn && self.in_use.load(Ordering::Relaxed) {
            valid_for.max(THIS_INSTANT)
        } else {
            valid_for
        }
    }

    fn token(&self) -> u64 {
        self.guard().map_or(0, |guard| guard.token())
    }
}

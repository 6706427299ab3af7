//! Guards.

use std::time::Duration;

use crate::client::blocking::executor::wait;
use crate::client::error::{Error, Loss};
use crate::client::guard::{Guard as AsyncGuard, guard_kind};
use crate::id::{FencingToken, Key};

/// The guard of a [`Mutex`](super::Mutex).
pub type MutexGuard = Guard<guard_kind::Exclusive>;
/// The read guard of an [`RwLock`](super::RwLock).
pub type ReadGuard = Guard<guard_kind::Read>;
/// The write guard of an [`RwLock`](super::RwLock).
pub type WriteGuard = Guard<guard_kind::Write>;
/// The guard of permits of a [`Semaphore`](super::Semaphore).
pub type PermitGuard = Guard<guard_kind::Permits>;

/// A [guard](crate::Guard) whose calls block. A drop releases it in the background, and never blocks.
///
/// Nothing stops your code when the lock is lost: ask [`is_valid`](Self::is_valid) now and then, and claim what you
/// write with the [`fencing_token`](Self::fencing_token).
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, blocking};
/// # fn example(locks: blocking::LockClient) -> Result<(), Error> {
/// let guard = locks.mutex("invoice:42")?.lock()?;
/// println!("claim with token {}", guard.fencing_token());
/// guard.release()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a dropped guard releases its lock; bind it to a name such as `_guard`, not to `_`"]
pub struct Guard<K = guard_kind::Exclusive>(AsyncGuard<K>);

impl<K> From<AsyncGuard<K>> for Guard<K> {
    fn from(guard: AsyncGuard<K>) -> Self {
        Self(guard)
    }
}

impl<K> Guard<K> {
    /// Returns the async guard, for [`block_on`](super::block_on).
    ///
    /// # Examples
    /// `let reader = block_on(writer.into_async().downgrade())??;`
    pub fn into_async(self) -> AsyncGuard<K> {
        self.0
    }

    /// Returns the key of the lock.
    ///
    /// # Examples
    /// `guard.key().as_str()`
    pub fn key(&self) -> &Key {
        self.0.key()
    }

    /// Returns the fencing token. See [`Guard::fencing_token`](AsyncGuard::fencing_token).
    ///
    /// # Examples
    /// `guard.fencing_token().as_u64()`
    pub fn fencing_token(&self) -> FencingToken {
        self.0.fencing_token()
    }

    /// Returns `true` if you certainly hold the lock now.
    ///
    /// # Examples
    /// `while guard.is_valid() { next_step(); }`
    pub fn is_valid(&self) -> bool {
        self.0.is_valid()
    }

    /// Returns how long you certainly hold the lock from now on, without another renewal.
    ///
    /// # Examples
    /// `guard.valid_for() > Duration::from_secs(5)`
    pub fn valid_for(&self) -> Duration {
        self.0.valid_for()
    }

    /// Returns why the guard was lost, or `None` if it wasn't.
    ///
    /// # Examples
    /// `if let Some(loss) = guard.loss_reason() { … }`
    pub fn loss_reason(&self) -> Option<Loss> {
        self.0.loss_reason()
    }

    /// Renews the lease now. Returns [`valid_for`](Self::valid_for).
    ///
    /// # Errors
    /// Those of [`Guard::renew`](AsyncGuard::renew).
    ///
    /// # Examples
    /// `let left = guard.renew()?;`
    pub fn renew(&self) -> Result<Duration, Error> {
        wait(self.0.renew())
    }

    /// Releases the lock, and waits for the server to acknowledge it. You can repeat the call.
    ///
    /// # Errors
    /// Those of [`Guard::release`](AsyncGuard::release).
    ///
    /// # Examples
    /// `guard.release()?;`
    pub fn release(&self) -> Result<(), Error> {
        wait(self.0.release())
    }
}

//! The handles of locks.

use std::time::Duration;

use crate::client::blocking::executor::wait;
use crate::client::blocking::guard::{Guard, MutexGuard, PermitGuard, ReadGuard, WriteGuard};
use crate::client::error::Error;
use crate::client::handle::mutex::Mutex as AsyncMutex;
use crate::client::handle::rw_lock::RwLock as AsyncRwLock;
use crate::client::handle::semaphore::Semaphore as AsyncSemaphore;
use crate::client::outcome::Outcome;
use crate::client::state::settings::option_setters;
use crate::id::Key;

/// A [mutex](crate::Mutex) whose calls block.
///
/// # Examples
/// ```no_run
/// # use std::time::Duration;
/// # use leasehold_api::{Error, Outcome, blocking};
/// # fn example(locks: blocking::LockClient) -> Result<(), Error> {
/// let report = locks.mutex("report")?.lease(Duration::from_secs(10));
/// match report.try_lock_for(Duration::from_secs(5))? {
///     Outcome::Acquired(guard) => guard.release()?,
///     Outcome::Contended(contention) => println!("{contention}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    inner: AsyncMutex,
}

/// A [reader/writer lock](crate::RwLock) whose calls block.
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, blocking};
/// # fn example(locks: blocking::LockClient) -> Result<(), Error> {
/// let reader = locks.rw_lock("catalog")?.read()?;
/// reader.release()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    inner: AsyncRwLock,
}

/// A [semaphore](crate::Semaphore) whose calls block.
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, blocking};
/// # fn example(locks: blocking::LockClient) -> Result<(), Error> {
/// let permit = locks.semaphore("printers", 3)?.acquire()?;
/// permit.release()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    inner: AsyncSemaphore,
}

/// What the three handles share.
macro_rules! shared {
    ($inner:ty) => {
        pub(super) const fn new(inner: $inner) -> Self {
            Self { inner }
        }

        option_setters!(inner.lock.options);

        /// The key.
        pub const fn key(&self) -> &Key {
            &self.inner.lock.key
        }
    };
}

impl Mutex {
    shared!(AsyncMutex);

    /// Makes the handle reentrant. See [`Mutex::reentrant`](crate::Mutex::reentrant).
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the backend does not support it.
    pub fn reentrant(self) -> Result<Self, Error> {
        self.inner.reentrant().map(Self::new)
    }

    /// Locks the mutex. Waits without a time limit. See [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Errors
    /// Those of [`Mutex::lock`](crate::Mutex::lock), and [`Error::InvalidInput`](crate::Error::InvalidInput) in an async task.
    pub fn lock(&self) -> Result<MutexGuard, Error> {
        wait(self.inner.lock()).map(Guard::from)
    }

    /// Locks the mutex. Doesn't wait for a holder. See [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Errors
    /// Those of [`Mutex::try_lock`](crate::Mutex::try_lock), and
    /// [`Error::InvalidInput`](crate::Error::InvalidInput) in an async task.
    pub fn try_lock(&self) -> Result<Outcome<MutexGuard>, Error> {
        self.try_lock_for(Duration::ZERO)
    }

    /// Locks the mutex. Waits for at most `time`. See [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    ///
    /// # Errors
    /// Those of [`Mutex::try_lock_for`](crate::Mutex::try_lock_for), and
    /// [`Error::InvalidInput`](crate::Error::InvalidInput) in an async task.
    pub fn try_lock_for(&self, time: Duration) -> Result<Outcome<MutexGuard>, Error> {
        let outcome = wait(self.inner.try_lock_for(time))?;
        Ok(outcome.map(Guard::from))
    }
}

impl RwLock {
    shared!(AsyncRwLock);

    /// Makes the handle reentrant. See [`RwLock::reentrant`](crate::RwLock::reentrant).
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the backend does not support it.
    pub fn reentrant(self) -> Result<Self, Error> {
        self.inner.reentrant().map(Self::new)
    }

    /// Takes the lock for reading. Waits without a time limit. See [`RwLock::read`](crate::RwLock::read).
    ///
    /// # Errors
    /// Those of [`RwLock::read`](crate::RwLock::read), and [`Error::InvalidInput`](crate::Error::InvalidInput) in an async task.
    pub fn read(&self) -> Result<ReadGuard, Error> {
        wait(self.inner.read()).map(Guard::from)
    }

    /// Takes the lock for reading. Doesn't wait for a holder. See [`RwLock::try_read`](crate::RwLock::try_read).
    ///
    /// # Errors
    /// Those of [`RwLock::try_read`](crate::RwLock::try_read), and
    /// [`Error::InvalidInput`](crate::Error::InvalidInput) in an async task.
    pub fn try_read(&self) -> Result<Outcome<ReadGuard>, Error> {
        self.try_read_for(Duration::ZERO)
    }

    /// Takes the lock for reading. Waits for at most `time`. See [`RwLock::try_read_for`](crate::RwLock::try_read_for).
    ///
    /// # Errors
    /// Those of [`RwLock::try_read_for`](crate::RwLock::try_read_for), and
    /// [`Error::InvalidInput`](crate::Error::InvalidInput) in an async task.
    pub fn try_read_for(&self, time: Duration) -> Result<Outcome<ReadGuard>, Error> {
        let outcome = wait(self.inner.try_read_for(time))?;
        Ok(outcome.map(Guard::from))
    }

    /// Takes the lock for writing. Waits without a time limit. See [`RwLock::write`](crate::RwLock::write).
    ///
    /// # Errors
    /// Those of [`RwLock::write`](crate::RwLock::write), and [`Error::InvalidInput`](crate::Error::InvalidInput) in an async task.
    pub fn write(&self) -> Result<WriteGuard, Error> {
        wait(self.inner.write()).map(Guard::from)
    }

    /// Takes the lock for writing. Doesn't wait for a holder. See [`RwLock::try_write`](crate::RwLock::try_write).
    ///
    /// # Errors
    /// Those of [`RwLock::try_write`](crate::RwLock::try_write), and
    /// [`Error::InvalidInput`](crate::Error::InvalidInput) in an async task.
    pub fn try_write(&self) -> Result<Outcome<WriteGuard>, Error> {
        self.try_write_for(Duration::ZERO)
    }

    /// Takes the lock for writing. Waits for at most `time`. See [`RwLock::try_write_for`](crate::RwLock::try_write_for).
    ///
    /// # Errors
    /// Those of [`RwLock::try_write_for`](crate::RwLock::try_write_for), and
    /// [`Error::InvalidInput`](crate::Error::InvalidInput) in an async task.
    pub fn try_write_for(&self, time: Duration) -> Result<Outcome<WriteGuard>, Error> {
        let outcome = wait(self.inner.try_write_for(time))?;
        Ok(outcome.map(Guard::from))
    }
}

impl Semaphore {
    shared!(AsyncSemaphore);

    /// Returns a handle whose acquisitions take this number of permits. See [`Semaphore::permits`](crate::Semaphore::permits).
    #[must_use = "returns the handle with this setting"]
    pub fn permits(&self, permits: u32) -> Self {
        Self::new(self.inner.permits(permits))
    }

    /// Takes a permit, or as many as the handle says. Waits without a time limit. See [`Semaphore::acquire`](crate::Semaphore::acquire).
    ///
    /// # Errors
    /// Those of [`Semaphore::acquire`](crate::Semaphore::acquire), and [`Error::InvalidInput`](crate::Error::InvalidInput) in an async task.
    pub fn acquire(&self) -> Result<PermitGuard, Error> {
        wait(self.inner.acquire()).map(Guard::from)
    }

    /// Takes a permit, or as many as the handle says. Doesn't wait for a holder. See [`Semaphore::try_acquire`](crate::Semaphore::try_acquire).
    ///
    /// # Errors
    /// Those of [`Semaphore::try_acquire`](crate::Semaphore::try_acquire), and
    /// [`Error::InvalidInput`](crate::Error::InvalidInput) in an async task.
    pub fn try_acquire(&self) -> Result<Outcome<PermitGuard>, Error> {
        self.try_acquire_for(Duration::ZERO)
    }

    /// Takes a permit, or as many as the handle says. Waits for at most `time`. See [`Semaphore::try_acquire_for`](crate::Semaphore::try_acquire_for).
    ///
    /// # Errors
    /// Those of [`Semaphore::try_acquire_for`](crate::Semaphore::try_acquire_for), and
    /// [`Error::InvalidInput`](crate::Error::InvalidInput) in an async task.
    pub fn try_acquire_for(&self, time: Duration) -> Result<Outcome<PermitGuard>, Error> {
        let outcome = wait(self.inner.try_acquire_for(time))?;
        Ok(outcome.map(Guard::from))
    }
}

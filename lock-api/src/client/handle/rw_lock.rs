//! Reader/writer locks: many readers or one writer.

use std::time::Duration;

use crate::client::acquire::request::WaitLimit;
use crate::client::error::{Error, Outcome};
use crate::client::guard::{ReadGuard, WriteGuard};
use crate::client::handle::lock::Lock;
use crate::client::state::settings::option_setters;
use crate::request::Mode;

/// A reader/writer lock under a key: many readers or one writer at a time, wherever they run.
///
/// By default the order of arrival decides, so neither readers nor writers starve; see
/// [`policy`](Self::policy) for others. Overlapping readers share one fencing token.
///
/// A handle made by [`LockClient::reentrant_rw_lock`](crate::LockClient::reentrant_rw_lock) can be
/// locked again while it is held: a reader may read again, even past a waiting writer; a writer may
/// read or write again. Dropping its write guards while it keeps a read guard is a downgrade.
///
/// Asking for the write lock through a reentrant handle while it holds a read guard would wait
/// for itself and is refused ([`Refused::WouldDeadlock`](crate::Refused::WouldDeadlock)); use
/// [`ReadGuard::try_upgrade`]. A plain handle cannot know, and waits. Read guards that were dropped or
/// released do not count, even if the server has not been told yet.
///
/// ```no_run
/// # use leasehold_api::{Error, LockClient};
/// # use std::time::Duration;
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// let catalog = locks.rw_lock("catalog")?;
/// if let Some(pages) = catalog.read_within(Duration::from_secs(5)).await?.acquired() {
///     pages.release().await?;
/// }
/// let guard = catalog.write().await?;
/// let guard = guard.downgrade().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    pub(crate) lock: Lock,
}

impl RwLock {
    pub(crate) const fn new(lock: Lock) -> Self {
        Self { lock }
    }

    option_setters!();

    /// Takes the lock for reading, waiting for as long as it takes.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn read(&self) -> Result<ReadGuard, Error> {
        self.lock.wait_for(Mode::Shared).await
    }

    /// Takes the lock for reading if that is possible now.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Cancel safety
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_read(&self) -> Result<Outcome<ReadGuard>, Error> {
        self.lock.acquire(Mode::Shared, WaitLimit::Try).await
    }

    /// Takes the lock for reading, waiting for at most `time`.
    ///
    /// # Errors
    /// As [`Mutex::lock_within`](crate::Mutex::lock_within).
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn read_within(&self, time: Duration) -> Result<Outcome<ReadGuard>, Error> {
        self.lock
            .acquire(Mode::Shared, WaitLimit::Within(time))
            .await
    }

    /// Takes the lock for writing, waiting for as long as it takes.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn write(&self) -> Result<WriteGuard, Error> {
        self.lock.wait_for(Mode::Exclusive).await
    }

    /// Takes the lock for writing if it is free.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Cancel safety
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_write(&self) -> Result<Outcome<WriteGuard>, Error> {
        self.lock.acquire(Mode::Exclusive, WaitLimit::Try).await
    }

    /// Takes the lock for writing, waiting for at most `time`.
    ///
    /// # Errors
    /// As [`Mutex::lock_within`](crate::Mutex::lock_within).
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn write_within(&self, time: Duration) -> Result<Outcome<WriteGuard>, Error> {
        self.lock
            .acquire(Mode::Exclusive, WaitLimit::Within(time))
            .await
    }

    /// Takes the lock for reading, runs `body`, and releases it; the body is dropped if the lock
    /// is lost meanwhile.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`Error::Lost`].
    ///
    /// # Cancel safety
    /// As [`Mutex::with`](crate::Mutex::with).
    pub async fn read_with<T>(&self, body: impl AsyncFnOnce(&ReadGuard) -> T) -> Result<T, Error> {
        self.read().await?.run(body).await
    }

    /// Takes the lock for writing, runs `body`, and releases it; the body is dropped if the lock
    /// is lost meanwhile.
    ///
    /// # Errors
    /// As [`write`](Self::write), and [`Error::Lost`].
    ///
    /// # Cancel safety
    /// As [`Mutex::with`](crate::Mutex::with).
    pub async fn write_with<T>(
        &self,
        body: impl AsyncFnOnce(&WriteGuard) -> T,
    ) -> Result<T, Error> {
        self.write().await?.run(body).await
    }
}

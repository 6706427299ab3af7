//! The reader/writer lock handle.

use std::time::Duration;

use crate::client::error::Error;
use crate::client::guard::{ReadGuard, WriteGuard};
use crate::client::handle::lock::Lock;
use crate::client::outcome::Outcome;
use crate::client::state::settings::option_setters;
use crate::request::Mode;

/// A distributed reader/writer lock: many readers or one writer hold the key at a time, across all
/// processes.
///
/// [`LockClient::rw_lock`](crate::LockClient::rw_lock) makes a handle. The lock is granted in
/// order of arrival, so neither readers nor writers starve. Readers that overlap share one fencing
/// token.
///
/// # Reentrant handles
/// You can lock a [`reentrant`](Self::reentrant) handle again while it holds the lock. A reader can
/// read again, even past a waiting writer. A writer can read or write again. If you drop the write
/// guards and keep a read guard, you downgrade the lock.
///
/// If a reentrant handle holds a read guard and asks for the write lock, it would wait for itself.
/// The request is refused with [`Refused::WouldDeadlock`](crate::Refused::WouldDeadlock). Use
/// [`ReadGuard::try_upgrade`] instead. Read guards that you have dropped or released don't count,
/// even if the server does not know that yet. A plain handle cannot detect this case, and waits.
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockClient};
/// # use std::time::Duration;
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// let catalog = locks.rw_lock("catalog")?;
/// if let Some(reader) = catalog.try_read_for(Duration::from_secs(5)).await?.into_guard() {
///     reader.release().await?;
/// }
/// let writer = catalog.write().await?;
/// let reader = writer.downgrade().await?;
/// reader.release().await?;
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

    /// Makes the handle reentrant: it and its clones can lock the key again while they hold it.
    ///
    /// The handle and its clones are one owner. Another handle for the same key is another owner,
    /// reentrant or not, and an owner never spans processes. On a handle that is already reentrant,
    /// this changes nothing.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the backend does not support reentrancy, as
    /// [`Capabilities::reentrancy`](crate::Capabilities::reentrancy) says.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let tree = locks.rw_lock("tree")?.reentrant()?;
    /// let outer = tree.write().await?;
    /// let inner = tree.read().await?;
    /// inner.release().await?;
    /// outer.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn reentrant(self) -> Result<Self, Error> {
        Ok(Self::new(self.lock.reentrant()?))
    }

    /// Takes the lock for reading. Waits without a time limit, also through outages of the lock
    /// service.
    ///
    /// # Errors
    /// The same as [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// If you drop the future, the client leaves the queue in the background, or releases the lock
    /// if it was just granted.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let reader = locks.rw_lock("catalog")?.read().await?;
    /// reader.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn read(&self) -> Result<ReadGuard, Error> {
        self.lock.wait_for(Mode::Shared).await
    }

    /// Takes the lock for reading if no writer or waiter is in the way. Otherwise returns the
    /// holder and when to try again.
    ///
    /// The call takes at most one call timeout.
    ///
    /// # Errors
    /// The same as [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Cancel safety
    /// If you drop the future, the client releases the lock in the background if it was just
    /// granted.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// if let Some(reader) = locks.rw_lock("catalog")?.try_read().await?.into_guard() {
    ///     reader.release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_read(&self) -> Result<Outcome<ReadGuard>, Error> {
        self.try_read_for(Duration::ZERO).await
    }

    /// Takes the lock for reading. Waits for at most `time`.
    ///
    /// If `time` is zero, the call tries once and takes at most one call timeout.
    ///
    /// # Errors
    /// The same as [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    ///
    /// # Cancel safety
    /// If you drop the future, the client leaves the queue in the background, or releases the lock
    /// if it was just granted.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # use std::time::Duration;
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let catalog = locks.rw_lock("catalog")?;
    /// let outcome = catalog.try_read_for(Duration::from_secs(5)).await?;
    /// if let Some(reader) = outcome.into_guard() {
    ///     reader.release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_read_for(&self, time: Duration) -> Result<Outcome<ReadGuard>, Error> {
        self.lock.acquire_within(Mode::Shared, time).await
    }

    /// Takes the lock for writing. Waits without a time limit, also through outages of the lock
    /// service.
    ///
    /// # Errors
    /// The same as [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// If you drop the future, the client leaves the queue in the background, or releases the lock
    /// if it was just granted.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let writer = locks.rw_lock("catalog")?.write().await?;
    /// writer.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn write(&self) -> Result<WriteGuard, Error> {
        self.lock.wait_for(Mode::Exclusive).await
    }

    /// Takes the lock for writing if it is free. Otherwise returns the holder and when to try
    /// again.
    ///
    /// The call takes at most one call timeout.
    ///
    /// # Errors
    /// The same as [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Cancel safety
    /// If you drop the future, the client releases the lock in the background if it was just
    /// granted.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// if let Some(writer) = locks.rw_lock("catalog")?.try_write().await?.into_guard() {
    ///     writer.release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_write(&self) -> Result<Outcome<WriteGuard>, Error> {
        self.try_write_for(Duration::ZERO).await
    }

    /// Takes the lock for writing. Waits for at most `time`.
    ///
    /// If `time` is zero, the call tries once and takes at most one call timeout.
    ///
    /// # Errors
    /// The same as [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    ///
    /// # Cancel safety
    /// If you drop the future, the client leaves the queue in the background, or releases the lock
    /// if it was just granted.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # use std::time::Duration;
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let catalog = locks.rw_lock("catalog")?;
    /// let outcome = catalog.try_write_for(Duration::from_secs(5)).await?;
    /// if let Some(writer) = outcome.into_guard() {
    ///     writer.release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_write_for(&self, time: Duration) -> Result<Outcome<WriteGuard>, Error> {
        self.lock.acquire_within(Mode::Exclusive, time).await
    }
}

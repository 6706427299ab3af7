//! The mutex handle.

use std::time::Duration;

use crate::client::error::Error;
use crate::client::guard::MutexGuard;
use crate::client::handle::lock::Lock;
use crate::client::outcome::Outcome;
use crate::client::state::settings::option_setters;
use crate::request::Mode;

/// A distributed mutex: at most one owner holds the key at a time, across all processes.
///
/// [`LockClient::mutex`](crate::LockClient::mutex) makes a handle. A handle is cheap to make and to
/// clone, and making it does no I/O.
///
/// Each acquisition is a separate owner. If you hold the lock and lock it again, you wait for
/// yourself, unless the handle is reentrant.
///
/// # Reentrant handles
/// You can lock a [`reentrant`](Self::reentrant) handle again while it holds the lock. The handle
/// and its clones are one owner. You can release nested guards in any order. The lock is free when
/// the last of them is released.
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockClient};
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// let guard = locks.mutex("invoice:42")?.lock().await?;
/// println!("claim with token {}", guard.fencing_token());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// A handle can override the settings of the client:
///
/// ```no_run
/// # use std::time::Duration;
/// # use leasehold_api::{Error, LockClient};
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// let report = locks
///     .mutex("report")?
///     .lease(Duration::from_secs(10))
///     .max_hold(Duration::from_secs(600));
/// let guard = report.lock().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    pub(crate) lock: Lock,
}

impl Mutex {
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
    /// let mutex = locks.mutex("invoice:42")?.reentrant()?;
    /// let outer = mutex.lock().await?;
    /// let inner = mutex.lock().await?;
    /// inner.release().await?; // `outer` still holds the lock
    /// outer.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn reentrant(self) -> Result<Self, Error> {
        Ok(Self::new(self.lock.reentrant()?))
    }

    /// Locks the mutex. Waits without a time limit, also through outages of the lock service.
    ///
    /// To limit the wait, use [`try_lock_for`](Self::try_lock_for).
    ///
    /// # Errors
    /// Only errors that waiting cannot fix: [`Error::InvalidInput`] before any I/O,
    /// [`Error::Rejected`], [`Error::Refused`], [`Error::ForeignValue`], [`Error::Unsupported`]
    /// and [`Error::Closed`].
    ///
    /// # Cancel safety
    /// If you drop the future, the client leaves the queue in the background, or releases the lock
    /// if it was just granted.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.mutex("invoice:42")?.lock().await?;
    /// // … claim the resource with `guard.fencing_token()`, read, and write …
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lock(&self) -> Result<MutexGuard, Error> {
        self.lock.wait_for(Mode::Exclusive).await
    }

    /// Locks the mutex if it is free. If it isn't, returns the holder and when to try again.
    ///
    /// The call takes at most one call timeout. It retries during that time if the service cannot
    /// be reached.
    ///
    /// A lock prevents two processes from working at the same time. It does not prevent them from
    /// working one after the other: a process that calls `try_lock` after the release gets the
    /// lock. If a job must run only once, record that it is done.
    ///
    /// # Errors
    /// The same as [`lock`](Self::lock), and [`Error::Unavailable`] or [`Error::OutcomeUnknown`]
    /// if the service gave no answer.
    ///
    /// # Cancel safety
    /// If you drop the future, the client releases the lock in the background if it was just
    /// granted.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient, Outcome};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// match locks.mutex("thumbnails")?.try_lock().await? {
    ///     Outcome::Acquired(guard) => println!("acquired: {}", guard.fencing_token()),
    ///     Outcome::Contended(contention) => println!("{contention}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_lock(&self) -> Result<Outcome<MutexGuard>, Error> {
        self.try_lock_for(Duration::ZERO).await
    }

    /// Locks the mutex. Waits for at most `time`.
    ///
    /// If `time` is zero, the call tries once and takes at most one call timeout.
    ///
    /// # Errors
    /// The same as [`lock`](Self::lock), and [`Error::Unavailable`] or [`Error::OutcomeUnknown`]
    /// if the time ran out during an outage: the last call to the service failed, or got no answer
    /// within the call timeout.
    ///
    /// A `time` that is too short for an answer is no error: the call has timed out.
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
    /// let outcome = locks.mutex("invoice:42")?.try_lock_for(Duration::from_secs(5)).await?;
    /// if let Some(guard) = outcome.into_guard() {
    ///     guard.release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "timeout")]
    pub async fn try_lock_for(&self, time: Duration) -> Result<Outcome<MutexGuard>, Error> {
        self.lock.acquire_within(Mode::Exclusive, time).await
    }

    /// Locks the mutex, runs `body`, and releases the lock. To limit the wait, write
    /// `try_lock_for(time).await?.with(body)`.
    ///
    /// If the lock is lost before `body` completes, `body` is dropped at its current await point.
    /// When the call returns, the release has been acknowledged or goes on in the background.
    ///
    /// The call returns the output of `body`. If `body` returns a `Result`, you get a `Result`
    /// inside a `Result`.
    ///
    /// # Errors
    /// The same as [`lock`](Self::lock), and [`Error::Lost`] if the lock was lost before its release.
    /// `body` may have done a part of its work then, or all of it.
    ///
    /// # Cancel safety
    /// If you drop the future, `body` is dropped at its current await point, and the client
    /// releases the lock in the background. The call is cancel safe if `body` is.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let job = locks.mutex("job")?;
    /// let token = job.with(async |guard| guard.fencing_token()).await?;
    /// println!("done with token {token}");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn with<T>(&self, body: impl AsyncFnOnce(&MutexGuard) -> T) -> Result<T, Error> {
        self.lock().await?.with(body).await
    }
}

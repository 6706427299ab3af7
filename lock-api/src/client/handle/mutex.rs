//! Mutexes: one holder at a time.

use std::time::Duration;

use crate::client::acquire::request::WaitLimit;
use crate::client::error::{Error, Outcome};
use crate::client::guard::MutexGuard;
use crate::client::handle::lock::Lock;
use crate::client::state::settings::option_setters;
use crate::request::Mode;

/// A mutex under a key, held by at most one owner at a time, wherever it runs.
///
/// A handle is cheap to make and to clone, and does no I/O by itself.
///
/// Each acquisition is a separate owner: if you hold the lock and ask for it again, you wait for
/// yourself. A handle made by [`LockClient::reentrant_mutex`](crate::LockClient::reentrant_mutex)
/// can be locked again while it is held. The handle and its clones are the owner: two handles made
/// for one key are two owners, and an owner never crosses processes. Nested guards may be released
/// in any order; the lock is free when the last is gone.
///
/// ```no_run
/// # async fn example(locks: leasehold_api::LockClient) -> Result<(), leasehold_api::Error> {
/// let guard = locks.mutex("invoice:42")?.lock().await?;
/// println!("held under token {}", guard.fencing_token()?);
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

    /// Takes the lock, waiting for as long as it takes.
    ///
    /// Rides out outages of the lock service. To bound the wait use
    /// [`lock_within`](Self::lock_within).
    ///
    /// # Errors
    /// Only what waiting cannot mend: [`Error::InvalidInput`] (before any I/O),
    /// [`Error::Rejected`], [`Error::Refused`], [`Error::ForeignValue`], [`Error::Unsupported`],
    /// [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue, or the lock if it was just granted,
    /// in the background.
    pub async fn lock(&self) -> Result<MutexGuard, Error> {
        self.lock.wait_for(Mode::Exclusive).await
    }

    /// Takes the lock if it is free, and says who holds it if not.
    ///
    /// It keeps two from working at the same time, not from working one after the other: a
    /// second machine that asks after the release gets the lock. For a job that shall run once,
    /// write down that it was done.
    ///
    /// Takes at most one call time-out, during which it tries again if the service is not
    /// reached.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), and [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the
    /// service gave no answer.
    ///
    /// # Cancel safety
    /// Dropping the future gives the lock up in the background if it was just granted.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient, Outcome};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// match locks.mutex("thumbnails")?.try_lock().await? {
    ///     Outcome::Acquired(guard) => println!("ours: {}", guard.fencing_token()?),
    ///     Outcome::Held(held) => println!("come back in {:?}", held.retry_after),
    ///     Outcome::TimedOut(_) => unreachable!("try_lock does not wait"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_lock(&self) -> Result<Outcome<MutexGuard>, Error> {
        self.lock.acquire(Mode::Exclusive, WaitLimit::Try).await
    }

    /// Takes the lock, waiting for at most `time`. With a `time` of zero it tries once, for at
    /// most one call time-out.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), and [`Error::Unavailable`] or [`Error::OutcomeUnknown`] if the
    /// time was over during an outage, or before the first answer.
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    pub async fn lock_within(&self, time: Duration) -> Result<Outcome<MutexGuard>, Error> {
        self.lock
            .acquire(Mode::Exclusive, WaitLimit::Within(time))
            .await
    }

    /// Takes the lock, runs `body`, and releases the lock. If the lock is lost meanwhile the
    /// body is dropped at the await point where it stands.
    ///
    /// The lock is released, or its release queued, before this returns. What the body returns
    /// is passed on, so a body that can fail gives a `Result` inside this one.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), and [`Error::Lost`] if the lock was lost before the body ended.
    ///
    /// # Cancel safety
    /// As safe as `body` is; the lock is released in the background.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let job = locks.mutex("job")?;
    /// let token = job.with(async |guard| guard.fencing_token()).await??;
    /// # let _ = token;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn with<T>(&self, body: impl AsyncFnOnce(&MutexGuard) -> T) -> Result<T, Error> {
        self.lock().await?.run(body).await
    }
}

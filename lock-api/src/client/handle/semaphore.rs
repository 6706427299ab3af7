//! The semaphore handle.

use std::time::Duration;

use crate::client::error::Error;
use crate::client::guard::PermitGuard;
use crate::client::handle::lock::Lock;
use crate::client::outcome::Outcome;
use crate::client::state::settings::option_setters;
use crate::request::Mode;

/// A distributed semaphore: at most `capacity` permits are held at a time, across all processes.
///
/// [`LockClient::semaphore`](crate::LockClient::semaphore) makes a handle. While a key is in use,
/// all its users must name the same capacity. A request with another capacity is refused with
/// [`Refused::Mismatch`](crate::Refused::Mismatch).
///
/// Each acquisition takes one permit, unless the handle says [more](Self::permits), and is a separate
/// owner. Waiters are served in order, so a large request at the
/// head of the queue blocks smaller ones behind it.
///
/// Each acquisition has its own fencing token, unique and increasing in order of grant. With a
/// capacity above 1, the tokens don't tell which holder writes last.
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockClient};
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// let printers = locks.semaphore("printers", 3)?;
/// let permit = printers.acquire().await?;
/// permit.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    pub(crate) lock: Lock,
    permits: u32,
}

impl Semaphore {
    pub(crate) const fn new(lock: Lock) -> Self {
        Self { lock, permits: 1 }
    }

    option_setters!();

    /// Returns a handle whose acquisitions take this number of permits at once. Default: 1.
    ///
    /// An acquisition fails with [`Error::InvalidInput`] before any I/O if the number is 0 or greater
    /// than the capacity.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let printers = locks.semaphore("printers", 3)?;
    /// let two = printers.permits(2).acquire().await?; // both at once
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "acquire_many")]
    #[must_use = "returns another handle"]
    pub fn permits(&self, permits: u32) -> Self {
        let lock = self.lock.clone();
        Self { lock, permits }
    }

    /// Returns the number of permits that the semaphore has in total.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// assert_eq!(locks.semaphore("printers", 3)?.capacity(), 3);
    /// # Ok(())
    /// # }
    /// ```
    pub const fn capacity(&self) -> u32 {
        self.lock.spec.capacity()
    }

    /// Asks the server how many permits are free now.
    ///
    /// The answer is a snapshot for people and metrics. Another client may take the permits before
    /// you do, so don't decide by it whether to acquire: call [`try_acquire`](Self::try_acquire).
    ///
    /// Free permits are the capacity less all permits that are held or offered to a waiter. A dead
    /// holder counts until its lease ends. Permits may be free while others wait, because a large
    /// request at the head of the queue waits for more.
    ///
    /// # Errors
    /// - [`Error::InvalidInput`] before any I/O if an option of the handle is invalid.
    /// - [`Error::Refused`] with [`Refused::Mismatch`](crate::Refused::Mismatch) if the key is in use
    ///   with another capacity, or as another kind of lock. An acquisition would be refused too.
    /// - [`Error::Unsupported`] if the backend does not support
    ///   [inspection](crate::Capabilities::inspect).
    /// - [`Error::Unavailable`] if no answer came within one call timeout.
    /// - [`Error::Rejected`], [`Error::ForeignValue`] or [`Error::Closed`].
    ///
    /// # Cancel safety
    /// You can drop the future at any time, because the call changes nothing.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let printers = locks.semaphore("printers", 3)?;
    /// println!("{} of {} are free", printers.available_permits().await?, printers.capacity());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn available_permits(&self) -> Result<u32, Error> {
        self.lock.available().await
    }

    /// Takes a permit, or as many as the handle [says](Self::permits). Waits without a time limit, also
    /// through outages of the lock service.
    ///
    /// # Errors
    /// The same as [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// If you drop the future, the client leaves the queue in the background, or releases the
    /// permits if they were just granted.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let permit = locks.semaphore("printers", 3)?.acquire().await?;
    /// permit.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn acquire(&self) -> Result<PermitGuard, Error> {
        self.lock.wait_for(Mode::Permits(self.permits)).await
    }

    /// Takes a permit, or as many as the handle [says](Self::permits), if they are free. Otherwise
    /// returns the holder and when to try again.
    ///
    /// The call takes at most one call timeout.
    ///
    /// # Errors
    /// The same as [`acquire`](Self::acquire) and [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Cancel safety
    /// If you drop the future, the client releases the permits in the background if they were just
    /// granted.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let printers = locks.semaphore("printers", 3)?;
    /// match printers.try_acquire().await?.into_guard() {
    ///     Some(permit) => println!("printing with token {}", permit.fencing_token()),
    ///     None => println!("all printers are busy"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_acquire(&self) -> Result<Outcome<PermitGuard>, Error> {
        self.try_acquire_for(Duration::ZERO).await
    }

    /// Takes a permit, or as many as the handle [says](Self::permits). Waits for at most `time`.
    ///
    /// If `time` is zero, the call tries once and takes at most one call timeout.
    ///
    /// # Errors
    /// The same as [`acquire`](Self::acquire) and
    /// [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    ///
    /// # Cancel safety
    /// If you drop the future, the client leaves the queue in the background, or releases the
    /// permits if they were just granted.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # use std::time::Duration;
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let printers = locks.semaphore("printers", 3)?;
    /// let outcome = printers.try_acquire_for(Duration::from_secs(5)).await?;
    /// if let Some(permit) = outcome.into_guard() {
    ///     permit.release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "timeout")]
    pub async fn try_acquire_for(&self, time: Duration) -> Result<Outcome<PermitGuard>, Error> {
        let mode = Mode::Permits(self.permits);
        self.lock.acquire_within(mode, time).await
    }

    /// Takes a permit, or as many as the handle [says](Self::permits), runs `body`, and releases them.
    ///
    /// If the permits are lost before `body` completes, `body` is dropped at its current await
    /// point.
    ///
    /// # Errors
    /// The same as [`acquire`](Self::acquire), and [`Error::Lost`] if the permits were lost before
    /// their release. `body` may have done a part of its work then, or all of it.
    ///
    /// # Cancel safety
    /// If you drop the future, `body` is dropped at its current await point, and the client
    /// releases the permits in the background. The call is cancel safe if `body` is.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let printers = locks.semaphore("printers", 3)?;
    /// let token = printers.with(async |permit| permit.fencing_token()).await?;
    /// println!("printed with token {token}");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn with<T>(&self, body: impl AsyncFnOnce(&PermitGuard) -> T) -> Result<T, Error> {
        self.acquire().await?.with(body).await
    }
}

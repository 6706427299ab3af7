//! Semaphores: holders whose permits add up to at most the capacity.

use std::time::Duration;

use crate::client::acquire::request::WaitLimit;
use crate::client::error::{Error, Outcome};
use crate::client::guard::PermitGuard;
use crate::client::handle::lock::Lock;
use crate::client::state::settings::option_setters;
use crate::request::Mode;

/// A semaphore under a key: at most so many permits are held at a time, wherever their holders
/// run.
///
/// Everyone who uses a key must give it the same capacity while it is in use; another one is
/// [`Refused::Mismatch`](crate::Refused::Mismatch). Each acquisition is an owner of its own.
/// Waiters are served in order, so a large request at the head of the queue holds smaller ones
/// up. The tokens of a semaphore of more than one permit are unique and increasing, but promise
/// no order among its holders.
///
/// ```no_run
/// # async fn example(locks: leasehold_api::LockClient) -> Result<(), leasehold_api::Error> {
/// let permit = locks.semaphore("printers", 3)?.acquire(1).await?;
/// permit.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    pub(crate) lock: Lock,
}

impl Semaphore {
    pub(crate) const fn new(lock: Lock) -> Self {
        Self { lock }
    }

    option_setters!();

    /// How many permits there are.
    pub const fn capacity(&self) -> u32 {
        self.lock.permits()
    }

    /// Takes `permits`, waiting for as long as it takes.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] for 0 permits or more than there are, before any I/O; else as
    /// [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn acquire(&self, permits: u32) -> Result<PermitGuard, Error> {
        self.lock.wait_for(Mode::Permits(permits)).await
    }

    /// Takes `permits` if they are free.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and as [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Cancel safety
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_acquire(&self, permits: u32) -> Result<Outcome<PermitGuard>, Error> {
        self.lock
            .acquire(Mode::Permits(permits), WaitLimit::Try)
            .await
    }

    /// Takes `permits`, waiting for at most `time`.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and as
    /// [`Mutex::lock_within`](crate::Mutex::lock_within).
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn acquire_within(
        &self,
        permits: u32,
        time: Duration,
    ) -> Result<Outcome<PermitGuard>, Error> {
        self.lock
            .acquire(Mode::Permits(permits), WaitLimit::Within(time))
            .await
    }

    /// Takes `permits`, runs `body`, and gives them back; the body is dropped if they are lost
    /// meanwhile.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`Error::Lost`].
    ///
    /// # Cancel safety
    /// As [`Mutex::with`](crate::Mutex::with).
    pub async fn with<T>(
        &self,
        permits: u32,
        body: impl AsyncFnOnce(&PermitGuard) -> T,
    ) -> Result<T, Error> {
        self.acquire(permits).await?.run(body).await
    }
}

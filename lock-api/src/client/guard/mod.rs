//! Guards: what a user holds while a lock is held.

pub(crate) mod convert;
pub(crate) mod multi;

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::time::Duration;

use crate::client::error::{Error, Loss, ReleaseOutcome};
use crate::client::hold::Hold;
use crate::client::state::holder::Validity;
use crate::id::{FencingToken, Key};

/// Kinds of guard; see [`Guard`].
pub(crate) mod kind {
    /// Guards of a mutex.
    #[derive(Debug)]
    pub enum Exclusive {}
    /// Read guards of a reader/writer lock.
    #[derive(Debug)]
    pub enum Read {}
    /// Write guards of a reader/writer lock.
    #[derive(Debug)]
    pub enum Write {}
    /// Guards of a semaphore.
    #[derive(Debug)]
    pub enum Permits {}
}

/// Guard of a [`Mutex`](crate::Mutex).
pub type MutexGuard = Guard<kind::Exclusive>;
/// Read guard of an [`RwLock`](crate::RwLock).
pub type ReadGuard = Guard<kind::Read>;
/// Write guard of an [`RwLock`](crate::RwLock).
pub type WriteGuard = Guard<kind::Write>;
/// Guard of a [`Semaphore`](crate::Semaphore).
pub type PermitGuard = Guard<kind::Permits>;

/// A lock that is held, until the guard is released, dropped or lost.
///
/// A guard says for how long the lock is certainly held: up to its *local deadline*, which lies
/// before the end of the lease on the server and moves on with each renewal. Once it has passed,
/// or the server has said that the hold is gone, the guard is **lost**, for good. Renewal goes on
/// in the background unless the handle says [`fixed_lease`](crate::Mutex::fixed_lease).
///
/// Being valid is a statement about the past: a program may be paused between asking and
/// writing. Send the [`fencing_token`](Self::fencing_token) with each write to what the lock
/// protects, and let that refuse every token lower than the highest it has accepted.
///
/// All guards of one holder (nested holds of a reentrant handle) share one token and one
/// deadline, and may be released in any order.
///
/// # Dropping
/// A dropped guard is released in the background by a task of its client. Dropping never blocks,
/// spawns or panics, inside or outside of an async runtime. If the program ends before that task
/// has run, the lock stays held until its lease is over; [`release`](Self::release), or
/// [`LockClient::shutdown`](crate::LockClient::shutdown) at the end of the program, avoids that.
///
/// What the program asks for next may reach the server before that release: a `try_lock` right
/// after a drop is mostly told that the lock is held. Await [`release`](Self::release) where the
/// next step depends on it.
#[must_use = "a guard that is dropped releases its lock"]
pub struct Guard<K> {
    pub(crate) hold: Hold,
    kind: PhantomData<fn() -> K>,
}

impl<K> fmt::Debug for Guard<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("key", self.key())
            .field("token", &self.fencing_token().ok())
            .field("valid_for", &self.valid_for())
            .finish_non_exhaustive()
    }
}

impl<K> Guard<K> {
    pub(crate) const fn new(hold: Hold) -> Self {
        Self {
            hold,
            kind: PhantomData,
        }
    }

    /// The key that is held.
    pub fn key(&self) -> &Key {
        &self.hold.holder.key
    }

    /// The token to send with every write to what the lock protects.
    ///
    /// It stays readable after the guard was lost or released. It may grow while the guard is
    /// held: by a conversion, or for a reader when a later group of readers had to be numbered
    /// anew.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the backend has no
    /// [`fencing_tokens`](crate::Capabilities::fencing_tokens), and never otherwise. All of
    /// leasehold's own backends have them.
    pub fn fencing_token(&self) -> Result<FencingToken, Error> {
        self.hold.fencing_token()
    }

    /// Whether the lock is certainly held now.
    pub fn is_valid(&self) -> bool {
        matches!(self.hold.validity(), Validity::ValidUntil(_))
    }

    /// How long the lock is certainly held from now on, without any renewal to come; zero once
    /// the guard is lost or released.
    pub fn valid_for(&self) -> Duration {
        self.hold.check().unwrap_or_default()
    }

    /// Ends when the guard is lost, with the reason. Never ends if the guard is released or
    /// dropped first.
    ///
    /// The future does not borrow the guard.
    ///
    /// # Cancel safety
    /// It may be dropped and asked for again at any time.
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + 'static + use<K> {
        self.hold.lost()
    }

    /// Renews the lease now, and returns [`valid_for`](Self::valid_for).
    ///
    /// Background renewal does this by itself; it is of use with a fixed lease, or before a step
    /// that needs more time than is left.
    ///
    /// # Errors
    /// [`Error::Lost`] if the guard is lost, [`Error::Released`] if it was released. A transient
    /// error is no loss: the guard is valid as long as it was before.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing; the lease may have been renewed or not.
    pub async fn renew(&self) -> Result<Duration, Error> {
        self.hold.renew().await
    }

    /// Releases the lock and reports what that came to.
    ///
    /// Ends after at most three call time-outs. Calling it again reports the same.
    ///
    /// # Errors
    /// If the server did not acknowledge the release in that time it goes on in the background,
    /// and the lease bounds it.
    ///
    /// # Cancel safety
    /// Once the future was polled the release goes on in the background, even if the future is
    /// dropped.
    pub async fn release(&self) -> Result<ReleaseOutcome, Error> {
        self.hold.release().await
    }

    /// Runs a future for as long as the guard is valid: if the guard is lost first, the future
    /// is dropped at the await point where it stands.
    ///
    /// # Errors
    /// [`Error::Lost`] if the guard was lost before the future ended, [`Error::Released`] if it
    /// was released before the call.
    ///
    /// # Cancel safety
    /// As safe as `body` is.
    pub async fn protect<F: Future>(&self, body: F) -> Result<F::Output, Error> {
        self.hold.protect(body).await
    }
}

impl<K> Guard<K> {
    /// Runs `body` under the guard and then releases it.
    pub(crate) async fn run<T>(self, body: impl AsyncFnOnce(&Self) -> T) -> Result<T, Error> {
        // A lost guard is only dropped: its end is queued, and the caller learns of the loss now.
        let output = self.protect(body(&self)).await?;
        // What the body came to counts; a release without an answer goes on in the background.
        drop(self.release().await);
        Ok(output)
    }
}

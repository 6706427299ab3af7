//! The guards of held locks.

#[cfg(feature = "tokio-util")]
mod cancellation;
pub(crate) mod convert;
pub(crate) mod multi;

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::time::Duration;

use crate::client::error::{Error, Loss};
use crate::client::hold::Hold;
use crate::client::outcome::Outcome;
use crate::client::state::holder::Validity;
use crate::id::{FencingToken, Key};

/// Kinds of guard. See [`Guard`].
pub(crate) mod guard_kind {
    /// The kind of a [`MutexGuard`](crate::MutexGuard).
    #[derive(Debug)]
    pub enum Exclusive {}
    /// The kind of a [`ReadGuard`](crate::ReadGuard).
    #[derive(Debug)]
    pub enum Read {}
    /// The kind of a [`WriteGuard`](crate::WriteGuard).
    #[derive(Debug)]
    pub enum Write {}
    /// The kind of a [`PermitGuard`](crate::PermitGuard).
    #[derive(Debug)]
    pub enum Permits {}
}

/// The guard of a [`Mutex`](crate::Mutex).
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockClient, MutexGuard};
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// let guard: MutexGuard = locks.mutex("invoice:42")?.lock().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
pub type MutexGuard = Guard<guard_kind::Exclusive>;
/// The read guard of an [`RwLock`](crate::RwLock).
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockClient, ReadGuard};
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// let guard: ReadGuard = locks.rw_lock("catalog")?.read().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
pub type ReadGuard = Guard<guard_kind::Read>;
/// The write guard of an [`RwLock`](crate::RwLock).
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockClient, WriteGuard};
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// let guard: WriteGuard = locks.rw_lock("catalog")?.write().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
pub type WriteGuard = Guard<guard_kind::Write>;
/// The guard of permits of a [`Semaphore`](crate::Semaphore).
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockClient, PermitGuard};
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// let guard: PermitGuard = locks.semaphore("printers", 3)?.acquire().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
pub type PermitGuard = Guard<guard_kind::Permits>;

/// A guard of a held lock. It holds the lock until it is released, dropped or lost.
///
/// Its typed forms are [`MutexGuard`], [`ReadGuard`], [`WriteGuard`] and [`PermitGuard`]. `Guard` without a
/// parameter is the guard of a mutex. A function for guards of any kind has a parameter:
/// `async fn write<K>(guard: &Guard<K>)`.
///
/// # Validity
/// A guard has a **local deadline**. You certainly hold the lock until then. The deadline is never
/// later than the end of the lease on the server, and each renewal moves it. Once it passes, or
/// the server reports that the hold is gone, the guard is **lost**, and it stays lost. The client
/// renews the lease in the background, unless the handle has a
/// [`fixed_lease`](crate::Mutex::fixed_lease).
///
/// A check of the guard describes the past: the operating system may pause your program between
/// the check and the next write. Claim the resource that the lock protects with the
/// [`fencing_token`](Self::fencing_token) before you read it: the resource stores the token, unless it has a higher
/// one. Then send the token with each write. The resource must refuse a write unless it has this very token.
///
/// The nested guards of a reentrant handle share one token and one deadline, also if some of them
/// have a fixed lease. Only a [`max_hold`](crate::Mutex::max_hold) ends its guard alone. You can
/// release nested guards in any order.
///
/// # Dropping
/// The client releases a dropped guard in the background. A drop never blocks, spawns or panics,
/// inside or outside an async runtime. If the program ends before the background task runs, the
/// lock stays held until its lease expires. To avoid that, call [`release`](Self::release), or call
/// [`LockClient::shutdown`](crate::LockClient::shutdown) at the end of the program.
///
/// Your next request may reach the server before the release of a dropped guard. For example, a
/// `try_lock` right after a drop usually finds the lock held. If the next step depends on the
/// release, await [`release`](Self::release). If you lock the same key as another kind of lock, the
/// client waits for the release by itself.
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
#[must_use = "a dropped guard releases its lock; bind it to a name such as `_guard`, not to `_`"]
pub struct Guard<K = guard_kind::Exclusive> {
    pub(crate) hold: Hold,
    kind: PhantomData<fn() -> K>,
}

impl<K> fmt::Debug for Guard<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("key", self.key())
            .field("token", &self.fencing_token())
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

    /// Returns the key of the lock.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.mutex("invoice:42")?.lock().await?;
    /// assert_eq!(guard.key().as_str(), "invoice:42");
    /// # Ok(())
    /// # }
    /// ```
    pub fn key(&self) -> &Key {
        &self.hold.holder.key
    }

    /// Returns the fencing token. Claim the resource that the lock protects with it before you read, and send it
    /// with every write.
    ///
    /// You can read the token after the guard was lost or released. The token may grow while you
    /// hold the guard: when you convert the guard, or when the server loses the token of
    /// overlapping readers and gives them a new one.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.mutex("invoice:42")?.lock().await?;
    /// println!("claim with token {}", guard.fencing_token());
    /// # Ok(())
    /// # }
    /// ```
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.token()
    }

    /// Returns `true` if you certainly hold the lock now.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.mutex("invoice:42")?.lock().await?;
    /// if !guard.is_valid() {
    ///     println!("the lock was lost");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_valid(&self) -> bool {
        matches!(self.hold.validity(), Validity::Valid(_))
    }

    /// Returns how long you certainly hold the lock from now on, without another renewal.
    ///
    /// Returns zero after a loss or a release.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # use std::time::Duration;
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.mutex("invoice:42")?.lock().await?;
    /// if guard.valid_for() < Duration::from_secs(5) {
    ///     guard.renew().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "deadline")]
    #[doc(alias = "remaining")]
    pub fn valid_for(&self) -> Duration {
        self.hold.check().unwrap_or_default()
    }

    /// Returns a future that completes with the reason when the guard is lost.
    ///
    /// The future never completes if you release or drop the guard first. It does not borrow the
    /// guard.
    ///
    /// # Cancel safety
    /// This method is cancel safe. You can drop the future and call the method again at any time.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.mutex("invoice:42")?.lock().await?;
    /// let loss = guard.lost().await;
    /// println!("stop the work: {loss}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn lost(&self) -> impl Future<Output = Loss> + Send + 'static + use<K> {
        self.hold.lost()
    }

    /// Returns a future that completes when no more than `margin` of validity is left, unless a
    /// renewal comes first. It completes with the time that is left: at most `margin`, and zero after a
    /// loss.
    ///
    /// Await it if your work needs time to stop before the lock can go to another holder. A renewal that
    /// succeeds moves the deadline, and the future waits on. So it completes only if renewals fail, if
    /// the lease is fixed, or near the end of a [`max_hold`](crate::Mutex::max_hold). A lease is renewed
    /// after each third of it. So choose a margin of less than half of the lease: with two thirds or
    /// more, the future completes although all is well.
    ///
    /// A guard that had to wait begins with 5 s at most. That doesn't count until its first renewal had time for an answer:
    /// at most 1.1 s.
    ///
    /// After a loss without a warning, such as a forced release, the future completes at once, with
    /// zero. It never completes if you release or drop the guard first. It does not borrow the guard.
    ///
    /// # Cancel safety
    /// This method is cancel safe. You can drop the future and call the method again at any time.
    ///
    /// # Examples
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// async fn stop_the_work() { /* … */ }
    ///
    /// let guard = locks.mutex("invoice:42")?.lock().await?;
    /// let left = guard.expiring(Duration::from_secs(2)).await;
    /// println!("{left:?} left to stop");
    /// stop_the_work().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn expiring(
        &self,
        margin: Duration,
    ) -> impl Future<Output = Duration> + Send + 'static + use<K> {
        self.hold.expiring(margin)
    }

    /// Returns why the guard was lost, or `None` if it wasn't: you hold the lock, or the guard was
    /// released first.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.mutex("invoice:42")?.lock().await?;
    /// if let Some(loss) = guard.loss_reason() {
    ///     println!("stop the work: {loss}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "is_lost")]
    pub fn loss_reason(&self) -> Option<Loss> {
        self.hold.loss()
    }

    /// Renews the lease now. Returns [`valid_for`](Self::valid_for).
    ///
    /// The client renews leases in the background, so you rarely need this. Use it with a fixed
    /// lease, or before a step that needs more time than is left. The call takes at most one call
    /// timeout.
    ///
    /// # Errors
    /// - [`Error::Lost`] if the guard was lost.
    /// - [`Error::Released`] if the guard was released.
    /// - Any other error is not a loss: the guard stays valid at least as long as before.
    ///
    /// # Cancel safety
    /// If you drop the future, the lease may or may not be renewed. The guard stays valid at least
    /// as long as before.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let report = locks.mutex("report")?.fixed_lease();
    /// let guard = report.lock().await?;
    /// let time_left = guard.renew().await?;
    /// println!("valid for {time_left:?}");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn renew(&self) -> Result<Duration, Error> {
        self.hold.renew().await
    }

    /// Releases the lock and waits for the server to acknowledge it.
    ///
    /// The call takes at most three call timeouts. You can repeat it, and you get the latest result.
    ///
    /// # Errors
    /// - [`Error::Lost`] if the server no longer had the lock, and another owner may have it by now. Work
    ///   after the loss was not protected.
    /// - [`Error::OutcomeUnknown`] or [`Error::Unavailable`] if the server did not acknowledge the
    ///   release in time.
    /// - [`Error::Rejected`], at once, if the server refuses it, for example after its password was changed.
    ///
    /// After these three the release goes on in the background until the lease is over, and you can call this method
    /// again to hear its result. Other errors are final.
    ///
    /// With any error, the lock is free at the latest when its lease expires.
    ///
    /// # Cancel safety
    /// The first poll of the future begins the release. If you drop the future after that, the
    /// release goes on in the background.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.mutex("invoice:42")?.lock().await?;
    /// match guard.release().await {
    ///     Err(Error::Lost { reason, .. }) => println!("the work was not protected: {reason}"),
    ///     released => released?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "unlock")]
    pub async fn release(&self) -> Result<(), Error> {
        self.hold.release().await
    }

    /// Returns how many holds of the owner are left after the release of this guard: 0, unless its handle is
    /// reentrant. `None` before the release is acknowledged, and if its answer was lost.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let tree = locks.mutex("tree")?.reentrant()?;
    /// let (outer, inner) = (tree.lock().await?, tree.lock().await?);
    /// inner.release().await?;
    /// assert_eq!(inner.holds_left(), Some(1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn holds_left(&self) -> Option<u32> {
        self.hold.holds_left()
    }

    /// Runs `body` while the guard is valid. If the guard is lost first, `body` is dropped at its
    /// current await point. Tasks that it has spawned go on: keep them in a `JoinSet` of `body`.
    ///
    /// # Errors
    /// - [`Error::Lost`] if the guard was lost before `body` completed.
    /// - [`Error::Released`] if the guard was released before the call.
    ///
    /// # Cancel safety
    /// If you drop the future, `body` is dropped at its current await point. The call is cancel
    /// safe if `body` is.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// async fn send_invoice() { /* … */ }
    ///
    /// let guard = locks.mutex("invoice:42")?.lock().await?;
    /// guard.protect(send_invoice()).await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn protect<F: Future>(&self, body: F) -> Result<F::Output, Error> {
        self.hold.protect(body).await
    }
}

impl<K> Guard<K> {
    /// Runs `body` while the guard is valid, then releases the guard. If the guard is lost before `body` completes,
    /// `body` is dropped at its current await point.
    ///
    /// When the call returns, the release has been acknowledged or goes on in the background.
    ///
    /// # Errors
    /// - [`Error::Lost`] if the lock was lost before its release. `body` may have done a part of its work then, or all of
    ///   it.
    /// - [`Error::Released`] if the guard was released before the call.
    ///
    /// # Cancel safety
    /// If you drop the future, `body` is dropped at its current await point, and the client releases the lock in the
    /// background. The call is cancel safe if `body` is.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let reading = locks.rw_lock("catalog")?.read().await?;
    /// let token = reading.with(async |guard| guard.fencing_token()).await?;
    /// println!("done with token {token}");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn with<T>(self, body: impl AsyncFnOnce(&Self) -> T) -> Result<T, Error> {
        // After a loss, the drop queues the release, and the caller gets the error at once.
        let output = self.protect(body(&self)).await?;
        // A release without an answer goes on in the background.
        match self.release().await {
            Err(lost @ Error::Lost { .. }) => Err(lost),
            _ => Ok(output),
        }
    }
}

impl<K> Outcome<Guard<K>> {
    /// Runs `body` with the guard, if there is one, then releases it, like [`Guard::with`]. Otherwise returns the
    /// contention, and `body` is not run.
    ///
    /// # Errors
    /// Those of [`Guard::with`].
    ///
    /// # Cancel safety
    /// As [`Guard::with`].
    ///
    /// # Examples
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold_api::{Error, LockClient, Outcome};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let job = locks.mutex("job")?.try_lock_for(Duration::from_secs(5)).await?;
    /// match job.with(async |_guard| println!("working")).await? {
    ///     Outcome::Acquired(()) => println!("done"),
    ///     Outcome::Contended(contention) => println!("{contention}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn with<T>(
        self,
        body: impl AsyncFnOnce(&Guard<K>) -> T,
    ) -> Result<Outcome<T>, Error> {
        match self {
            Self::Acquired(guard) => guard.with(body).await.map(Outcome::Acquired),
            Self::Contended(contention) => Ok(Outcome::Contended(contention)),
        }
    }
}

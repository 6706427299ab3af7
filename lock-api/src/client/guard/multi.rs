//! The guard of several keys that were locked together.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::client::error::{Error, Loss};
use crate::client::hold::{
    Hold, first_expiring, first_lost, release_all, renew_all, run_until_lost,
};
use crate::client::outcome::Outcome;
use crate::error::InvalidInput;
use crate::id::{FencingToken, Key};

/// A guard of several locks. **The loss of one lock is the loss of all.**
///
/// [`MultiLock::lock`](crate::MultiLock::lock) returns it. The guard holds the locks until it is
/// released, dropped or lost.
///
/// Each key has a separate fencing token. Before you read, claim each resource with the token of the key that
/// protects it, and send the token with each write; see [`FencingToken`]. Renewal, deadlines and dropping work
/// as described for [`Guard`](crate::Guard). The keys of one client share renewal batches.
///
/// After a loss, the other keys stay locked until you drop or release the guard. That gives you
/// time to stop your work before another owner gets them.
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockClient};
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// let guard = locks.lock_all(["account:3", "account:7"]).await?;
/// for (key, token) in guard.fencing_tokens() {
///     println!("claim {key} with token {token}, before reading");
/// }
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a dropped guard releases its locks; bind it to a name such as `_guard`, not to `_`"]
pub struct MultiGuard {
    /// Sorted by key. Never empty.
    pub(super) holds: Vec<Hold>,
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiGuard")
            .field("tokens", &self.fencing_tokens().collect::<Vec<_>>())
            .field("valid_for", &self.valid_for())
            .finish()
    }
}

impl MultiGuard {
    pub(crate) const fn new(holds: Vec<Hold>) -> Self {
        Self { holds }
    }

    /// Returns the keys in the order in which they were locked.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.lock_all(["account:3", "account:7"]).await?;
    /// assert_eq!(guard.keys().len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &Key> {
        self.holds.iter().map(|hold| &hold.holder.key)
    }

    /// Returns the fencing token of `key`. Claim the resource that `key` protects with it before you read, and send it
    /// with every write.
    ///
    /// See [`Guard::fencing_token`](crate::Guard::fencing_token).
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if `key` is not one of the guard's keys.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.lock_all(["account:3", "account:7"]).await?;
    /// let token = guard.fencing_token("account:3")?;
    /// println!("claim account 3 with token {token}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn fencing_token(&self, key: impl AsRef<str>) -> Result<FencingToken, Error> {
        let name = key.as_ref();
        let mut holds = self.holds.iter();
        match holds.find(|hold| hold.holder.key.as_str() == name) {
            Some(hold) => Ok(hold.token()),
            None => {
                let problem = InvalidInput::new("the guard does not hold it");
                Err(problem.on(&Key::new(name)?))
            }
        }
    }

    /// Returns each key with its fencing token, in the order in which the keys were locked.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.lock_all(["account:3", "account:7"]).await?;
    /// for (key, token) in guard.fencing_tokens() {
    ///     println!("{key}: {token}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn fencing_tokens(&self) -> impl ExactSizeIterator<Item = (&Key, FencingToken)> {
        let holds = self.holds.iter();
        holds.map(|hold| (&hold.holder.key, hold.token()))
    }

    /// Returns `true` if you certainly hold all keys now.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.lock_all(["account:3", "account:7"]).await?;
    /// if !guard.is_valid() {
    ///     println!("a lock was lost");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_valid(&self) -> bool {
        self.check().is_ok()
    }

    /// Returns how long you certainly hold all keys from now on, without another renewal.
    ///
    /// Returns zero after a loss or a release.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.lock_all(["account:3", "account:7"]).await?;
    /// println!("all keys are valid for {:?}", guard.valid_for());
    /// # Ok(())
    /// # }
    /// ```
    pub fn valid_for(&self) -> Duration {
        self.check().unwrap_or_default()
    }

    /// Returns the shortest time left, or why there is none.
    fn check(&self) -> Result<Duration, Error> {
        shortest(self.holds.iter().map(Hold::check))
    }

    /// Returns a future that completes when one of the keys is lost, with that key and the reason.
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
    /// let guard = locks.lock_all(["account:3", "account:7"]).await?;
    /// let (key, loss) = guard.lost().await;
    /// println!("stop the work: {key} was lost: {loss}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn lost(&self) -> impl Future<Output = (Key, Loss)> + Send + 'static + use<> {
        first_lost(&self.holds)
    }

    /// Returns a future that completes when no more than `margin` of validity is left for one of the
    /// keys, unless a renewal comes first. It completes with the time that is left: at most `margin`, and
    /// zero after a loss.
    ///
    /// See [`Guard::expiring`](crate::Guard::expiring).
    ///
    /// # Cancel safety
    /// This method is cancel safe. You can drop the future and call the method again at any time.
    ///
    /// # Examples
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.lock_all(["account:3", "account:7"]).await?;
    /// let left = guard.expiring(Duration::from_secs(2)).await;
    /// println!("{left:?} left to stop");
    /// # Ok(())
    /// # }
    /// ```
    pub fn expiring(
        &self,
        margin: Duration,
    ) -> impl Future<Output = Duration> + Send + 'static + use<> {
        first_expiring(&self.holds, margin)
    }

    /// Returns the first key that was lost, and why. `None` if no key was lost: you hold all keys, or
    /// the guard was released first.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.lock_all(["account:3", "account:7"]).await?;
    /// if let Some((key, loss)) = guard.loss_reason() {
    ///     println!("stop the work: {key} was lost: {loss}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn loss_reason(&self) -> Option<(&Key, Loss)> {
        let mut holds = self.holds.iter();
        holds.find_map(|hold| Some((&hold.holder.key, hold.loss()?)))
    }

    /// Renews all leases now, in one batch. Returns [`valid_for`](Self::valid_for).
    ///
    /// The call takes at most one call timeout.
    ///
    /// # Errors
    /// - [`Error::Lost`] with the key if a key was lost.
    /// - [`Error::Released`] if the guard was released.
    /// - Any other error is not a loss: the guard stays valid at least as long as before.
    ///
    /// # Cancel safety
    /// If you drop the future, the leases may or may not be renewed. The guard stays valid at least
    /// as long as before.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.lock_all(["account:3", "account:7"]).await?;
    /// let time_left = guard.renew().await?;
    /// println!("all keys are valid for {time_left:?}");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn renew(&self) -> Result<Duration, Error> {
        self.check()?;
        let failed = renew_all(&self.holds).await.err();
        let left = self.check()?;
        failed.map_or(Ok(left), Err)
    }

    /// Releases all keys in one batch.
    ///
    /// The call takes at most three call timeouts. You can repeat it, and you get the same result.
    ///
    /// # Errors
    /// [`MultiReleaseError`] with the keys that were lost or not released, and those that were
    /// released. The errors of the keys are those of [`Guard::release`](crate::Guard::release). The `?`
    /// operator converts it into one of them: a loss, if there is one.
    ///
    /// # Cancel safety
    /// The first poll of the future begins the release of all keys. If you drop the future after
    /// that, the release goes on in the background.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.lock_all(["account:3", "account:7"]).await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release(&self) -> Result<(), MultiReleaseError> {
        let (mut released, mut failed) = (Vec::new(), Vec::new());
        for (key, result) in release_all(&self.holds).await {
            match result {
                Ok(()) => released.push(key),
                Err(error) => failed.push((key, error)),
            }
        }
        if failed.is_empty() {
            Ok(())
        } else {
            Err(MultiReleaseError { released, failed })
        }
    }

    /// Runs `body` while the guard is valid. If a key is lost first, `body` is dropped at its
    /// current await point.
    ///
    /// # Errors
    /// - [`Error::Lost`] with the key if one was lost before `body` completed.
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
    /// async fn transfer() { /* … */ }
    ///
    /// let guard = locks.lock_all(["account:3", "account:7"]).await?;
    /// guard.protect(transfer()).await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn protect<F: Future>(&self, body: F) -> Result<F::Output, Error> {
        self.check()?;
        let lost = async {
            let (key, loss) = self.lost().await;
            Error::Lost { key, reason: loss }
        };
        let check_lost = || self.holds.iter().find_map(Hold::check_lost);
        run_until_lost(lost, check_lost, body).await
    }

    /// Runs `body` while the guard is valid, then releases all keys. If a key is lost before `body` completes, `body`
    /// is dropped at its current await point.
    ///
    /// # Errors
    /// - [`Error::Lost`] with the key if one was lost before its release. `body` may have done a part of its work then,
    ///   or all of it.
    /// - [`Error::Released`] if the guard was released before the call.
    ///
    /// # Cancel safety
    /// If you drop the future, `body` is dropped at its current await point, and the client releases the keys in the
    /// background. The call is cancel safe if `body` is.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let guard = locks.lock_all(["account:3", "account:7"]).await?;
    /// let count = guard.with(async |guard| guard.keys().len()).await?;
    /// assert_eq!(count, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn with<T>(self, body: impl AsyncFnOnce(&Self) -> T) -> Result<T, Error> {
        // After a loss, the drop queues the releases, and the caller gets the error at once.
        let output = self.protect(body(&self)).await?;
        // A release without an answer goes on in the background.
        match self.release().await.map_err(Error::from) {
            Err(lost @ Error::Lost { .. }) => Err(lost),
            _ => Ok(output),
        }
    }
}

impl Outcome<MultiGuard> {
    /// Runs `body` with the guard, if there is one, then releases it, like [`MultiGuard::with`]. Otherwise returns the
    /// contention, and `body` is not run.
    ///
    /// # Errors
    /// Those of [`MultiGuard::with`].
    ///
    /// # Cancel safety
    /// As [`MultiGuard::with`].
    ///
    /// # Examples
    /// `locks.mutexes(["a", "b"])?.try_lock().await?.with(async |guard| guard.is_valid()).await?`
    pub async fn with<T>(
        self,
        body: impl AsyncFnOnce(&MultiGuard) -> T,
    ) -> Result<Outcome<T>, Error> {
        match self {
            Self::Acquired(guard) => guard.with(body).await.map(Outcome::Acquired),
            Self::Contended(contention) => Ok(Outcome::Contended(contention)),
        }
    }
}

/// The shortest of the times, or the first error. Asks for no more times after an error.
fn shortest(mut times: impl Iterator<Item = Result<Duration, Error>>) -> Result<Duration, Error> {
    times.try_fold(Duration::MAX, |shortest, time| Ok(shortest.min(time?)))
}

/// The error of [`MultiGuard::release`]: some keys were lost, or not released in time.
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, LockClient};
/// # async fn example(locks: LockClient) -> Result<(), Error> {
/// let guard = locks.lock_all(["account:3", "account:7"]).await?;
/// if let Err(failed) = guard.release().await {
///     for (key, error) in failed.failed() {
///         println!("{key} was lost, or is not released yet: {error}");
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MultiReleaseError {
    released: Vec<Key>,
    /// Never empty.
    failed: Vec<(Key, Error)>,
}

impl MultiReleaseError {
    /// Returns the keys that were lost or not released, each with its error. There is at least one.
    pub fn failed(&self) -> &[(Key, Error)] {
        &self.failed
    }

    /// Returns the other keys, which were released.
    pub fn released(&self) -> &[Key] {
        &self.released
    }

    /// The first key that was lost, or else the first that was not released.
    fn worst(&self) -> &(Key, Error) {
        let mut failed = self.failed.iter();
        let lost = failed.find(|(_, error)| matches!(error, Error::Lost { .. }));
        lost.or(self.failed.first())
            .expect("at least one key failed")
    }
}

impl fmt::Display for MultiReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.failed.len();
        let all = failed + self.released.len();
        let (key, _) = self.worst();
        write!(
            f,
            "{failed} of {all} keys were lost or not released, such as {key:?}"
        )
    }
}

impl StdError for MultiReleaseError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.worst().1)
    }
}

impl From<MultiReleaseError> for Error {
    fn from(error: MultiReleaseError) -> Self {
        error.worst().1.clone()
    }
}

//! The guard of several keys that are held together.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::client::error::{Error, Loss, ReleaseOutcome};
use crate::client::hold::{Hold, first_lost, release_all, renew_all, run_until_lost};
use crate::error::InvalidInput;
use crate::id::{FencingToken, Key};

/// Several locks that are held together, until the guard is released, dropped, or one of them is
/// lost: **the loss of one is the loss of all**.
///
/// Each key has a fencing token of its own; send that of the key which protects what is written.
/// Background renewal, deadlines and dropping are those of a [`Guard`](crate::Guard); the keys of
/// one client share renewal batches.
///
/// After a loss the other keys stay held until the guard is dropped or released, so that what is
/// left of the work is not overtaken at once.
#[must_use = "a guard that is dropped releases its locks"]
pub struct ManyGuard {
    /// In the order of their keys; never empty.
    holds: Vec<Hold>,
}

impl fmt::Debug for ManyGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManyGuard")
            .field("keys", &self.keys().collect::<Vec<_>>())
            .field("tokens", &self.fencing_tokens().ok())
            .field("valid_for", &self.valid_for())
            .finish()
    }
}

impl ManyGuard {
    pub(crate) const fn new(holds: Vec<Hold>) -> Self {
        Self { holds }
    }

    /// The keys that are held, in the order in which they were taken.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &Key> {
        self.holds.iter().map(|hold| &hold.holder.key)
    }

    /// The token to send with every write to what `key` protects.
    ///
    /// # Errors
    /// As [`Guard::fencing_token`](crate::Guard::fencing_token), and [`Error::InvalidInput`] for a
    /// key that the guard does not hold.
    pub fn fencing_token(&self, key: impl AsRef<str>) -> Result<FencingToken, Error> {
        let name = key.as_ref();
        let mut holds = self.holds.iter();
        match holds.find(|hold| hold.holder.key.as_str() == name) {
            Some(hold) => hold.fencing_token(),
            None => Err(Error::InvalidInput(InvalidInput::Setting {
                what: "key",
                problem: format!("the guard does not hold {name:?}"),
            })),
        }
    }

    /// The keys with their tokens, in the order in which they were taken.
    ///
    /// # Errors
    /// As [`Guard::fencing_token`](crate::Guard::fencing_token).
    pub fn fencing_tokens(&self) -> Result<Vec<(&Key, FencingToken)>, Error> {
        let tokens = self
            .holds
            .iter()
            .map(|hold| Ok((&hold.holder.key, hold.fencing_token()?)));
        tokens.collect()
    }

    /// Whether all keys are certainly held now.
    pub fn is_valid(&self) -> bool {
        self.check().is_ok()
    }

    /// How long all keys are certainly held from now on, without any renewal to come; zero once
    /// one is lost, or the guard was released.
    pub fn valid_for(&self) -> Duration {
        self.check().unwrap_or_default()
    }

    /// The least time left, or why there is none.
    fn check(&self) -> Result<Duration, Error> {
        let mut least = Duration::MAX;
        for hold in &self.holds {
            let left = hold.check()?;
            least = least.min(left);
        }
        Ok(least)
    }

    /// Ends when the first of the keys is lost, with that key and the reason. Never ends if the
    /// guard is released or dropped first.
    ///
    /// The future does not borrow the guard.
    ///
    /// # Cancel safety
    /// It may be dropped and asked for again at any time.
    pub fn lost(&self) -> impl Future<Output = (Key, Loss)> + Send + 'static + use<> {
        first_lost(&self.holds)
    }

    /// Renews all leases now, in one batch, and returns [`valid_for`](Self::valid_for).
    ///
    /// # Errors
    /// [`Error::Lost`] if a key is lost, which it names;
    /// [`Error::Released`] if the guard was released. A transient error is no loss: the guard is
    /// valid as long as it was before, or longer.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing; the leases may have been renewed or not.
    pub async fn renew(&self) -> Result<Duration, Error> {
        self.check()?;
        let failed = renew_all(&self.holds).await.err();
        let left = self.check()?;
        failed.map_or(Ok(left), Err)
    }

    /// Releases all keys in one batch and reports on each, in the order of
    /// [`keys`](Self::keys).
    ///
    /// Ends after at most three call time-outs. Calling it again reports the same.
    ///
    /// # Errors
    /// Each key has its own result. What the server did not acknowledge in that time goes on in
    /// the background, and the lease bounds it.
    ///
    /// # Cancel safety
    /// Once the future was polled the release of all keys goes on in the background, even if the
    /// future is dropped.
    pub async fn release(&self) -> Vec<(Key, Result<ReleaseOutcome, Error>)> {
        release_all(&self.holds).await
    }

    /// Runs a future for as long as all keys are held: if one is lost first, the future is
    /// dropped at the await point where it stands.
    ///
    /// # Errors
    /// [`Error::Lost`], which names the key, if one was lost before the
    /// future ended; [`Error::Released`] if the guard was released before the call.
    ///
    /// # Cancel safety
    /// As safe as `body` is.
    pub async fn protect<F: Future>(&self, body: F) -> Result<F::Output, Error> {
        self.check()?;
        let lost = async {
            let (key, loss) = self.lost().await;
            Error::Lost { key, reason: loss }
        };
        let lost_by_now = || self.holds.iter().find_map(Hold::lost_by_now);
        run_until_lost(lost, lost_by_now, body).await
    }

    /// Runs `body` under the guard and then releases it.
    pub(crate) async fn run<T>(self, body: impl AsyncFnOnce(&Self) -> T) -> Result<T, Error> {
        // A lost guard is only dropped: its ends are queued, and the caller learns of it now.
        let output = self.protect(body(&self)).await?;
        // What the body came to counts; a release without an answer goes on in the background.
        drop(self.release().await);
        Ok(output)
    }
}

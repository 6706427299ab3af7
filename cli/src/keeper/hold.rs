//! What the keeper holds while CMD runs: a lock, or a job with its lock.

use std::pin::Pin;
use std::time::Duration;

use leasehold::{Error, LockClient, Loss, MultiGuard};

use crate::keeper::job::Attempt;

pub(super) enum Hold {
    Lock(MultiGuard),
    Job(Attempt),
}

impl Hold {
    pub(super) fn valid_for(&self) -> Duration {
        match self {
            Self::Lock(guard) => guard.valid_for(),
            Self::Job(attempt) => attempt.job.guard().valid_for(),
        }
    }

    /// Renews the lock once.
    pub(super) async fn renew(&self) -> Result<Duration, Error> {
        match self {
            Self::Lock(guard) => guard.renew().await,
            Self::Job(attempt) => attempt.job.guard().renew().await,
        }
    }

    /// Completes when the lock is lost.
    pub(super) fn lost(&self) -> Pin<Box<dyn Future<Output = Loss>>> {
        match self {
            Self::Lock(guard) => {
                let lost = guard.lost();
                Box::pin(async move { lost.await.1 })
            }
            Self::Job(attempt) => Box::pin(attempt.job.guard().lost()),
        }
    }

    pub(super) fn token(&self, key: &str) -> u64 {
        let token = match self {
            // KEY is the guard's only key.
            Self::Lock(guard) => guard.fencing_token(key).unwrap_or_default(),
            Self::Job(attempt) => attempt.job.fencing_token(),
        };
        token.get()
    }

    /// The fire time of a job, and the number of its attempt.
    pub(super) fn attempt(&self) -> Option<(u64, u32)> {
        match self {
            Self::Lock(_) => None,
            Self::Job(Attempt { job, .. }) => Some((job.fire_time().as_millis(), job.attempt())),
        }
    }

    /// Releases the lock. For a job, records first whether CMD has succeeded. Returns what the user should know if
    /// that went wrong.
    pub(super) async fn release(self, locks: &LockClient, done: bool) -> Option<String> {
        let guard = match self {
            Self::Lock(guard) => guard,
            Self::Job(attempt) => return attempt.end(done).await,
        };
        Some(match guard.release().await.map_err(Error::from).err()? {
            lost @ Error::Lost { .. } => format!("CMD was not protected to its end: {lost}"),
            // The client goes on trying.
            error if error.is_transient() && locks.shutdown().await.is_ok() => return None,
            error => format!("the lock stays taken until its lease ends: {error}"),
        })
    }
}

//! What the keeper holds while CMD runs: a lock, or a job with its lock.

use std::pin::Pin;
use std::time::Duration;

use leasehold::{Error, Loss, MultiGuard};

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
    pub(super) async fn release(self, done: bool) -> Option<String> {
        match self {
            Self::Lock(guard) => Some(match guard.release().await.map_err(Error::from).err()? {
                lost @ Error::Lost { .. } => {
                    format!("CMD was not protected to its end: {lost}")
                }
                error => format!("the lock stays taken until its lease ends: {error}"),
            }),
            Self::Job(attempt) => attempt.end(done).await,
        }
    }
}

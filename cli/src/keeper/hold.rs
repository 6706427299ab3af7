//! What the keeper holds while CMD runs: a lock, a job with its lock, or a term as the leader.

use std::pin::Pin;
use std::time::Duration;

use leasehold::{Error, LockClient, Loss, MutexGuard, PermitGuard, ReadGuard, Term, WriteGuard};

use crate::keeper::job::Attempt;
use crate::protocol::Ended;

pub(super) enum Hold {
    Mutex(MutexGuard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permit(PermitGuard),
    Job(Attempt),
    Term(Term),
}

/// Evaluates an expression with the guard of a hold, of whatever type that is.
macro_rules! with_guard {
    ($hold:expr, $guard:ident => $value:expr) => {
        match $hold {
            Hold::Mutex($guard) => $value,
            Hold::Read($guard) => $value,
            Hold::Write($guard) => $value,
            Hold::Permit($guard) => $value,
            Hold::Job(attempt) => {
                let $guard = attempt.job.guard();
                $value
            }
            Hold::Term(term) => {
                let $guard = term.guard();
                $value
            }
        }
    };
}

impl Hold {
    pub(super) fn valid_for(&self) -> Duration {
        with_guard!(self, guard => guard.valid_for())
    }

    /// Renews the lock once.
    pub(super) async fn renew(&self) -> Result<Duration, Error> {
        with_guard!(self, guard => guard.renew().await)
    }

    /// Completes when the lock is lost.
    pub(super) fn lost(&self) -> Pin<Box<dyn Future<Output = Loss>>> {
        with_guard!(self, guard => Box::pin(guard.lost()))
    }

    pub(super) fn token(&self) -> u64 {
        with_guard!(self, guard => guard.fencing_token()).get()
    }

    /// The fire time of a job, and the number of its attempt.
    pub(super) fn attempt(&self) -> Option<(u64, u32)> {
        match self {
            Self::Job(Attempt { job, .. }) => Some((job.fire_time().as_millis(), job.attempt())),
            _ => None,
        }
    }

    /// Releases the lock. For a job, records first how CMD has ended. Returns what the user should know if
    /// that went wrong.
    pub(super) async fn release(self, locks: &LockClient, ended: Ended) -> Option<String> {
        if let Self::Job(attempt) = self {
            return attempt.end(ended).await;
        }
        let released = with_guard!(&self, guard => guard.release().await);
        Some(match released.err()? {
            lost @ Error::Lost { .. } => format!("CMD was not protected to its end: {lost}"),
            // The client goes on trying.
            error if error.is_transient() && locks.shutdown().await.is_ok() => return None,
            error => format!("the lock stays taken until its lease ends: {error}"),
        })
    }
}

//! The steps that cases of the client are made of.

use std::fmt::Debug;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{Either, join, select};
use leasehold_api::{Contention, Error, Guard, LockClient, MultiReleaseError, Outcome, bounds};

use crate::failure::{Failure, Verdict, ensure, want, want_eq};
use crate::world::{World, several};

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(
            "L4: every call succeeds on a healthy server",
            "no error",
            error,
        )
    }
}

impl From<MultiReleaseError> for Failure {
    fn from(error: MultiReleaseError) -> Self {
        Error::from(error).into()
    }
}

impl World {
    /// Connects a new client. Its calls have the time that this backend needs.
    pub(crate) async fn client(&self) -> Result<LockClient, Failure> {
        let limit = self.call_limit().min(bounds::MAX_CALL_TIMEOUT);
        let client = LockClient::builder(self.backend().await?).call_timeout(limit);
        Ok(client.build()?)
    }

    /// Connects several clients.
    pub(crate) async fn clients<const N: usize>(&self) -> Result<[LockClient; N], Failure> {
        several(|| self.client()).await
    }

    /// Returns the output of `future`, or `None` if it takes longer than `units` units.
    pub(crate) async fn within<T>(&self, units: u32, future: impl Future<Output = T>) -> Option<T> {
        self.within_time(self.units(units), future).await
    }

    /// Returns the output of `future`, or `None` if it takes longer than `limit`.
    pub(crate) async fn within_time<T>(
        &self,
        limit: Duration,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        match select(pin!(future), pin!(self.pass_for(limit))).await {
            Either::Left((output, _)) => Some(output),
            Either::Right(((), _)) => None,
        }
    }

    /// Runs `waits`, and what `happens` that many units after its start.
    pub(crate) async fn meanwhile<T>(
        &self,
        units: u32,
        waits: impl Future<Output = T>,
        happens: impl AsyncFnOnce() -> Verdict,
    ) -> Result<T, Failure> {
        let happens = async {
            self.pass(units).await;
            happens().await
        };
        let (waited, happened) = join(waits, happens).await;
        happened?;
        Ok(waited)
    }
}

/// Polls a future at most `polls` times, then drops it. Returns its output if it completed.
pub(crate) async fn polled<T>(polls: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Expects a guard.
pub(crate) fn got<G: Debug>(
    outcome: Result<Outcome<G>, Error>,
    rule: &'static str,
) -> Result<G, Failure> {
    want!(outcome?, Outcome::Acquired(guard) => guard)
        .promised(format!("{rule}: a free lock is acquired"))
}

/// Expects that somebody else holds the lock.
pub(crate) fn busy<G: Debug>(
    outcome: Result<Outcome<G>, Error>,
    rule: &'static str,
) -> Result<Contention, Failure> {
    want!(outcome?, Outcome::Contended(held) if !held.timed_out => held).promised(format!(
        "{rule}: contention is a value that says when to try again"
    ))
}

/// Expects that the client gets the mutex `key` at once, and gives it back.
pub(crate) async fn free(client: &LockClient, key: &str, rule: &'static str) -> Verdict {
    got(client.mutex(key)?.try_lock().await, rule).map(drop)
}

/// Releases and expects that the lock was held.
pub(crate) async fn released<K>(guard: &Guard<K>, rule: &'static str) -> Verdict {
    guard.release().await?;
    want_eq!(guard.holds_left().unwrap_or(0), 0)
        .promised(format!("{rule}: a release reports that the lock was held"))
}

/// Expects that the guard is valid.
pub(crate) fn valid<K>(guard: &Guard<K>, promise: &str) -> Verdict {
    ensure!(guard.is_valid(), guard).promised(promise)
}

/// Expects that the guard is not valid.
pub(crate) fn not_valid<K>(guard: &Guard<K>, promise: &str) -> Verdict {
    ensure!(!guard.is_valid(), guard).promised(promise)
}

/// Expects that the client gets the mutex `k` within `limit`.
pub(crate) async fn free_within(client: &LockClient, limit: Duration, promise: &str) -> Verdict {
    let outcome = client.mutex("k")?.try_lock_for(limit).await?;
    want!(outcome, Outcome::Acquired(_)).promised(promise)
}

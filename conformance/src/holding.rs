//! What the scenarios of the client's promises are written in.

use std::fmt::Debug;
use std::future::Future;
use std::pin::pin;

use futures_util::future::{Either, select};
use leasehold_api::{Error, Guard, Held, LockClient, Outcome, Release};

use crate::failure::{Failure, Verdict, want};
use crate::world::World;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(
            "L4",
            "on a healthy service every call succeeds",
            "no error",
            error,
        )
    }
}

impl World {
    /// One more client, with a session and connections of its own.
    pub(crate) async fn client(&self) -> Result<LockClient, Failure> {
        Ok(LockClient::new(self.backend().await?))
    }

    /// What a future comes to within so many units.
    pub(crate) async fn within<T>(&self, units: u32, future: impl Future<Output = T>) -> Option<T> {
        match select(pin!(future), pin!(self.pass(units))).await {
            Either::Left((output, _)) => Some(output),
            Either::Right(((), _)) => None,
        }
    }
}

/// Insists on a guard.
pub(crate) fn got<G: Debug>(
    outcome: Result<Outcome<G>, Error>,
    rule: &'static str,
) -> Result<G, Failure> {
    Ok(want!(
        outcome?,
        Outcome::Acquired(guard) => guard,
        rule,
        "a free lock is acquired"
    ))
}

/// Insists that somebody else holds.
pub(crate) fn busy<G: Debug>(
    outcome: Result<Outcome<G>, Error>,
    rule: &'static str,
) -> Result<Held, Failure> {
    Ok(want!(
        outcome?,
        Outcome::Held(held) => held,
        rule,
        "contention is a value that says when to try again"
    ))
}

/// Insists that a release ends the last hold.
pub(crate) async fn released<K>(guard: &Guard<K>, rule: &'static str) -> Verdict {
    want!(
        guard.release().await?,
        Release::Released { holds_left: 0 },
        rule,
        "a release reports that the lock was held"
    );
    Ok(())
}

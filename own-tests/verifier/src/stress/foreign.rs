//! A user that tries to lock a key with another program's value. Its failed calls must not affect
//! the other calls of their batches.

use leasehold_api::{Error, LockClient};

use crate::checker::Model;
use crate::stress::monitor::Monitor;
use crate::stress::plan::Plan;

/// The key that holds another program's value.
pub(crate) const FOREIGN: &str = "foreign";

/// The user of the foreign key in one client.
pub(crate) struct ForeignUser {
    pub(crate) locks: LockClient,
    pub(crate) plan: Plan,
    pub(crate) monitor: Monitor,
}

impl ForeignUser {
    /// Tries the key once in each round. Each try must fail with [`Error::ForeignValue`], unless the
    /// server does not answer.
    pub(crate) async fn run(self) {
        for _ in 0..self.plan.rounds {
            let text = match self.ask().await {
                Err(
                    Error::ForeignValue { .. }
                    | Error::Unavailable { .. }
                    | Error::OutcomeUnknown { .. },
                ) => continue,
                Err(error) => error.to_string(),
                // A server that loses its data loses this value too.
                Ok(()) if self.monitor.model() == Model::Outside => continue,
                Ok(()) => "no error".to_owned(),
            };
            self.monitor
                .broken("L4", format!("locking a foreign value: {text}"));
        }
    }

    async fn ask(&self) -> Result<(), Error> {
        // If the server lost the value, this takes a lock, which must be gone as soon as the others.
        let mutex = self.locks.mutex(FOREIGN)?.lease(self.plan.terms.lease);
        mutex.try_lock().await.map(drop)
    }
}

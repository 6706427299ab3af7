//! A user who asks for a key that is no lock, beside others of its client: what travels with its
//! calls must not notice.

use leasehold_api::{Error, LockClient};

use crate::checker::Model;
use crate::stress::monitor::Monitor;
use crate::stress::plan::Plan;

/// The key under which another program's value lives.
pub(crate) const FOREIGN: &str = "foreign";

/// One such user.
pub(crate) struct Stranger {
    pub(crate) locks: LockClient,
    pub(crate) plan: Plan,
    pub(crate) monitor: Monitor,
}

impl Stranger {
    /// Asks as often as others do, and is told each time what there is.
    pub(crate) async fn run(self) {
        for _ in 0..self.plan.rounds {
            let text = match self.ask().await {
                Err(
                    Error::ForeignValue { .. }
                    | Error::Unavailable { .. }
                    | Error::OutcomeUnknown { .. },
                ) => continue,
                Err(error) => error.to_string(),
                // Servers that lose their data lose this too.
                Ok(()) if self.monitor.model() == Model::Outside => continue,
                Ok(()) => "it was answered as a lock".to_owned(),
            };
            let text = format!("asking for a foreign value: {text}");
            self.monitor.broken("L4", text);
        }
    }

    async fn ask(&self) -> Result<(), Error> {
        // Where the value was lost it is a lock, which must be gone as soon as the others.
        let mutex = self.locks.mutex(FOREIGN)?.lease(self.plan.terms.lease);
        mutex.try_lock().await.map(drop)
    }
}

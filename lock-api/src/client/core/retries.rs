//! The retries of a call that is safe to repeat, with their deadline and backoff.

use std::time::Duration;

use crate::client::core::Core;
use crate::client::error::Error;
use crate::client::state::backoff::Backoff;
use crate::error::BackendError;
use crate::id::Key;
use crate::runtime::Moment;

pub(crate) struct Retries<'a> {
    core: &'a Core,
    key: &'a Key,
    deadline: Moment,
    backoff: Backoff,
}

impl<'a> Retries<'a> {
    pub(crate) const fn new(core: &'a Core, key: &'a Key, deadline: Moment) -> Self {
        Self {
            core,
            key,
            deadline,
            backoff: Backoff::foreground(),
        }
    }

    /// The time left, at most a call timeout.
    pub(crate) fn limit(&self) -> Duration {
        self.left().min(self.core.settings.call_timeout)
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_since(self.core.now())
    }

    /// Pauses after a failed call, or returns the error if another try is of no use.
    pub(crate) async fn pause_after(&mut self, error: BackendError) -> Result<(), Error> {
        let pause = self.core.jittered(self.backoff.next());
        if !error.is_transient() || pause >= self.left() {
            return Err(error.on(self.key));
        }
        self.core.runtime.sleep(pause).await;
        Ok(())
    }
}

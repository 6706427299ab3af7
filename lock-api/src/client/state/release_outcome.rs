//! The result of a release, which any number of callers can wait for.
//!
//! The first result stays. A guard's `release` waits here whether it sent the release itself or the
//! background task did, so a cancelled call can be repeated.

use crate::client::state::signal::Signal;
use crate::error::BackendError;
use crate::reply::ReleaseReply;
use crate::sync::Mutex;

/// The result of a release, empty until it is known.
#[derive(Debug, Default)]
pub(crate) struct ReleaseResult {
    state: Mutex<Option<Result<Acknowledged, BackendError>>>,
    changed: Signal,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    pub(crate) reply: ReleaseReply,
    /// Whether an earlier attempt got no answer and may have been executed.
    pub(crate) in_doubt: bool,
    /// Whether the guard was lost before its release began.
    pub(crate) was_lost: bool,
}

impl ReleaseResult {
    pub(crate) fn set(&self, result: Result<Acknowledged, BackendError>) {
        self.state.lock().get_or_insert(result);
        self.changed.notify();
    }

    pub(crate) fn get(&self) -> Option<Result<Acknowledged, BackendError>> {
        self.state.lock().clone()
    }

    pub(crate) async fn wait(&self) -> Result<Acknowledged, BackendError> {
        self.changed.wait_for(|| self.get()).await
    }
}

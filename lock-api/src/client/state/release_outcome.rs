//! Where callers wait for the outcome of a release.

use crate::client::state::signal::Signal;
use crate::error::BackendError;
use crate::reply::ReleaseReply;
use crate::sync::Mutex;

/// The outcome of a release, once it is known.
#[derive(Debug, Default)]
pub(crate) struct ReleaseResult {
    state: Mutex<Option<Result<Acknowledged, BackendError>>>,
    changed: Signal,
}

/// An acknowledged release.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    pub(crate) reply: ReleaseReply,
    pub(crate) in_doubt: bool,
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
        loop {
            let version = self.changed.version();
            if let Some(result) = self.get() {
                return result;
            }
            self.changed.changed(version).await;
        }
    }
}

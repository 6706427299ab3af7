//! A reply, and what the client knows about when it was computed.

use std::time::Duration;

use crate::client::state::clock::local_deadline;
use crate::client::state::lease_status::LeaseStatus;
use crate::error::BackendError;
use crate::id::FencingToken;
use crate::runtime::Moment;
use crate::time::Stamp;

/// A reply, with the moment before its request was sent.
#[derive(Clone, Debug)]
pub(crate) struct Answer<T> {
    pub(crate) sent: Moment,
    pub(crate) stamp: Stamp,
    pub(crate) reply: T,
}

impl<T> Answer<T> {
    /// The same answer with a part of its reply, or with what follows from it.
    pub(crate) fn with<U>(&self, reply: U) -> Answer<U> {
        Answer {
            sent: self.sent,
            stamp: self.stamp,
            reply,
        }
    }

    /// What the answer says about a holder that had `token` and `remaining` on the server.
    pub(crate) fn status(&self, token: FencingToken, remaining: Duration) -> LeaseStatus {
        LeaseStatus {
            token,
            deadline: local_deadline(self.sent, remaining),
            clock: self.stamp.clock,
        }
    }
}

/// The reply alone.
pub(crate) fn reply_of<T>(answer: &Result<Answer<T>, BackendError>) -> Result<&T, &BackendError> {
    answer.as_ref().map(|answer| &answer.reply)
}

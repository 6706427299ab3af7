//! A reply together with the moment before its request was sent.
//!
//! The server computed the reply at some time between sending and receiving. The client only relies
//! on the earlier moment: a lease that had `remaining` in the reply is counted from `sent` (rule
//! 2).

use std::time::Duration;

use crate::client::state::clock::local_deadline;
use crate::client::state::lease_status::LeaseStatus;
use crate::error::BackendError;
use crate::id::FencingToken;
use crate::runtime::Moment;
use crate::time::Stamp;

/// A reply, its stamp, and the moment before its request was sent.
#[derive(Clone, Debug)]
pub(crate) struct Answer<T> {
    pub(crate) sent: Moment,
    pub(crate) stamp: Stamp,
    pub(crate) reply: T,
}

impl<T> Answer<T> {
    /// Returns an answer with the same times and another reply.
    pub(crate) fn with<U>(&self, reply: U) -> Answer<U> {
        Answer {
            sent: self.sent,
            stamp: self.stamp,
            reply,
        }
    }

    /// The lease of a holder that has `token` and `remaining` in this reply.
    pub(crate) fn status(&self, token: FencingToken, remaining: Duration) -> LeaseStatus {
        LeaseStatus {
            token,
            deadline: local_deadline(self.sent, remaining),
            clock: self.stamp.clock,
        }
    }
}

/// Borrows the reply, or the error.
pub(crate) fn reply_of<T>(answer: &Result<Answer<T>, BackendError>) -> Result<&T, &BackendError> {
    answer.as_ref().map(|answer| &answer.reply)
}

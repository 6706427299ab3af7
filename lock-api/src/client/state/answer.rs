//! A reply together with the moment before its request was sent, and the lease that it reports.
//!
//! The server computed the reply at some time between sending and receiving. The client only relies
//! on the earlier moment: a lease that had `remaining` in the reply is counted from `sent` (rule
//! 2).

use std::time::Duration;

use crate::client::state::clock::local_deadline;
use crate::id::FencingToken;
use crate::reply::Acquired;
use crate::runtime::Moment;
use crate::time::{ClockId, Stamp};

#[derive(Clone, Debug)]
pub(crate) struct Answer<T> {
    /// The moment before its request was sent.
    pub(crate) sent: Moment,
    pub(crate) stamp: Stamp,
    /// How far another reading of the server's clock may be ahead of the one in the stamp.
    pub(crate) clock_error: Duration,
    pub(crate) reply: T,
}

impl<T> Answer<T> {
    /// Returns an answer with the same times and another reply.
    pub(crate) fn with<U>(&self, reply: U) -> Answer<U> {
        Answer {
            sent: self.sent,
            stamp: self.stamp,
            clock_error: self.clock_error,
            reply,
        }
    }

    /// How long a holder lasts that had `remaining` by the reading in the reply: by another one, its lease may end earlier.
    pub(crate) fn lasts(&self, remaining: Duration) -> Duration {
        remaining.saturating_sub(self.clock_error)
    }

    /// The local deadline of a holder that has `remaining` in this reply.
    pub(crate) fn deadline(&self, remaining: Duration) -> Moment {
        local_deadline(self.sent, self.lasts(remaining))
    }

    /// The lease of a holder that has `token` and `remaining` in this reply.
    pub(crate) fn status(&self, token: FencingToken, remaining: Duration) -> LeaseStatus {
        LeaseStatus {
            token,
            deadline: self.deadline(remaining),
            clock: self.stamp.clock,
            sent: self.sent,
        }
    }
}

/// A grant, as the answer to an acquire, a poll or a renewal reports it, or a notification.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrantReply {
    pub(crate) token: FencingToken,
    /// How many holds the owner has, if the server sent it.
    pub(crate) holds: Option<u32>,
    pub(crate) remaining: Duration,
}

impl From<Acquired> for GrantReply {
    fn from(acquired: Acquired) -> Self {
        Self {
            token: acquired.token,
            holds: Some(acquired.holds),
            remaining: acquired.remaining,
        }
    }
}

/// The lease of a holder: its token, its local deadline, and the clock of the server that ends it. If that
/// clock steps, the holder is lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseStatus {
    pub(crate) token: FencingToken,
    pub(crate) deadline: Moment,
    pub(crate) clock: ClockId,
    /// When the request was sent whose reply named the clock.
    pub(crate) sent: Moment,
}

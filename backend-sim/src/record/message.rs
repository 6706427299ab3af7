//! The recorded messages between clients and the server.

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::Notification;

use crate::record::Call;

/// A message between a client and the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Messages are numbered from 0, in the order in which they were sent.
    pub number: u64,
    /// The name of the client that sent or received it.
    pub client: Arc<str>,
    /// The content.
    pub content: Content,
    /// When the message was sent, in virtual time since the start of the simulation.
    pub sent: Duration,
    /// What happened to the message.
    pub fate: Fate,
}

/// The content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Content {
    /// A request of a client.
    Request {
        /// The call.
        call: Call,
        /// Whether this is the second delivery of a [duplicated](crate::Fault::DuplicateRequest)
        /// request.
        again: bool,
    },
    /// The server's reply to a request.
    Reply {
        /// The call.
        call: Call,
        /// Number of the request's message.
        to: u64,
    },
    /// A push to a client that listens.
    Push {
        /// The notification.
        notification: Notification,
        /// Number of the request's message that caused the push, if one did.
        cause: Option<u64>,
    },
    /// A client unsubscribes.
    Unlisten,
}

impl Content {
    /// Returns whether the message goes from the client to the server.
    pub const fn is_to_server(&self) -> bool {
        matches!(self, Self::Request { .. } | Self::Unlisten)
    }
}

/// What happened to a message. The times are virtual, since the start of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The message was still in flight when the log was read.
    UnderWay,
    /// The message arrived at this time.
    Arrived(Duration),
    /// The message was lost at this time, or its receiver no longer waited for it.
    Lost(Duration),
}

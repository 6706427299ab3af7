//! Messages between clients and the server, as they are recorded.

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::Notification;

use crate::record::Call;

/// Something that was sent between a client and the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Which: messages are numbered from 0, in the order in which they were sent.
    pub number: u64,
    /// From or to which client.
    pub client: Arc<str>,
    /// What it was.
    pub content: Content,
    /// When it was sent, since the start of the simulation.
    pub sent: Duration,
    /// What became of it.
    pub fate: Fate,
}

/// What a message was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Content {
    /// A request of a client.
    Request {
        /// For what.
        call: Call,
        /// Whether the client's library sent it a second time by itself.
        again: bool,
    },
    /// The server's reply to a request.
    Reply {
        /// For what.
        call: Call,
        /// Number of the request's message.
        to: u64,
    },
    /// What the server pushed to a client that listens.
    Push {
        /// What it says.
        notification: Notification,
        /// Number of the request's message that caused it, if one did.
        cause: Option<u64>,
    },
    /// A client unsubscribes.
    Unlisten,
}

impl Content {
    /// Whether it goes from the client to the server.
    pub const fn is_to_server(&self) -> bool {
        matches!(self, Self::Request { .. } | Self::Unlisten)
    }
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It had not arrived when the log was read.
    UnderWay,
    /// It arrived.
    Arrived(Duration),
    /// It was lost, or reached nobody who wanted it.
    Lost(Duration),
}

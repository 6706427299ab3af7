//! The events of a run.

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::machine::{self, Command};
use leasehold_api::{ClockId, Key, Notification, SessionId, Stamp};

use crate::record::{Data, Fault, Tail};

/// What the server answered to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What the state machine said.
    Reply(machine::Reply),
    /// Something else lives under the key: its type.
    Foreign(String),
}

/// What a call to the server was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is the backend method of its name")]
pub enum Call {
    Hello,
    Listen,
    Acquire,
    Poll,
    Renew,
    Release,
    Convert,
    Inspect,
    ForceRelease,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When, since the start of the simulation.
    pub at: Duration,
    /// To which client, if to one.
    pub client: Option<Arc<str>>,
    /// Number of the [`Message`](crate::Message) that brought it, if one did.
    pub message: Option<u64>,
    /// What.
    pub event: Event,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The server read its clock for the client.
    Hello {
        /// What it showed.
        stamp: Stamp,
    },
    /// The server executed a command of the client.
    Executed {
        /// On which key.
        key: Key,
        /// What was asked.
        command: Box<Command>,
        /// When, on the server's clock.
        stamp: Stamp,
        /// What was answered.
        answer: Answer,
        /// Whether this was the second delivery of a duplicated request.
        again: bool,
    },
    /// A subscription to a session's channel stands at the server.
    Subscribed {
        /// Whose channel.
        session: SessionId,
        /// At which server: whose clock.
        clock: ClockId,
    },
    /// One is gone.
    Unsubscribed {
        /// Whose channel.
        session: SessionId,
        /// At which server: whose clock.
        clock: ClockId,
    },
    /// The client received a notification.
    Notified {
        /// Which.
        notification: Notification,
    },
    /// A fault that was injected came to pass.
    Fault {
        /// Which.
        fault: Fault,
        /// In which call; `None` for one of a push.
        call: Option<Call>,
        /// On which key.
        key: Option<Key>,
    },
    /// A call ended without an answer of the state machine.
    Failed {
        /// Which.
        call: Call,
        /// The error.
        error: String,
    },
    /// A request reached no server: it was stopped, or not the one that the request was sent to.
    Undelivered {
        /// Which.
        call: Call,
    },
    /// What the code under test said about itself.
    Note {
        /// Its words.
        text: String,
    },
    /// Something was done to the client.
    Client(ClientEvent),
    /// Something was done to the server.
    Server(ServerEvent),
}

/// What a test does to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is the method of its name")]
pub enum ClientEvent {
    Paused,
    Resumed,
    Killed,
    ConnectionDropped,
    Isolated,
    Reachable,
    Closed,
    ClockRate { ppm: i32 },
    ClockJumped { by: Duration },
}

/// What a test does to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerEvent {
    /// Its process ended.
    Stopped,
    /// Another process started.
    Started {
        /// With what data.
        data: Data,
    },
    /// Its clock was set.
    ClockStepped {
        /// Which way.
        forward: bool,
        /// How far.
        by: Duration,
    },
    /// A value of another program was written under a key.
    ForeignPlanted {
        /// Where.
        key: Key,
        /// Its type.
        found: String,
    },
    /// A replica took its place.
    FailedOver {
        /// What the replica did not have.
        lost: Tail,
    },
    /// A replica became a primary beside it.
    Split {
        /// What the replica did not have.
        lost: Tail,
        /// Clients that the old primary goes on serving.
        staying: Vec<String>,
    },
    /// The old of two primaries gave up.
    Healed,
    /// It publishes nothing any more, and cannot tell who listens.
    PublishRefused,
    /// It publishes again.
    PublishAllowed,
    /// Somebody deleted a key.
    KeyRemoved {
        /// Which.
        key: Key,
    },
}

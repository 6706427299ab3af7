//! The events of a run.

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::machine::{self, Command};
use leasehold_api::{ClockId, Key, Notification, SessionId, Stamp};

use crate::record::{Data, Fault, Tail};

/// The server's answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAnswer {
    /// The reply of the state machine.
    Reply(machine::Reply),
    /// The key has a foreign value of this type.
    Foreign(String),
}

/// The kind of a call to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is named after a backend method")]
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
    List,
    Note,
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Virtual time since the start of the simulation.
    pub at: Duration,
    /// The name of the client that the event belongs to; `None` for the server.
    pub client: Option<Arc<str>>,
    /// Number of the [`Message`](crate::tools::Message) that caused the event, if one did.
    pub message: Option<u64>,
    /// The event.
    pub event: Event,
}

/// An event of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The server answered a hello.
    Hello {
        /// The time of the server's clock.
        stamp: Stamp,
    },
    /// The server executed a command of the client.
    Executed {
        /// The key.
        key: Key,
        /// The command.
        command: Box<Command>,
        /// The time of the server's clock.
        stamp: Stamp,
        /// The server's answer.
        answer: ServerAnswer,
        /// Whether this was the second delivery of a duplicated request.
        again: bool,
    },
    /// The server added a subscription to a session's channel.
    Subscribed {
        /// The session.
        session: SessionId,
        /// The clock of the server, which identifies it.
        clock: ClockId,
    },
    /// The server removed a subscription.
    Unsubscribed {
        /// The session.
        session: SessionId,
        /// The clock of the server, which identifies it.
        clock: ClockId,
    },
    /// The client received a notification.
    Notified {
        /// The notification.
        notification: Notification,
    },
    /// An injected fault happened.
    Fault {
        /// The fault.
        fault: Fault,
        /// The call that it affected; `None` for a push.
        call: Option<Call>,
        /// The first key of the call, if it has one.
        key: Option<Key>,
    },
    /// A call returned an error.
    Failed {
        /// The call.
        call: Call,
        /// The message of the error.
        error: String,
    },
    /// A request reached no server, because the client was isolated or the server that it was sent
    /// to had stopped.
    Undelivered {
        /// The call.
        call: Call,
    },
    /// A note of the code under test ([`SimBackend::note`](crate::SimBackend::note)).
    Note {
        /// The text.
        text: String,
    },
    /// The test, or a fault mix, acted on the client.
    Client(ClientEvent),
    /// The test, or a fault mix, acted on the server.
    Server(ServerEvent),
}

/// An action on a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is named after its method")]
pub enum ClientEvent {
    Paused,
    Resumed,
    Killed,
    ConnectionDropped,
    Isolated,
    Reachable,
    Denied,
    Admitted,
    Closed,
    FollowedPrimary,
    VisitsReplica,
    LeftReplica,
    ClockRate { ppm: i32 },
    ClockJumped { by: Duration },
}

/// What a replica does with a command that writes nothing. It refuses all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// It refuses it too, as leasehold's scripts make a Redis replica do.
    Refused,
    /// It answers from its own data, as a Redis replica does for other scripts.
    Answered,
}

/// An action on the server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerEvent {
    /// The server stopped.
    Stopped,
    /// The server started.
    Started {
        /// The data that it kept.
        data: Data,
    },
    /// The server began to refuse every call, as while it loads its data.
    LoadingBegan,
    /// The server answers again.
    LoadingEnded,
    /// The server's clock was stepped.
    ClockStepped {
        /// Whether it was stepped forward or back.
        forward: bool,
        /// The size of the step.
        by: Duration,
    },
    /// A foreign value replaced a key.
    ForeignPlanted {
        /// The key.
        key: Key,
        /// The type of the value.
        found: String,
    },
    /// The server failed over to a replica.
    FailedOver {
        /// The writes that the replica lacked.
        lost: Tail,
    },
    /// The server switched over to a replica with all data.
    SwitchedOver {
        /// Names of the clients whose subscriptions stay at the old server, which is a replica now.
        staying: Vec<String>,
    },
    /// A replica lost its link to the primary, so it keeps the data of this moment.
    ReplicaCutOff {
        /// Whether it answers commands that write nothing.
        reads: Reads,
    },
    /// A replica became a second primary.
    Split {
        /// The writes that the replica lacked.
        lost: Tail,
        /// Names of the clients that the old primary still serves.
        staying: Vec<String>,
    },
    /// The old primary was removed.
    Healed,
    /// The server stopped publishing, and no longer knows which sessions listen.
    PublishRefused,
    /// The server publishes again.
    PublishAllowed,
    /// The server no longer knows which sessions listen, but publishes.
    CountRefused,
    /// The server knows again which sessions listen.
    CountAllowed,
    /// A key was deleted.
    KeyRemoved {
        /// The key.
        key: Key,
    },
}

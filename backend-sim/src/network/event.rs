//! Requests, responses, and the events of the network that are still to happen.

use std::time::Duration;

use leasehold_api::machine::Command;
use leasehold_api::{BackendError, Key, Notification, SessionId, Stamp};

use crate::engine::event_queue::EventQueue;
use crate::engine::ready::Wakeup;
use crate::record::{Answer, Call, Fault};

/// Index of a client in its world.
pub(crate) type ClientIndex = usize;

/// What a client sends.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Hello,
    /// Subscribes; names the client's subscription.
    Listen(u64),
    /// One command, or a batch of them.
    Steps(Vec<(Key, Command)>),
}

/// What the server sends back: one answer for each command.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) stamp: Stamp,
    pub(crate) answers: Vec<Answer>,
}

/// A request on its way.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) client: ClientIndex,
    /// The call that waits for the reply.
    pub(crate) id: CallId,
    pub(crate) call: Call,
    pub(crate) request: Request,
    /// The server's process that it was sent to.
    pub(crate) process: u64,
    /// What befalls the call.
    pub(crate) fault: Option<Fault>,
    /// Whether this is a second delivery.
    pub(crate) again: bool,
    /// Number of its message in the log.
    pub(crate) message: u64,
    /// When the client sent it.
    pub(crate) sent: Duration,
}

/// Names a call that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallId {
    pub(crate) index: u32,
    pub(crate) number: u64,
}

/// What goes from a client to the server.
#[derive(Debug)]
pub(crate) enum ToServer {
    Request(Box<Arrival>),
    /// The end of a subscription.
    Unlisten {
        session: SessionId,
        process: u64,
        message: u64,
    },
}

/// What goes from the server to a client.
#[derive(Debug)]
pub(crate) enum ToClient {
    Reply {
        id: CallId,
        result: Result<Response, BackendError>,
        message: u64,
    },
    /// Over the connection that it was sent over.
    Push {
        connection: u64,
        subscription: u64,
        notification: Notification,
        message: u64,
    },
}

/// Something that is going to happen.
#[derive(Debug)]
pub(crate) enum SimEvent {
    /// A timer runs out; who waits for it.
    Timer(Option<Wakeup>),
    /// The time of a call has run out.
    Timeout(CallId),
    /// The first message that is under way from a client arrives.
    ToServer(ClientIndex),
    /// The first message that is under way to a client arrives.
    ToClient(ClientIndex),
    /// A message that keeps no order with others arrives.
    LateToServer(ClientIndex, Box<ToServer>),
    /// As the one before, to a client.
    LateToClient(ClientIndex, Box<ToClient>),
    /// The client's library tries to subscribe again.
    Resubscribe {
        client: ClientIndex,
        connection: u64,
        subscription: u64,
    },
}

impl EventQueue<SimEvent> {
    /// Identifies the actor of the event at an index of the line.
    ///
    /// Events of one direction of one connection have the same actor, so that priorities stay with
    /// it.
    pub(crate) fn actor(&self, index: usize) -> u64 {
        match self.peek(index) {
            (_, Some(SimEvent::ToServer(client))) => *client as u64 * 2,
            (_, Some(SimEvent::ToClient(client))) => *client as u64 * 2 + 1,
            (number, _) => number | 1 << 62,
        }
    }
}

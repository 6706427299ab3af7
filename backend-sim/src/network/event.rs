//! Requests, responses, and the events of the network.

use std::time::Duration;

use leasehold_api::machine::Command;
use leasehold_api::{BackendError, Key, List, Listed, Notification, SessionId, Stamp};

use crate::engine::event_queue::EventQueue;
use crate::engine::ready::Wakeup;
use crate::record::{Call, Fault, ServerAnswer};

/// Index of a client in its simulation.
pub(crate) type ClientIndex = usize;

pub(crate) enum Request {
    Hello,
    /// Subscribes. The number is that of the client's subscription.
    Listen(u64),
    List(List),
    /// One command, or a batch of them.
    Steps(Vec<(Key, Command)>),
}

/// The server's response, with an answer for each command.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) stamp: Stamp,
    pub(crate) answers: Vec<ServerAnswer>,
    /// The answer to a request for a page of keys.
    pub(crate) listed: Listed,
}

pub(crate) struct Arrival {
    pub(crate) client: ClientIndex,
    /// The call that waits for the reply.
    pub(crate) id: CallId,
    pub(crate) call: Call,
    pub(crate) request: Request,
    /// The server process that the request was sent to.
    pub(crate) process: u64,
    /// The fault of the call, if it has one.
    pub(crate) fault: Option<Fault>,
    /// Whether this is a second delivery.
    pub(crate) again: bool,
    /// Number of the message in the log.
    pub(crate) message: u64,
    pub(crate) sent: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallId {
    pub(crate) index: usize,
    pub(crate) number: u64,
}

pub(crate) enum ToServer {
    Request(Box<Arrival>),
    Unlisten {
        session: SessionId,
        process: u64,
        message: u64,
    },
}

#[derive(Debug)]
pub(crate) enum ToClient {
    Reply {
        id: CallId,
        result: Result<Response, BackendError>,
        message: u64,
    },
    /// A push. It is lost if the connection has changed when it arrives.
    Push {
        connection: u64,
        subscription: u64,
        notification: Notification,
        message: u64,
    },
}

pub(crate) enum SimEvent {
    /// A timer expires, and wakes the task that waits for it.
    Timer(Option<Wakeup>),
    Timeout(CallId),
    /// The next message from a client arrives.
    ToServer(ClientIndex),
    /// The next message to a client arrives.
    ToClient(ClientIndex),
    /// A message to the server arrives that is not ordered with others.
    LateToServer(ClientIndex, Box<ToServer>),
    /// A message to a client arrives that is not ordered with others.
    LateToClient(ClientIndex, Box<ToClient>),
    Resubscribe {
        client: ClientIndex,
        connection: u64,
        subscription: u64,
    },
}

impl EventQueue<SimEvent> {
    /// Returns the actor of the due event at an index.
    ///
    /// Events of one direction of a connection have the same actor, and so the same priority.
    pub(crate) fn actor(&self, index: usize) -> u64 {
        match self.peek(index) {
            (_, SimEvent::ToServer(client)) => *client as u64 * 2,
            (_, SimEvent::ToClient(client)) => *client as u64 * 2 + 1,
            (number, _) => number | 1 << 62,
        }
    }
}

//! What the simulation knows of one client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_channel::{mpsc, oneshot};
use leasehold_api::{BackendError, Notice, SessionId};

use crate::choices::Identities;
use crate::faults::Faults;
use crate::gate::Gate;
use crate::options::Latency;
use crate::queue::Response;

/// The result of a call, on its way to the future that waits for it.
pub(crate) type Outcome = Result<Response, BackendError>;

/// One direction of a connection, which keeps the order of what is sent over it.
#[derive(Debug, Default)]
pub(crate) struct Link {
    last: (Duration, u32),
}

impl Link {
    /// When a message that would arrive at `wanted` does: not before the one sent before it.
    pub(crate) fn in_order(&mut self, wanted: (Duration, u32)) -> (Duration, u32) {
        self.last = self.last.max(wanted);
        self.last
    }
}

/// A subscription to a session's channel.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) session: SessionId,
    pub(crate) notices: mpsc::UnboundedSender<Notice>,
    /// Whether the server counts it.
    pub(crate) at_server: bool,
}

/// One client: its connection, what it waits for, and what is to befall it.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) name: Arc<str>,
    pub(crate) gate: Gate,
    pub(crate) identities: Identities,
    pub(crate) latency: Latency,
    /// Number of its connection; a message of an earlier one is void.
    pub(crate) connection: u64,
    pub(crate) to_server: Link,
    pub(crate) from_server: Link,
    pub(crate) faults: Faults,
    pub(crate) calls: BTreeMap<u64, oneshot::Sender<Outcome>>,
    pub(crate) subscriptions: BTreeMap<u64, Subscription>,
    pub(crate) isolated: bool,
    pub(crate) killed: bool,
    pub(crate) closed: bool,
}

impl Client {
    pub(crate) fn new(name: Arc<str>, identities: Identities, latency: Latency) -> Self {
        Self {
            name,
            gate: Gate::default(),
            identities,
            latency,
            connection: 1,
            to_server: Link::default(),
            from_server: Link::default(),
            faults: Faults::default(),
            calls: BTreeMap::new(),
            subscriptions: BTreeMap::new(),
            isolated: false,
            killed: false,
            closed: false,
        }
    }
}

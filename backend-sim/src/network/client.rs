//! The state of one client.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{ClockId, Notification, SessionId};

use crate::engine::choices::Identities;
use crate::engine::gate::Gate;
use crate::engine::local_clock::LocalClock;
use crate::engine::ready::Wakeup;
use crate::network::event::{ToClient, ToServer};
use crate::network::faults::Faults;
use crate::network::options::Latency;

/// One direction of a connection. It keeps messages in order.
pub(crate) struct Link<M> {
    last: Duration,
    /// The messages in flight. The queue has an event for each.
    in_flight: VecDeque<M>,
}

impl<M> Default for Link<M> {
    fn default() -> Self {
        Self {
            last: Duration::ZERO,
            in_flight: VecDeque::new(),
        }
    }
}

impl<M> Link<M> {
    /// Sends a message that should arrive at `wanted`. Returns when it does, which is not before
    /// the previous message.
    pub(crate) fn send(&mut self, wanted: Duration, message: M) -> Duration {
        self.last = self.last.max(wanted);
        self.in_flight.push_back(message);
        self.last
    }

    pub(crate) fn arrive(&mut self) -> Option<M> {
        self.in_flight.pop_front()
    }
}

#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) session: SessionId,
    /// The notifications that arrived and have not been read.
    pub(crate) notifications: VecDeque<Notification>,
    /// The task that waits for the next notification.
    pub(crate) waiter: Option<Wakeup>,
    /// Whether the server has the subscription, or the client's replica.
    pub(crate) at_server: bool,
    /// Whether no more notifications follow.
    pub(crate) ended: bool,
}

impl Subscription {
    pub(crate) const fn new(session: SessionId) -> Self {
        Self {
            session,
            notifications: VecDeque::new(),
            waiter: None,
            at_server: false,
            ended: false,
        }
    }
}

/// The state of one client: its connection, its subscriptions and its pending faults.
pub(crate) struct Client {
    pub(crate) name: Arc<str>,
    pub(crate) gate: Gate,
    pub(crate) identities: Identities,
    pub(crate) latency: Latency,
    pub(crate) clock: LocalClock,
    /// Whether pushes may overtake replies and each other.
    pub(crate) unordered_pushes: bool,
    /// Whether the old primary serves the client, while there are two.
    pub(crate) on_old: bool,
    /// The clock of the replica that has the client's subscriptions, if a replica has them. It relays
    /// the messages of the primary, which doesn't count the client among its listeners.
    pub(crate) replica: Option<ClockId>,
    /// Whether its requests go to the replica that has lost its link.
    pub(crate) visits_replica: bool,
    /// Number of the connection. Messages of earlier connections are ignored.
    pub(crate) connection: u64,
    pub(crate) to_server: Link<ToServer>,
    pub(crate) from_server: Link<ToClient>,
    pub(crate) faults: Faults,
    pub(crate) subscriptions: BTreeMap<u64, Subscription>,
    pub(crate) isolated: bool,
    /// Whether the server refuses its calls.
    pub(crate) denied: bool,
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
            clock: LocalClock::default(),
            unordered_pushes: false,
            on_old: false,
            replica: None,
            visits_replica: false,
            connection: 1,
            to_server: Link::default(),
            from_server: Link::default(),
            faults: Faults::default(),
            subscriptions: BTreeMap::new(),
            isolated: false,
            denied: false,
            killed: false,
            closed: false,
        }
    }
}

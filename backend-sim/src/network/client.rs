//! The state of one client.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{Notification, SessionId};

use crate::engine::choices::Identities;
use crate::engine::gate::Gate;
use crate::engine::local_clock::LocalClock;
use crate::engine::ready::Wakeup;
use crate::network::event::{ToClient, ToServer};
use crate::network::faults::Faults;
use crate::network::options::Latency;

/// One direction of a connection, which keeps the order of what is sent over it.
#[derive(Debug)]
pub(crate) struct Link<M> {
    last: Duration,
    /// Messages that are under way; for each there is an event in the queue.
    under_way: VecDeque<M>,
}

impl<M> Default for Link<M> {
    fn default() -> Self {
        Self {
            last: Duration::ZERO,
            under_way: VecDeque::new(),
        }
    }
}

impl<M> Link<M> {
    /// Sends a message that would arrive at `wanted`; tells when it does: not before the one sent
    /// before it.
    pub(crate) fn send(&mut self, wanted: Duration, message: M) -> Duration {
        self.last = self.last.max(wanted);
        self.under_way.push_back(message);
        self.last
    }

    /// The message that arrives next.
    pub(crate) fn arrive(&mut self) -> Option<M> {
        self.under_way.pop_front()
    }
}

/// A subscription to a session's channel.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) session: SessionId,
    /// What has reached the client, and it has not read.
    pub(crate) notifications: VecDeque<Notification>,
    /// Who reads.
    pub(crate) waiter: Option<Wakeup>,
    /// Whether the server counts it.
    pub(crate) at_server: bool,
    /// Whether no more notifications will come.
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

/// One client: its connection, what it waits for, and what is to befall it.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) name: Arc<str>,
    pub(crate) gate: Gate,
    pub(crate) identities: Identities,
    pub(crate) latency: Latency,
    pub(crate) clock: LocalClock,
    /// Whether pushes to it keep no order, neither with replies nor among themselves.
    pub(crate) unordered_pushes: bool,
    /// Whether it is served by the old primary, while there are two.
    pub(crate) on_old: bool,
    /// Number of its connection; a message of an earlier one is void.
    pub(crate) connection: u64,
    pub(crate) to_server: Link<ToServer>,
    pub(crate) from_server: Link<ToClient>,
    pub(crate) faults: Faults,
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
            clock: LocalClock::default(),
            unordered_pushes: false,
            on_old: false,
            connection: 1,
            to_server: Link::default(),
            from_server: Link::default(),
            faults: Faults::default(),
            subscriptions: BTreeMap::new(),
            isolated: false,
            killed: false,
            closed: false,
        }
    }
}

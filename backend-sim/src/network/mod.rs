//! The clients, the servers, and the messages between them, at one moment of virtual time.
//!
//! A [`Network`] changes only when its driver applies the next [`SimEvent`] or when a public handle
//! acts on it. It never waits, and its driver sets its time.

pub(crate) mod calls;
pub(crate) mod client;
mod connection;
pub(crate) mod event;
mod faults;
pub(crate) mod observer;
pub(crate) mod options;
mod replica;
mod steps;
pub(crate) mod tally;
mod transport;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leasehold_api::SessionId;

use crate::engine::choices::{Choices, Scheduling};
use crate::engine::event_queue::EventQueue;
use crate::engine::ready::{Wakers, Wakes};
use crate::network::calls::Calls;
use crate::network::client::Client;
use crate::network::event::{ClientIndex, SimEvent};
use crate::network::observer::Observer;
use crate::network::options::{Latency, SimOptions};
use crate::network::tally::Tally;
use crate::record::{Content, Entry, Event, Fate, Log};
use crate::server::primaries::Servers;

/// The state of a simulation.
pub(crate) struct Network {
    pub(crate) options: SimOptions,
    /// The time of the current event.
    pub(crate) now: Duration,
    pub(crate) choices: Choices,
    pub(crate) servers: Servers,
    pub(crate) log: Log,
    pub(crate) observer: Option<Box<dyn Observer>>,
    pub(crate) tally: Tally,
    pub(crate) clients: Vec<Client>,
    /// How much later a replica has the messages of the primary.
    pub(crate) replication_lag: Latency,
    pub(crate) calls: Calls,
    pub(crate) queue: EventQueue<SimEvent>,
    /// The subscriptions at the server.
    pub(crate) channels: BTreeSet<(SessionId, ClientIndex, u64)>,
    pub(crate) wakers: Wakers,
    pub(crate) wakes: Wakes,
}

impl Network {
    pub(crate) fn new(options: SimOptions, scheduling: Scheduling) -> Self {
        Self {
            options,
            now: Duration::ZERO,
            choices: Choices::new(options.seed, scheduling, options.recording),
            servers: Servers::new(options.journal),
            log: Log::new(options.log_limit),
            observer: None,
            tally: Tally::default(),
            clients: Vec::new(),
            replication_lag: Latency::ZERO,
            calls: Calls::default(),
            queue: EventQueue::default(),
            channels: BTreeSet::new(),
            wakers: Wakers::default(),
            wakes: Wakes::default(),
        }
    }

    pub(crate) fn add_client(&mut self, name: &str) -> ClientIndex {
        let index = self.clients.len();
        let identities = self.choices.identities(index);
        let client = Client::new(name.into(), identities, self.options.latency);
        self.clients.push(client);
        index
    }

    pub(crate) fn client_names(&self) -> Vec<Arc<str>> {
        let clients = self.clients.iter();
        clients.map(|client| client.name.clone()).collect()
    }

    pub(crate) fn record(&mut self, client: Option<ClientIndex>, event: Event) {
        self.record_of(None, client, event);
    }

    /// Records an event that a message caused.
    pub(crate) fn record_of(
        &mut self,
        message: Option<u64>,
        client: Option<ClientIndex>,
        event: Event,
    ) {
        self.tally.event(self.now, client, &event);
        if let Some(observer) = &mut self.observer {
            observer.event(self.now, client, &event);
        }
        self.keep(message, client, || event);
    }

    /// Adds an event to the log, if there is one.
    pub(crate) fn keep(
        &mut self,
        message: Option<u64>,
        client: Option<ClientIndex>,
        event: impl FnOnce() -> Event,
    ) {
        if self.log.is_kept() {
            self.log.push(Entry {
                at: self.now,
                client: client.map(|index| self.clients[index].name.clone()),
                message,
                event: event(),
            });
        }
    }

    /// Logs that a message is sent, and returns its number.
    pub(crate) fn note_sent(&mut self, client: ClientIndex, content: Content) -> u64 {
        if !self.log.is_kept() {
            return 0;
        }
        let client = self.clients[client].name.clone();
        self.log.sent(self.now, client, content)
    }

    pub(crate) fn note_ended(&mut self, message: u64, arrived: bool) {
        let fate = match arrived {
            true => Fate::Arrived(self.now),
            false => Fate::Lost(self.now),
        };
        self.log.ended(message, fate);
    }
}

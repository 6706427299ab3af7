//! Connections and subscriptions of the clients, and the events that break them.

use std::time::Duration;

use leasehold_api::{BackendError, Notification, SessionId};

use crate::network::Network;
use crate::network::client::{Client, Subscription};
use crate::network::event::{ClientIndex, SimEvent, ToClient, ToServer};
use crate::record::{ClientEvent, Content, Data, Event, ServerEvent, Tail};

/// The interval at which a client tries to subscribe again.
const RECONNECT_EVERY: Duration = Duration::from_millis(100);

impl Network {
    pub(crate) fn add_subscription(&mut self, client: ClientIndex, session: SessionId) -> u64 {
        let number = self.queue.number();
        self.clients[client]
            .subscriptions
            .insert(number, Subscription::new(session));
        number
    }

    /// Removes a subscription of a client, and unsubscribes at the server.
    pub(crate) fn drop_subscription(
        &mut self,
        client: ClientIndex,
        number: u64,
    ) -> Option<Subscription> {
        let subscription = self.clients[client].subscriptions.remove(&number)?;
        let session = subscription.session;
        let at_server = self.channels.remove(&(session, client, number));
        if at_server && self.clients[client].replica.is_none() {
            let unlisten = ToServer::Unlisten {
                session,
                process: self.server_of(client).process,
                message: self.note_sent(client, Content::Unlisten),
            };
            self.send_to_server(client, None, unlisten);
        }
        Some(subscription)
    }

    /// Adds a subscription at the server. Returns `false` if the client has dropped it.
    pub(crate) fn subscribe(&mut self, client: ClientIndex, number: u64) -> bool {
        let at_replica = self.clients[client].replica.is_some();
        let subscription = self.clients[client].subscriptions.get_mut(&number);
        let Some(subscription) = subscription.filter(|wanted| !wanted.ended) else {
            return false;
        };
        let session = subscription.session;
        if !std::mem::replace(&mut subscription.at_server, true) {
            self.channels.insert((session, client, number));
            if !at_replica {
                let store = &mut self.server_of(client).store;
                store.subscribe(session);
                let clock = store.clock();
                self.record(Some(client), Event::Subscribed { session, clock });
            }
        }
        true
    }

    pub(crate) fn resubscribe(&mut self, client: ClientIndex, connection: u64, number: u64) {
        let state = &self.clients[client];
        if state.connection != connection || state.gate.is_shut() {
            // A paused client subscribes again when it is resumed.
            return;
        }
        let out = state.isolated || state.denied;
        if out || !self.server_of(client).up {
            self.schedule_resubscribe(self.now + RECONNECT_EVERY, client, number);
        } else if self.subscribe(client, number) {
            let notification = Notification::Missed { listening: true };
            let cause = None;
            let content = Content::Push {
                notification,
                cause,
            };
            let push = ToClient::Push {
                connection,
                subscription: number,
                notification,
                message: self.note_sent(client, content),
            };
            self.send_to_client(client, None, push);
        }
    }

    /// Schedules the subscriptions that the server doesn't have.
    pub(crate) fn try_subscribe(&mut self, client: ClientIndex) {
        let missing: Vec<u64> = self.clients[client]
            .subscriptions
            .iter()
            .filter(|(_, subscription)| !subscription.at_server && !subscription.ended)
            .map(|(&number, _)| number)
            .collect();
        for subscription in missing {
            self.schedule_resubscribe(self.now, client, subscription);
        }
    }

    fn schedule_resubscribe(&mut self, from: Duration, client: ClientIndex, subscription: u64) {
        let state = &mut self.clients[client];
        let connection = state.connection;
        // The order of the link doesn't matter, because the connection is a new one.
        let at = from + state.latency.draw(&mut self.choices);
        let again = SimEvent::Resubscribe {
            client,
            connection,
            subscription,
        };
        self.queue.insert(at, again);
    }

    /// Breaks the connection of a client. Replies and pushes in flight are lost; requests in flight
    /// still arrive.
    pub(crate) fn lose_connection(&mut self, client: ClientIndex) {
        for id in self.calls.waiting(client) {
            let lost = BackendError::outcome_unknown("the connection was lost");
            let (_, waiter) = self.calls.finish(id, Err(lost));
            self.wakes.add(waiter);
        }
        self.clients[client].connection += 1;
        self.lose_subscriptions(client);
    }

    /// Ends the subscriptions of a client, at the primary or at a replica.
    fn lose_subscriptions(&mut self, client: ClientIndex) {
        let state = &mut self.clients[client];
        let mut gone = Vec::new();
        for (&number, subscription) in &mut state.subscriptions {
            if std::mem::take(&mut subscription.at_server) {
                let notification = Notification::Missed { listening: false };
                gone.push((number, subscription.session));
                subscription.notifications.push_back(notification);
                self.wakes.add(subscription.waiter.take());
            }
        }
        for &(number, session) in &gone {
            self.channels.remove(&(session, client, number));
        }
        if self.clients[client].replica.take().is_none() {
            let sessions = gone.into_iter().map(|(_, session)| session);
            self.uncount(client, sessions);
        }
    }

    /// Removes listeners from the count of the client's server.
    fn uncount(&mut self, client: ClientIndex, sessions: impl Iterator<Item = SessionId>) {
        for session in sessions {
            let store = &mut self.server_of(client).store;
            store.unsubscribe(session);
            let clock = store.clock();
            self.record(Some(client), Event::Unsubscribed { session, clock });
        }
    }

    /// Moves the subscriptions of a client from a replica to the primary.
    pub(crate) fn follow_primary(&mut self, client: ClientIndex) {
        if self.clients[client].replica.is_some() {
            let event = Event::Client(ClientEvent::FollowedPrimary);
            self.record(Some(client), event);
            self.lose_subscriptions(client);
            self.try_subscribe(client);
        }
    }

    /// Closes a client, unless it is closed already.
    pub(crate) fn close(&mut self, client: ClientIndex) {
        if std::mem::replace(&mut self.clients[client].closed, true) {
            return;
        }
        self.lose_connection(client);
        // The streams end when all their notifications have been read.
        for subscription in self.clients[client].subscriptions.values_mut() {
            subscription.ended = true;
            self.wakes.add(subscription.waiter.take());
        }
        self.record(Some(client), Event::Client(ClientEvent::Closed));
    }

    pub(crate) fn stop_server(&mut self) {
        if self.servers.primary.up {
            self.leave_server(ServerEvent::Stopped, |_, client| !client.on_old);
        }
    }

    pub(crate) fn start_server(&mut self, data: Data) {
        if !self.servers.primary.up {
            let data = match data {
                Data::AllBut(tail) => Data::AllBut(self.servers.resolve(self.now, tail)),
                other => other,
            };
            self.change_server(ServerEvent::Started { data });
        }
    }

    pub(crate) fn fail_over(&mut self, lost: Tail) {
        let lost = self.servers.resolve(self.now, lost);
        let event = ServerEvent::FailedOver { lost };
        self.leave_server(event, |_, client| !client.on_old);
    }

    /// Switches over to a replica with all data, whose clock is `ahead`. The clients in `staying` keep
    /// their subscriptions at the old server. Returns `false` if there isn't one primary that runs.
    pub(crate) fn switch_over(&mut self, ahead: Duration, staying: &[ClientIndex]) -> bool {
        if !self.servers.has_one_primary() {
            return false;
        }
        let clock = self.servers.primary.store.clock();
        for &client in staying {
            let state = &mut self.clients[client];
            if state.replica.replace(clock).is_none() {
                let subscriptions = state.subscriptions.values();
                let counted = subscriptions.filter(|subscription| subscription.at_server);
                let sessions: Vec<_> = counted.map(|subscription| subscription.session).collect();
                self.uncount(client, sessions.into_iter());
            }
        }
        let names = staying.iter().map(|&client| &self.clients[client].name);
        let event = ServerEvent::SwitchedOver {
            staying: names.map(ToString::to_string).collect(),
        };
        self.leave_server(event, |client, _| !staying.contains(&client));
        if let Some(step) = self.servers.primary.store.step_to(ahead) {
            self.change_server(step);
        }
        // A replica follows the new primary, and so has its data and its time.
        if let Some(reads) = self.servers.replica.as_ref().map(|it| it.reads) {
            self.change_server(ServerEvent::ReplicaCutOff { reads });
        }
        true
    }

    /// Returns `false` if there isn't one primary that runs.
    pub(crate) fn split(&mut self, lost: Tail, staying: &[ClientIndex]) -> bool {
        if !self.servers.has_one_primary() {
            return false;
        }
        let lost = self.servers.resolve(self.now, lost);
        for &client in staying {
            self.clients[client].on_old = true;
        }
        let names = self.clients.iter().filter(|client| client.on_old);
        let staying = names.map(|client| client.name.to_string()).collect();
        let event = ServerEvent::Split { lost, staying };
        self.leave_server(event, |_, client| !client.on_old);
        true
    }

    pub(crate) fn heal(&mut self) {
        if self.servers.old.is_some() {
            self.leave_server(ServerEvent::Healed, |_, client| client.on_old);
            for client in &mut self.clients {
                client.on_old = false;
            }
        }
    }

    /// Breaks the connections of the clients that `whose` selects, and applies the event. The
    /// clients then try to subscribe at their new server.
    fn leave_server(&mut self, event: ServerEvent, whose: impl Fn(ClientIndex, &Client) -> bool) {
        let mut leaving: Vec<ClientIndex> = (0..self.clients.len()).collect();
        leaving.retain(|&index| whose(index, &self.clients[index]));
        for &client in &leaving {
            self.lose_connection(client);
        }
        self.change_server(event);
        for client in leaving {
            self.try_subscribe(client);
        }
    }

    pub(crate) fn change_server(&mut self, event: ServerEvent) {
        self.servers.apply(&event);
        self.record(None, Event::Server(event));
    }
}

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
        now: Duration,
        client: ClientIndex,
        number: u64,
    ) -> Option<Subscription> {
        let subscription = self.clients[client].subscriptions.remove(&number)?;
        let session = subscription.session;
        let at_server = self.channels.remove(&(session, client, number));
        if at_server && self.clients[client].replica.is_none() {
            let process = self.server_of(client).process;
            let message = self.note_sent(now, client, Content::Unlisten);
            let unlisten = ToServer::Unlisten {
                session,
                process,
                message,
            };
            self.send_to_server(now, client, None, unlisten);
        }
        Some(subscription)
    }

    /// Adds a subscription at the server. Returns `false` if the client has dropped it.
    pub(crate) fn subscribe(&mut self, now: Duration, client: ClientIndex, number: u64) -> bool {
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
                self.record(now, Some(client), Event::Subscribed { session, clock });
            }
        }
        true
    }

    pub(crate) fn resubscribe(
        &mut self,
        now: Duration,
        client: ClientIndex,
        connection: u64,
        number: u64,
    ) {
        let state = &self.clients[client];
        if state.connection != connection || state.gate.is_shut() {
            // A paused client subscribes again when it is resumed.
            return;
        }
        let isolated = state.isolated;
        if isolated || !self.server_of(client).up {
            self.schedule_resubscribe(now + RECONNECT_EVERY, client, number);
        } else if self.subscribe(now, client, number) {
            let notification = Notification::Missed { listening: true };
            let message = self.note_sent(
                now,
                client,
                Content::Push {
                    notification,
                    cause: None,
                },
            );
            let push = ToClient::Push {
                connection,
                subscription: number,
                notification,
                message,
            };
            self.send_to_client(now, client, None, push);
        }
    }

    /// Schedules the subscriptions that the server doesn't have.
    pub(crate) fn try_subscribe(&mut self, now: Duration, client: ClientIndex) {
        let missing: Vec<u64> = self.clients[client]
            .subscriptions
            .iter()
            .filter(|(_, subscription)| !subscription.at_server && !subscription.ended)
            .map(|(&number, _)| number)
            .collect();
        for subscription in missing {
            self.schedule_resubscribe(now, client, subscription);
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
    pub(crate) fn lose_connection(&mut self, now: Duration, client: ClientIndex) {
        for id in self.calls.waiting(client) {
            let lost = BackendError::outcome_unknown("the connection was lost");
            let (_, waiter) = self.calls.finish(id, Err(lost));
            self.wakes.add(waiter);
        }
        self.clients[client].connection += 1;
        self.lose_subscriptions(now, client);
    }

    /// Ends the subscriptions of a client, at the primary or at a replica.
    fn lose_subscriptions(&mut self, now: Duration, client: ClientIndex) {
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
            self.uncount(now, client, sessions);
        }
    }

    /// Removes listeners from the count of the client's server.
    fn uncount(
        &mut self,
        now: Duration,
        client: ClientIndex,
        sessions: impl Iterator<Item = SessionId>,
    ) {
        for session in sessions {
            let store = &mut self.server_of(client).store;
            store.unsubscribe(session);
            let clock = store.clock();
            self.record(now, Some(client), Event::Unsubscribed { session, clock });
        }
    }

    /// Moves the subscriptions of a client from a replica to the primary.
    pub(crate) fn follow_primary(&mut self, now: Duration, client: ClientIndex) {
        if self.clients[client].replica.is_some() {
            let event = Event::Client(ClientEvent::FollowedPrimary);
            self.record(now, Some(client), event);
            self.lose_subscriptions(now, client);
            self.try_subscribe(now, client);
        }
    }

    /// Closes a client. Returns `false` if it is closed already.
    pub(crate) fn close(&mut self, now: Duration, client: ClientIndex) -> bool {
        if std::mem::replace(&mut self.clients[client].closed, true) {
            return false;
        }
        self.lose_connection(now, client);
        // The streams end when all their notifications have been read.
        for subscription in self.clients[client].subscriptions.values_mut() {
            subscription.ended = true;
            self.wakes.add(subscription.waiter.take());
        }
        true
    }

    pub(crate) fn stop_server(&mut self, now: Duration) {
        if self.servers.primary.up {
            self.leave_server(now, ServerEvent::Stopped, |_, client| !client.on_old);
        }
    }

    pub(crate) fn start_server(&mut self, now: Duration, data: Data) {
        if !self.servers.primary.up {
            let data = match data {
                Data::AllBut(tail) => Data::AllBut(self.servers.resolve(now, tail)),
                other => other,
            };
            self.change_server(now, ServerEvent::Started { data });
        }
    }

    pub(crate) fn fail_over(&mut self, now: Duration, lost: Tail) {
        let lost = self.servers.resolve(now, lost);
        let event = ServerEvent::FailedOver { lost };
        self.leave_server(now, event, |_, client| !client.on_old);
    }

    /// Whether there is one primary, which runs.
    pub(crate) const fn has_one_primary(&self) -> bool {
        self.servers.old.is_none() && self.servers.primary.up
    }

    /// Switches over to a replica with all data, whose clock is `ahead`. The clients in `staying` keep
    /// their subscriptions at the old server.
    pub(crate) fn switch_over(&mut self, now: Duration, ahead: Duration, staying: &[ClientIndex]) {
        let clock = self.servers.primary.store.clock();
        for &client in staying {
            let state = &mut self.clients[client];
            if state.replica.replace(clock).is_none() {
                let subscriptions = state.subscriptions.values();
                let counted = subscriptions.filter(|subscription| subscription.at_server);
                let sessions: Vec<_> = counted.map(|subscription| subscription.session).collect();
                self.uncount(now, client, sessions.into_iter());
            }
        }
        let names = staying.iter().map(|&client| &self.clients[client].name);
        let event = ServerEvent::SwitchedOver {
            staying: names.map(ToString::to_string).collect(),
        };
        self.leave_server(now, event, |client, _| !staying.contains(&client));
        if let Some(step) = self.servers.primary.store.step_to(ahead) {
            self.change_server(now, step);
        }
        // A replica follows the new primary, and so has its data and its time.
        if let Some(reads) = self.servers.replica.as_ref().map(|it| it.reads) {
            self.cut_off_replica(now, reads);
        }
    }

    pub(crate) fn split(&mut self, now: Duration, lost: Tail, staying: &[ClientIndex]) {
        let lost = self.servers.resolve(now, lost);
        for &client in staying {
            self.clients[client].on_old = true;
        }
        let names = self.clients.iter().filter(|client| client.on_old);
        let staying = names.map(|client| client.name.to_string()).collect();
        let event = ServerEvent::Split { lost, staying };
        self.leave_server(now, event, |_, client| !client.on_old);
    }

    pub(crate) fn heal(&mut self, now: Duration) {
        if self.servers.old.is_some() {
            self.leave_server(now, ServerEvent::Healed, |_, client| client.on_old);
            for client in &mut self.clients {
                client.on_old = false;
            }
        }
    }

    /// Breaks the connections of the clients that `whose` selects, and applies the event. The
    /// clients then try to subscribe at their new server.
    fn leave_server(
        &mut self,
        now: Duration,
        event: ServerEvent,
        whose: impl Fn(ClientIndex, &Client) -> bool,
    ) {
        let leaving = self.clients.iter().enumerate();
        let leaving = leaving.filter(|(index, client)| whose(*index, client));
        let leaving: Vec<ClientIndex> = leaving.map(|(index, _)| index).collect();
        for &client in &leaving {
            self.lose_connection(now, client);
        }
        self.change_server(now, event);
        for client in leaving {
            self.try_subscribe(now, client);
        }
    }

    pub(crate) fn change_server(&mut self, now: Duration, event: ServerEvent) {
        self.servers.apply(&event);
        self.record(now, None, Event::Server(event));
    }
}

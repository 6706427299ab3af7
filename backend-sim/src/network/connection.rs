//! Connections and subscriptions of the clients, and the events that break them.

use std::time::Duration;

use leasehold_api::{BackendError, Notification, SessionId};

use crate::network::Network;
use crate::network::client::{Client, Subscription};
use crate::network::event::{ClientIndex, SimEvent, ToClient, ToServer};
use crate::record::{Content, Data, Event, ServerEvent, Tail};

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
        if self.channels.remove(&(session, client, number)) {
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
        let subscription = self.clients[client].subscriptions.get_mut(&number);
        let Some(subscription) = subscription.filter(|wanted| !wanted.ended) else {
            return false;
        };
        let session = subscription.session;
        if !std::mem::replace(&mut subscription.at_server, true) {
            let store = &mut self.server_of(client).store;
            store.subscribe(session);
            let clock = store.clock();
            self.channels.insert((session, client, number));
            self.record(now, Some(client), Event::Subscribed { session, clock });
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
        let state = &mut self.clients[client];
        state.connection += 1;
        let mut gone = Vec::new();
        for (&number, subscription) in &mut state.subscriptions {
            if std::mem::take(&mut subscription.at_server) {
                let notification = Notification::Missed { listening: false };
                gone.push((number, subscription.session));
                subscription.notifications.push_back(notification);
                self.wakes.add(subscription.waiter.take());
            }
        }
        for (number, session) in gone {
            self.channels.remove(&(session, client, number));
            let store = &mut self.server_of(client).store;
            store.unsubscribe(session);
            let clock = store.clock();
            self.record(now, Some(client), Event::Unsubscribed { session, clock });
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
            self.leave_server(now, ServerEvent::Stopped, |client| !client.on_old);
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
        self.leave_server(now, event, |client| !client.on_old);
    }

    pub(crate) fn split(&mut self, now: Duration, lost: Tail, staying: &[ClientIndex]) {
        let lost = self.servers.resolve(now, lost);
        for &client in staying {
            self.clients[client].on_old = true;
        }
        let names = self.clients.iter().filter(|client| client.on_old);
        let staying = names.map(|client| client.name.to_string()).collect();
        let event = ServerEvent::Split { lost, staying };
        self.leave_server(now, event, |client| !client.on_old);
    }

    pub(crate) fn heal(&mut self, now: Duration) {
        if self.servers.old.is_some() {
            self.leave_server(now, ServerEvent::Healed, |client| client.on_old);
            for client in &mut self.clients {
                client.on_old = false;
            }
        }
    }

    /// Breaks the connections of the clients that `whose` selects, and applies the event. The
    /// clients then try to subscribe at their new server.
    fn leave_server(&mut self, now: Duration, event: ServerEvent, whose: fn(&Client) -> bool) {
        let leaving = self.clients.iter().enumerate();
        let leaving = leaving.filter(|(_, client)| whose(client));
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

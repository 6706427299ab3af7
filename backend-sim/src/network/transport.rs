//! Calls, replies and pushes between the clients and the server, and their faults.

use std::task::{Poll, Waker};
use std::time::Duration;

use leasehold_api::bounds::CALL_TIMEOUT;
use leasehold_api::machine::{Message, Reply};
use leasehold_api::{
    AcquireReply, BackendError, Listed, Notification, PollReply, RenewReply, Stamp,
};

use crate::engine::ready::Wakeup;
use crate::engine::tape::Site;
use crate::network::Network;
use crate::network::calls::CallResult;
use crate::network::event::{
    Arrival, CallId, ClientIndex, Request, Response, SimEvent, ToClient, ToServer,
};
use crate::record::{Call, Content, Event, Fault, ServerAnswer};
use crate::server::primaries::{Server, Standing};

impl Network {
    pub(crate) fn apply(&mut self, event: SimEvent) {
        let (kind, client) = match event {
            SimEvent::Timer(waiter) => {
                self.wakes.add(waiter);
                (1, 0)
            }
            SimEvent::Timeout(id) => {
                let waiter = self.calls.time_out(id);
                self.wakes.add(waiter);
                (2, 0)
            }
            SimEvent::ToServer(client) => {
                if let Some(message) = self.clients[client].to_server.arrive() {
                    self.reach_server(client, message);
                }
                (3, client)
            }
            SimEvent::ToClient(client) => {
                if let Some(message) = self.clients[client].from_server.arrive() {
                    self.reach_client(client, message);
                }
                (4, client)
            }
            SimEvent::LateToServer(client, message) => {
                self.reach_server(client, *message);
                (5, client)
            }
            SimEvent::LateToClient(client, message) => {
                self.reach_client(client, *message);
                (6, client)
            }
            SimEvent::Resubscribe {
                client,
                connection,
                subscription,
            } => {
                self.resubscribe(client, connection, subscription);
                (7, client)
            }
        };
        let at = self.now.as_nanos() as u64;
        let fact = at ^ kind << 60 ^ (client as u64) << 48;
        self.choices.trace.fold(fact);
    }

    fn reach_server(&mut self, client: ClientIndex, message: ToServer) {
        match message {
            ToServer::Request(arrival) => self.arrive(arrival),
            ToServer::Unlisten {
                session,
                process,
                message,
            } => {
                let server = self.servers.at(process).filter(|server| server.up);
                let clock = server.map(|server| {
                    server.store.unsubscribe(session);
                    server.store.clock()
                });
                if let Some(clock) = clock {
                    let event = Event::Unsubscribed { session, clock };
                    self.record_of(Some(message), Some(client), event);
                }
                self.note_ended(message, clock.is_some());
            }
        }
    }

    fn reach_client(&mut self, client: ClientIndex, message: ToClient) {
        let isolated = self.clients[client].isolated;
        match message {
            ToClient::Reply { message, .. } | ToClient::Push { message, .. } if isolated => {
                self.note_ended(message, false);
            }
            ToClient::Reply {
                id,
                result,
                message,
            } => {
                let (waited, waiter) = self.calls.finish(id, result);
                self.wakes.add(waiter);
                self.note_ended(message, waited);
            }
            ToClient::Push {
                connection,
                subscription,
                notification,
                message,
            } => {
                let state = &mut self.clients[client];
                let subscription = state.subscriptions.get_mut(&subscription);
                let same = state.connection == connection;
                let wanted = subscription.filter(|wants| same && !wants.ended);
                let arrived = wanted.is_some();
                if let Some(subscription) = wanted {
                    subscription.notifications.push_back(notification);
                    self.wakes.add(subscription.waiter.take());
                    let event = Event::Notified { notification };
                    self.record_of(Some(message), Some(client), event);
                }
                self.note_ended(message, arrived);
            }
        }
    }

    pub(crate) fn server_of(&mut self, client: ClientIndex) -> &mut Server {
        let on_old = self.clients[client].on_old;
        self.servers.of(on_old)
    }

    fn latency(&mut self, client: ClientIndex) -> Duration {
        self.clients[client].latency.draw(&mut self.choices)
    }

    /// Sends a message to the server. Later messages overtake one that is delayed by `late`.
    pub(crate) fn send_to_server(
        &mut self,
        client: ClientIndex,
        late: Option<Duration>,
        message: ToServer,
    ) {
        let mut at = self.now;
        if late.is_some() || !self.options.atomic_calls {
            at += self.latency(client);
        }
        match late {
            Some(late) => {
                let event = SimEvent::LateToServer(client, Box::new(message));
                self.queue.insert(at.saturating_add(late), event);
            }
            None => {
                let at = self.clients[client].to_server.send(at, message);
                self.queue.insert(at, SimEvent::ToServer(client));
            }
        }
    }

    /// Sends a message to a client. Later messages overtake one that is delayed by `late`.
    pub(crate) fn send_to_client(
        &mut self,
        client: ClientIndex,
        late: Option<Duration>,
        message: ToClient,
    ) {
        if late.is_none() && self.options.atomic_calls {
            self.reach_client(client, message);
            return;
        }
        let at = self.now + self.latency(client);
        match late {
            Some(late) => {
                let event = SimEvent::LateToClient(client, Box::new(message));
                self.queue.insert(at.saturating_add(late), event);
            }
            None => {
                let at = self.clients[client].from_server.send(at, message);
                self.queue.insert(at, SimEvent::ToClient(client));
            }
        }
    }

    /// Sends a request and registers a waker for the reply. The returned id is valid until
    /// [`forget`](Self::forget).
    pub(crate) fn send(
        &mut self,
        client: ClientIndex,
        (call, request): (Call, Request),
        waker: &Waker,
    ) -> Result<CallId, BackendError> {
        if self.clients[client].closed {
            return Err(BackendError::Closed);
        }
        let number = self.queue.number();
        let waiter = self.wakers.waiter(waker);
        let id = self.calls.begin(client, number, waiter);
        let fault = self.clients[client].faults.for_call(call);
        let timeout = self.clients[client].clock.true_span(CALL_TIMEOUT);
        let timeout = self.now.saturating_add(timeout);
        let timeout = self.queue.insert(timeout, SimEvent::Timeout(id));
        self.calls.limit(id, timeout);
        let again = false;
        let message = self.note_sent(client, Content::Request { call, again });
        let process = self.process_of(client);
        let arrival = Box::new(Arrival {
            client,
            id,
            call,
            request,
            process,
            fault,
            again,
            message,
            sent: self.now,
        });
        match fault {
            Some(Fault::LoseRequest) => {
                self.record_fault(&arrival);
                self.note_ended(message, false);
            }
            Some(Fault::DelayRequest(late)) => {
                self.record_fault(&arrival);
                self.send_to_server(client, Some(late), ToServer::Request(arrival));
            }
            _ => self.send_to_server(client, None, ToServer::Request(arrival)),
        }
        Ok(id)
    }

    fn record_fault(&mut self, arrival: &Arrival) {
        let Some(fault) = arrival.fault else { return };
        let key = match &arrival.request {
            Request::Steps(steps) => steps.first().map(|(key, _)| key.clone()),
            Request::Hello | Request::Listen(_) | Request::List(_) => None,
        };
        let call = Some(arrival.call);
        let event = Event::Fault { fault, call, key };
        self.record_of(Some(arrival.message), Some(arrival.client), event);
    }

    /// Returns the outcome of a call and [forgets](Self::forget) the call, or registers the waker.
    /// Also returns the previous waker, which the caller must drop outside the lock.
    pub(crate) fn poll_call(
        &mut self,
        id: CallId,
        waker: &Waker,
    ) -> (Poll<CallResult>, Option<Wakeup>) {
        let (poll, before) = self.calls.poll(id, waker, &self.wakers);
        let waiter = if poll.is_ready() {
            self.forget(id)
        } else {
            before
        };
        (poll, waiter)
    }

    /// Removes a call. Returns its waker, which the caller must drop outside the lock.
    pub(crate) fn forget(&mut self, id: CallId) -> Option<Wakeup> {
        let (timeout, waiter) = self.calls.forget(id);
        if let Some(timeout) = timeout {
            self.queue.cancel(timeout);
        }
        waiter
    }

    fn arrive(&mut self, mut arrival: Box<Arrival>) {
        let client = arrival.client;
        if arrival.again {
            // The client's library sends the second delivery, to its current server.
            arrival.process = self.process_of(client);
        }
        let standing = self.servers.standing(arrival.process);
        let reached = match standing {
            Standing::Serves | Standing::IsReplica => true,
            Standing::Refuses(_) => !arrival.again,
            Standing::Gone => false,
        };
        if !reached || self.clients[client].isolated {
            let event = Event::Undelivered { call: arrival.call };
            self.record_of(Some(arrival.message), Some(client), event);
            self.note_ended(arrival.message, false);
            return;
        }
        self.note_ended(arrival.message, true);
        let instead = match standing {
            Standing::Refuses(reason) => Some(Err(BackendError::unavailable(reason))),
            _ if self.clients[client].denied => Some(Err(BackendError::rejected(
                "NOPERM: the client has no rights",
            ))),
            Standing::IsReplica => Some(self.ask_replica(&arrival)),
            Standing::Serves | Standing::Gone => None,
        };
        if let Some(result) = instead {
            self.reply(&arrival, None, result);
            return;
        }
        let (response, messages) = self.execute(&arrival);
        self.respond(&arrival, response, &messages);
        if let (Some(Fault::DuplicateRequest(after)), false) = (arrival.fault, arrival.again) {
            self.record_fault(&arrival);
            arrival.again = true;
            let (call, again) = (arrival.call, true);
            arrival.message = self.note_sent(client, Content::Request { call, again });
            let again = SimEvent::LateToServer(client, Box::new(ToServer::Request(arrival)));
            self.queue.insert(self.now.saturating_add(after), again);
        }
    }

    fn respond(&mut self, arrival: &Arrival, response: Response, messages: &[Message]) {
        let stamp = response.stamp;
        let from_old = self.servers.is_old(arrival.process);
        let reply_first = messages.is_empty() || self.choices.draw(Site::ReplyFirst, 2) == 0;
        if !reply_first {
            self.publish(arrival.message, from_old, stamp, messages);
        }
        match arrival.fault {
            _ if arrival.again => {}
            Some(Fault::LoseReply) => {
                self.record_fault(arrival);
                let message = self.note_reply(arrival);
                self.note_ended(message, false);
            }
            Some(Fault::DelayReply(late)) => {
                self.record_fault(arrival);
                self.reply(arrival, Some(late), Ok(response));
            }
            _ => self.reply(arrival, None, Ok(response)),
        }
        if reply_first {
            self.publish(arrival.message, from_old, stamp, messages);
        }
    }

    fn note_reply(&mut self, arrival: &Arrival) -> u64 {
        let (call, to) = (arrival.call, arrival.message);
        self.note_sent(arrival.client, Content::Reply { call, to })
    }

    fn reply(&mut self, arrival: &Arrival, late: Option<Duration>, result: CallResult) {
        let reply = ToClient::Reply {
            id: arrival.id,
            result,
            message: self.note_reply(arrival),
        };
        self.send_to_client(arrival.client, late, reply);
    }

    fn execute(&mut self, arrival: &Arrival) -> (Response, Vec<Message>) {
        let on_old = self.servers.is_old(arrival.process);
        let stamp = self.servers.of(on_old).store.stamp(self.now);
        let mut answers = Vec::new();
        let mut messages = Vec::new();
        let mut listed = Listed::default();
        match &arrival.request {
            Request::Hello => {
                let client = Some(arrival.client);
                self.record_of(Some(arrival.message), client, Event::Hello { stamp });
            }
            Request::Listen(subscription) => {
                // The client may have moved to another server.
                if on_old == self.clients[arrival.client].on_old {
                    self.subscribe(arrival.client, *subscription);
                }
            }
            Request::List(request) => listed = self.servers.of(on_old).store.list(request),
            Request::Steps(steps) => {
                answers.reserve_exact(steps.len());
                for (key, command) in steps {
                    let step = (key, command);
                    let executed = self.step(arrival, step, steps.len(), on_old);
                    self.keep_executed(arrival, step, stamp, &executed.answer);
                    messages.extend(executed.messages);
                    answers.push(executed.answer);
                }
            }
        }
        let response = Response {
            stamp,
            answers,
            listed,
        };
        (response, messages)
    }

    fn publish(&mut self, cause: u64, from_old: bool, stamp: Stamp, messages: &[Message]) {
        if self.servers.of(from_old).store.mute {
            return;
        }
        for message in messages {
            let mut from = (message.to, 0, 0);
            let end = (message.to, usize::MAX, u64::MAX);
            while let Some(&(_, client, subscription)) = self.channels.range(from..=end).next() {
                if self.clients[client].on_old == from_old {
                    // The stamp is that of the execution, wherever the message was received.
                    let notification = message.payload.stamped(stamp);
                    self.push(cause, (client, subscription), notification);
                }
                from = (message.to, client, subscription + 1);
            }
        }
    }

    fn push(
        &mut self,
        cause: u64,
        (client, subscription): (ClientIndex, u64),
        notification: Notification,
    ) {
        let connection = self.clients[client].connection;
        let push = |message| ToClient::Push {
            connection,
            subscription,
            notification,
            message,
        };
        // A replica relays the push, on another connection than that of the replies.
        let state = &self.clients[client];
        let unordered = match state.replica {
            Some(_) => Some(self.replication_lag.draw(&mut self.choices)),
            None => state.unordered_pushes.then_some(Duration::ZERO),
        };
        let content = Content::Push {
            notification,
            cause: Some(cause),
        };
        let message = self.note_sent(client, content);
        let fault = self.clients[client].faults.for_push();
        if let Some(fault) = fault {
            let (call, key) = (None, None);
            let event = Event::Fault { fault, call, key };
            self.record_of(Some(message), Some(client), event);
        }
        let late = match fault {
            Some(Fault::LosePush) => {
                self.note_ended(message, false);
                return;
            }
            Some(Fault::DelayPush(late)) => Some(late),
            Some(Fault::DuplicatePush) => {
                let first = self.note_sent(client, content);
                self.send_to_client(client, unordered, push(first));
                unordered
            }
            _ => unordered,
        };
        self.send_to_client(client, late, push(message));
    }
}

/// Returns what the hash of a run covers of an answer.
pub(crate) fn summary(answer: &ServerAnswer) -> u64 {
    let ServerAnswer::Reply(reply) = answer else {
        return 1;
    };
    let time = |time: Duration| time.as_nanos() as u64;
    match reply {
        Reply::Acquire(AcquireReply::Acquired(acquired))
        | Reply::Poll(PollReply::Acquired(acquired)) => {
            2 ^ acquired.token.get() << 3 ^ time(acquired.remaining)
        }
        Reply::Acquire(AcquireReply::Queued(queued)) | Reply::Poll(PollReply::Queued(queued)) => {
            3 ^ u64::from(queued.ahead) << 32 ^ time(queued.poll_after)
        }
        Reply::Acquire(AcquireReply::Contended(contention)) => 4 ^ time(contention.retry_after),
        Reply::Acquire(AcquireReply::Stale | AcquireReply::TooLate | AcquireReply::Refused(_)) => 5,
        Reply::Poll(PollReply::Gone(reason)) => 6 ^ (*reason as u64) << 8,
        Reply::Renew(RenewReply::Renewed { token, remaining }) => {
            7 ^ token.get() << 3 ^ time(*remaining)
        }
        Reply::Renew(RenewReply::Lost(reason)) => 8 ^ (*reason as u64) << 8,
        Reply::Release(_) => 9,
        Reply::Convert(_) => 10,
        Reply::Inspect(_) => 11,
        Reply::ForceRelease(_) => 12,
        Reply::Note(_) => 13,
    }
}

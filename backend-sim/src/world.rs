//! One simulation: the server, its clients, and the network between them, in virtual time.
//!
//! Everything that takes time is a [`Happening`] in one queue. One task, the pump, sleeps until
//! the first of them is due and lets it happen; so the order of all that happens at the same
//! instant is drawn from the seed, and does not depend on how the executor orders its timers.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_channel::{mpsc, oneshot};
use leasehold_api::machine::{Event as MachineEvent, Message};
use leasehold_api::{BackendError, Notice, SessionId, Stamp};

use crate::choices::{Choices, Site};
use crate::client::{Client, Outcome};
use crate::clock::Clock;
use crate::faults::Fault;
use crate::log::{Call, Content, Entry, Event, Fate, Log};
use crate::options::SimOptions;
use crate::queue::{Arrival, ClientIndex, Happening, Queue, Request, Response};
use crate::store::Store;

/// How many orders are drawn from for what happens at the same instant.
pub(crate) const ORDERS: u32 = 4;

/// What is done after the lock is let go: it may run other people's code.
#[derive(Debug)]
pub(crate) enum Effect {
    Wake(Waker),
    Reply(oneshot::Sender<Outcome>, Outcome),
    Notify(mpsc::UnboundedSender<Notice>, Notice),
}

impl Effect {
    fn perform(self) {
        // A receiver that is gone has given up waiting; there is nobody to tell.
        match self {
            Self::Wake(waker) => waker.wake(),
            Self::Reply(sender, outcome) => drop(sender.send(outcome)),
            Self::Notify(sender, notice) => drop(sender.unbounded_send(notice)),
        }
    }
}

/// A simulation and the clock that it runs on.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) clock: Clock,
    inner: Mutex<Inner>,
}

/// The part of a simulation that changes.
#[derive(Debug)]
pub(crate) struct Inner {
    options: SimOptions,
    pub(crate) choices: Choices,
    pub(crate) store: Store,
    pub(crate) log: Log,
    pub(crate) clients: Vec<Client>,
    pub(crate) queue: Queue,
    /// Who subscribes to a session's channel.
    pub(crate) channels: BTreeSet<(SessionId, ClientIndex, u64)>,
    /// Number of the server's process.
    pub(crate) process: u64,
    pub(crate) up: bool,
    /// The latest time at which anything happened.
    latest: Duration,
    pub(crate) effects: Vec<Effect>,
    pump: Option<Waker>,
}

impl World {
    #[track_caller]
    pub(crate) fn start(options: SimOptions) -> Arc<Self> {
        let world = Arc::new(Self {
            clock: Clock::start(),
            inner: Mutex::new(Inner {
                options,
                choices: Choices::new(options.seed),
                store: Store::new(options.settings),
                log: Log::new(options.log_limit),
                clients: Vec::new(),
                queue: Queue::default(),
                channels: BTreeSet::new(),
                process: 1,
                up: true,
                latest: Duration::ZERO,
                effects: Vec::new(),
                pump: None,
            }),
        });
        world.clock.spawn(Box::pin(pump(Arc::downgrade(&world))));
        world
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something to the simulation at the present virtual time.
    pub(crate) fn act<R>(&self, act: impl FnOnce(&mut Inner, Duration) -> R) -> R {
        let elapsed = self.clock.elapsed();
        let mut inner = self.lock();
        let first_before = inner.queue.next_at();
        let now = inner.latest.max(elapsed);
        inner.latest = now;
        let result = act(&mut inner, now);
        if inner.queue.next_at() != first_before {
            let pump = inner.pump.take().map(Effect::Wake);
            inner.effects.extend(pump);
        }
        let effects = std::mem::take(&mut inner.effects);
        drop(inner);
        effects.into_iter().for_each(Effect::perform);
        result
    }

    /// Lets everything happen that is due; tells when the next is, and whom to wake if something
    /// comes before that.
    fn run_due(&self, waker: &Waker) -> Option<Duration> {
        let elapsed = self.clock.elapsed();
        loop {
            let mut inner = self.lock();
            inner.pump = Some(waker.clone());
            let Some((at, happening)) = inner.queue.pop_due(elapsed) else {
                return inner.queue.next_at();
            };
            let now = inner.latest.max(at);
            inner.latest = now;
            inner.happen(now, happening);
            let effects = std::mem::take(&mut inner.effects);
            drop(inner);
            effects.into_iter().for_each(Effect::perform);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let pump = self.lock().pump.take();
        if let Some(pump) = pump {
            pump.wake();
        }
    }
}

/// Sleeps until something is due and lets it happen, as long as the simulation lives.
async fn pump(world: Weak<World>) {
    let mut alarm = None;
    poll_fn(move |cx| {
        loop {
            let Some(world) = world.upgrade() else {
                return Poll::Ready(());
            };
            let Some(next) = world.run_due(cx.waker()) else {
                alarm = None;
                return Poll::Pending;
            };
            let set = alarm.take().filter(|(at, _)| *at == next);
            let (_, ringing) = alarm.insert(set.unwrap_or_else(|| (next, world.clock.alarm(next))));
            if ringing.poll(cx).is_pending() {
                return Poll::Pending;
            }
            alarm = None;
        }
    })
    .await;
}

impl Inner {
    pub(crate) fn add_client(&mut self, name: &str) -> ClientIndex {
        let index = self.clients.len();
        let identities = self.choices.identities(index);
        self.clients
            .push(Client::new(name.into(), identities, self.options.latency));
        index
    }

    pub(crate) fn record(&mut self, at: Duration, client: Option<ClientIndex>, event: Event) {
        self.record_of(None, at, client, event);
    }

    /// Records what a message brought.
    fn record_of(
        &mut self,
        message: Option<u64>,
        at: Duration,
        client: Option<ClientIndex>,
        event: Event,
    ) {
        let client = client.map(|index| self.clients[index].name.clone());
        self.log.push(Entry {
            at,
            client,
            message,
            event,
        });
    }

    /// Notes in the log that a message sets out; returns its number.
    pub(crate) fn note_sent(&mut self, at: Duration, client: ClientIndex, content: Content) -> u64 {
        let client = self.clients[client].name.clone();
        self.log.sent(at, client, content)
    }

    /// Starts a timer that runs out in an order drawn among what is due at the same time.
    pub(crate) fn start_timer(&mut self, at: Duration) -> u64 {
        let order = self.choices.draw(Site::Order, ORDERS);
        self.queue.start_timer(at, order)
    }

    /// Starts a timer that runs out after everything else that is due at the same time.
    pub(crate) fn start_last_timer(&mut self, at: Duration) -> u64 {
        self.queue.start_timer(at, ORDERS)
    }

    fn happen(&mut self, now: Duration, happening: Happening) {
        match happening {
            Happening::Timer(number) => {
                let waker = self.queue.take_timer(number);
                self.effects.extend(waker.map(Effect::Wake));
            }
            Happening::Arrival(arrival) => self.arrive(now, *arrival),
            Happening::Reply {
                client,
                number,
                result,
                message,
            } => self.finish(now, message, client, number, result),
            Happening::Push {
                client,
                connection,
                subscription,
                notice,
                message,
            } => self.deliver(now, message, (client, connection), subscription, notice),
            Happening::Unlisten {
                client,
                session,
                process,
                message,
            } => {
                let fate = if process == self.process {
                    self.store.unsubscribe(session);
                    let event = Event::Unsubscribed { session };
                    self.record_of(Some(message), now, Some(client), event);
                    Fate::Arrived(now)
                } else {
                    Fate::Lost(now)
                };
                self.log.ended(message, fate);
            }
            Happening::Resubscribe {
                client,
                connection,
                subscription,
            } => self.resubscribe(now, client, connection, subscription),
        }
    }

    pub(crate) fn send_to_server(
        &mut self,
        now: Duration,
        client: ClientIndex,
        happening: Happening,
    ) {
        let state = &mut self.clients[client];
        let at = now + state.latency.draw(&mut self.choices);
        let order = self.choices.draw(Site::Order, ORDERS);
        let (at, order) = state.to_server.in_order((at, order));
        self.queue.insert(at, order, happening);
    }

    /// Sends to a client; a message that is held up by `late` is overtaken by those after it.
    pub(crate) fn send_to_client(
        &mut self,
        now: Duration,
        client: ClientIndex,
        late: Option<Duration>,
        happening: Happening,
    ) {
        let state = &mut self.clients[client];
        let at = now + state.latency.draw(&mut self.choices);
        let order = self.choices.draw(Site::Order, ORDERS);
        let (at, order) = match late {
            Some(late) => (at + late, order),
            None => state.from_server.in_order((at, order)),
        };
        self.queue.insert(at, order, happening);
    }

    /// Sends a request. The returned number names the call until [`finish`](Self::finish) or
    /// [`forget`](Self::forget).
    pub(crate) fn send(
        &mut self,
        now: Duration,
        client: ClientIndex,
        (call, request): (Call, Request),
        reply: oneshot::Sender<Outcome>,
    ) -> Result<u64, BackendError> {
        if self.clients[client].closed {
            return Err(BackendError::Closed);
        }
        let number = self.queue.number();
        self.clients[client].calls.insert(number, reply);
        let fault = self.clients[client].faults.for_call(call);
        let again = false;
        let message = self.note_sent(now, client, Content::Request { call, again });
        let arrival = Arrival {
            client,
            number,
            call,
            request,
            process: self.process,
            fault,
            again,
            message,
        };
        match fault {
            Some(Fault::LoseRequest) => {
                self.record_fault(now, &arrival);
                self.log.ended(message, Fate::Lost(now));
            }
            Some(Fault::DelayRequest(late)) => {
                self.record_fault(now, &arrival);
                let latency = self.clients[client].latency.draw(&mut self.choices);
                let order = self.choices.draw(Site::Order, ORDERS);
                let happening = Happening::Arrival(Box::new(arrival));
                self.queue.insert(now + latency + late, order, happening);
            }
            _ => self.send_to_server(now, client, Happening::Arrival(Box::new(arrival))),
        }
        Ok(number)
    }

    fn record_fault(&mut self, now: Duration, arrival: &Arrival) {
        let Some(fault) = arrival.fault else { return };
        let key = match &arrival.request {
            Request::Steps(steps) => steps.first().map(|(key, _)| key.clone()),
            Request::Hello | Request::Listen(_) => None,
        };
        let call = Some(arrival.call);
        let event = Event::Fault { fault, call, key };
        self.record_of(Some(arrival.message), now, Some(arrival.client), event);
    }

    /// Nobody waits for this call any more.
    pub(crate) fn forget(&mut self, client: ClientIndex, number: u64) {
        self.clients[client].calls.remove(&number);
    }

    fn finish(
        &mut self,
        now: Duration,
        message: u64,
        client: ClientIndex,
        number: u64,
        result: Outcome,
    ) {
        let state = &mut self.clients[client];
        let waiting = (!state.isolated).then(|| state.calls.remove(&number));
        let mut fate = Fate::Lost(now);
        if let Some(sender) = waiting.flatten() {
            self.effects.push(Effect::Reply(sender, result));
            fate = Fate::Arrived(now);
        }
        self.log.ended(message, fate);
    }

    fn arrive(&mut self, now: Duration, mut arrival: Arrival) {
        let client = arrival.client;
        // A second delivery is the client library's own: it goes to whatever server there is.
        let void = !arrival.again && arrival.process != self.process;
        if self.clients[client].isolated || void || (!self.up && arrival.again) {
            let event = Event::Undelivered { call: arrival.call };
            self.record_of(Some(arrival.message), now, Some(client), event);
            self.log.ended(arrival.message, Fate::Lost(now));
            return;
        }
        self.log.ended(arrival.message, Fate::Arrived(now));
        if !self.up {
            let refused = Err(BackendError::unavailable("connection refused"));
            self.reply(now, &arrival, None, refused);
            return;
        }
        let (response, messages) = self.execute(now, &arrival);
        self.respond(now, &arrival, response, &messages);
        if let (Some(Fault::DuplicateRequest(after)), false) = (arrival.fault, arrival.again) {
            self.record_fault(now, &arrival);
            arrival.again = true;
            let (call, again) = (arrival.call, true);
            arrival.message = self.note_sent(now, client, Content::Request { call, again });
            let order = self.choices.draw(Site::Order, ORDERS);
            self.queue
                .insert(now + after, order, Happening::Arrival(Box::new(arrival)));
        }
    }

    /// Sends the reply, and the pushes that the commands caused.
    fn respond(
        &mut self,
        now: Duration,
        arrival: &Arrival,
        response: Response,
        messages: &[Message],
    ) {
        let stamp = response.stamp;
        let reply_first = messages.is_empty() || self.choices.draw(Site::ReplyFirst, 2) == 0;
        if !reply_first {
            self.publish(now, stamp, messages);
        }
        match arrival.fault {
            _ if arrival.again => {}
            Some(Fault::LoseReply) => {
                self.record_fault(now, arrival);
                let content = Content::Reply {
                    call: arrival.call,
                    to: arrival.message,
                };
                let message = self.note_sent(now, arrival.client, content);
                self.log.ended(message, Fate::Lost(now));
            }
            fault => {
                let late = match fault {
                    Some(Fault::DelayReply(late)) => {
                        self.record_fault(now, arrival);
                        Some(late)
                    }
                    _ => None,
                };
                self.reply(now, arrival, late, Ok(response));
            }
        }
        if reply_first {
            self.publish(now, stamp, messages);
        }
    }

    fn reply(&mut self, now: Duration, arrival: &Arrival, late: Option<Duration>, result: Outcome) {
        let (client, number) = (arrival.client, arrival.number);
        let content = Content::Reply {
            call: arrival.call,
            to: arrival.message,
        };
        let message = self.note_sent(now, client, content);
        let reply = Happening::Reply {
            client,
            number,
            result,
            message,
        };
        self.send_to_client(now, client, late, reply);
    }

    fn execute(&mut self, now: Duration, arrival: &Arrival) -> (Response, Vec<Message>) {
        let client = Some(arrival.client);
        let stamp = self.store.stamp(now);
        let mut answers = Vec::new();
        let mut messages = Vec::new();
        match &arrival.request {
            Request::Hello => {
                self.record_of(Some(arrival.message), now, client, Event::Hello { stamp });
            }
            Request::Listen(subscription) => {
                self.subscribe(now, arrival.client, *subscription);
            }
            Request::Steps(steps) => {
                for (key, command) in steps {
                    let executed = self.store.execute(now, key, command);
                    messages.extend(executed.messages);
                    answers.push(executed.answer.clone());
                    let event = Event::Executed {
                        key: key.clone(),
                        command: Box::new(command.clone()),
                        stamp: executed.stamp,
                        answer: executed.answer,
                        again: arrival.again,
                    };
                    self.record_of(Some(arrival.message), now, client, event);
                }
            }
        }
        (Response { stamp, answers }, messages)
    }

    fn publish(&mut self, now: Duration, stamp: Stamp, messages: &[Message]) {
        for message in messages {
            let notice = notice(message.event, stamp);
            let listeners: Vec<_> = self
                .channels
                .range((message.to, 0, 0)..=(message.to, usize::MAX, u64::MAX))
                .map(|&(_, client, subscription)| (client, subscription))
                .collect();
            for (client, subscription) in listeners {
                self.push(now, client, subscription, notice);
            }
        }
    }

    fn push(&mut self, now: Duration, client: ClientIndex, subscription: u64, notice: Notice) {
        let connection = self.clients[client].connection;
        let push = |message| Happening::Push {
            client,
            connection,
            subscription,
            notice,
            message,
        };
        let message = self.note_sent(now, client, Content::Push { notice });
        let fault = self.clients[client].faults.for_push();
        if let Some(fault) = fault {
            let (call, key) = (None, None);
            let event = Event::Fault { fault, call, key };
            self.record_of(Some(message), now, Some(client), event);
        }
        let late = match fault {
            Some(Fault::LosePush) => {
                self.log.ended(message, Fate::Lost(now));
                return;
            }
            Some(Fault::DelayPush(late)) => Some(late),
            Some(Fault::DuplicatePush) => {
                let first = self.note_sent(now, client, Content::Push { notice });
                self.send_to_client(now, client, None, push(first));
                None
            }
            _ => None,
        };
        self.send_to_client(now, client, late, push(message));
    }

    fn deliver(
        &mut self,
        now: Duration,
        message: u64,
        (client, connection): (ClientIndex, u64),
        subscription: u64,
        notice: Notice,
    ) {
        let state = &self.clients[client];
        let reaches = state.connection == connection && !state.isolated;
        let subscription = state.subscriptions.get(&subscription).filter(|_| reaches);
        let Some(subscription) = subscription else {
            self.log.ended(message, Fate::Lost(now));
            return;
        };
        let sender = subscription.notices.clone();
        self.effects.push(Effect::Notify(sender, notice));
        let event = Event::Notified { notice };
        self.record_of(Some(message), now, Some(client), event);
        self.log.ended(message, Fate::Arrived(now));
    }
}

fn notice(event: MachineEvent, stamp: Stamp) -> Notice {
    match event {
        MachineEvent::Granted {
            sequence,
            token,
            remaining,
        } => Notice::Granted {
            sequence,
            token,
            remaining,
            stamp,
        },
        MachineEvent::Hint { sequence } => Notice::Hint { sequence, stamp },
        MachineEvent::Revoked { sequence } => Notice::Revoked { sequence, stamp },
    }
}

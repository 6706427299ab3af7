//! One client's connection to the simulated server, as a [`LockBackend`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use futures_core::Stream;
use leasehold_api::machine::{Command, Reply};
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Capabilities, Convert, ConvertReply, ForceRelease,
    ForceReply, InspectReply, Key, LockBackend, Notification, Notifications, Poll as PollWaiter,
    PollReply, Release, ReleaseReply, Renew, RenewReply, Runtime, SessionId, Stamp, Stamped,
};

use crate::driver::world::World;
use crate::engine::gate::{Gate, Turnstile};
use crate::handle::runtime::SimRuntime;
use crate::network::calls::Outcome;
use crate::network::event::{CallId, ClientIndex, Request, Response};
use crate::record::{Answer, Call, ClientEvent, Event};

/// One client of a [`SimServer`](crate::SimServer): a process with one connection to it.
///
/// Clones are the same client: give one to the code under test, and keep one to pause it, to cut
/// its connection, or to lose its messages.
///
/// # Errors
/// As the contract of [`LockBackend`] asks: [`BackendError::Unavailable`] if the server was
/// stopped, [`BackendError::OutcomeUnknown`] if no reply came within
/// [`CALL_TIMEOUT`](leasehold_api::bounds::CALL_TIMEOUT) or the connection was lost meanwhile, [`BackendError::ForeignValue`] where
/// one was planted, [`BackendError::Closed`] after [`close`](LockBackend::close).
///
/// # Cancel safety
/// A call whose future is dropped before its first poll was not sent; after that its request is on
/// its way, and is executed.
#[derive(Clone)]
pub struct SimBackend {
    pub(crate) runtime: Arc<SimRuntime>,
}

impl fmt::Debug for SimBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimBackend")
            .field("client", &self.runtime.client)
            .finish_non_exhaustive()
    }
}

/// A call of a client, which sends its request when it is first polled; dropping it forgets whom
/// to answer.
struct Calling<'a> {
    backend: &'a SimBackend,
    turnstile: Turnstile<&'a Gate>,
    call: Call,
    progress: Progress,
}

enum Progress {
    Unsent(Request),
    Sent(CallId),
    Over,
}

impl Calling<'_> {
    fn send(&self, request: Request, waker: &Waker) -> Result<CallId, BackendError> {
        let client = self.backend.runtime.client;
        let world = self.backend.world();
        world.clock.assert_paused();
        world.assert_sound();
        let request = (self.call, request);
        world.act(|network, now| network.send(now, client, request, waker))
    }

    fn failed(&self, error: &BackendError) {
        let (call, error) = (self.call, error.to_string());
        self.backend.record(Event::Failed { call, error });
    }
}

impl Future for Calling<'_> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        if self.turnstile.poll_open(cx).is_pending() {
            return Poll::Pending;
        }
        let outcome = match std::mem::replace(&mut self.progress, Progress::Over) {
            Progress::Unsent(request) => match self.send(request, cx.waker()) {
                Ok(id) => {
                    self.progress = Progress::Sent(id);
                    return Poll::Pending;
                }
                Err(error) => Err(error),
            },
            Progress::Sent(id) => {
                let world = self.backend.world();
                let (poll, waiter) = world.act(|network, _| network.poll_call(id, cx.waker()));
                // It may own the task that is polled here: let it go outside of the lock.
                drop(waiter);
                match poll {
                    Poll::Pending => {
                        self.progress = Progress::Sent(id);
                        return Poll::Pending;
                    }
                    Poll::Ready(outcome) => outcome,
                }
            }
            Progress::Over => return Poll::Pending,
        };
        if let Err(error) = &outcome {
            self.failed(error);
        }
        Poll::Ready(outcome)
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        if let Progress::Sent(id) = self.progress {
            let world = self.backend.world();
            // It may own the task that is being dropped: it is let go outside of the lock.
            let waiter = world.act(|network, _| network.forget(id));
            drop(waiter);
        }
    }
}

impl SimBackend {
    pub(crate) fn new(world: &Arc<World>, client: ClientIndex, gate: Gate) -> Self {
        let world = Arc::clone(world);
        Self {
            runtime: Arc::new(SimRuntime::new(world, client, gate)),
        }
    }

    pub(crate) fn world(&self) -> &Arc<World> {
        &self.runtime.world
    }

    /// Its number, in the order in which the clients of its server were made, from 0.
    pub fn index(&self) -> usize {
        self.runtime.client
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.runtime.gate
    }

    /// Sends a request and waits for its response, at most for the call time-out.
    fn call(&self, call: Call, request: Request) -> Calling<'_> {
        Calling {
            backend: self,
            turnstile: Turnstile::new(self.gate()),
            call,
            progress: Progress::Unsent(request),
        }
    }

    /// One command, one answer.
    async fn one<T>(
        &self,
        call: Call,
        key: &Key,
        command: Command,
        read: fn(Reply) -> Option<T>,
    ) -> Result<Stamped<T>, BackendError> {
        let steps = vec![(key.clone(), command)];
        let mut response = self.call(call, Request::Steps(steps)).await?;
        let answer = response.answers.pop();
        take_apart(
            response.stamp,
            answer.expect("one command has one answer"),
            read,
        )
    }

    /// A batch of commands, an answer for each.
    async fn steps<T>(
        &self,
        call: Call,
        steps: Vec<(Key, Command)>,
        read: fn(Reply) -> Option<T>,
    ) -> Vec<Result<Stamped<T>, BackendError>> {
        let asked = steps.len();
        let mut results = Vec::with_capacity(asked);
        if asked == 0 {
            return results;
        }
        match self.call(call, Request::Steps(steps)).await {
            Err(error) => results.resize_with(asked, || Err(error.clone())),
            Ok(Response { stamp, answers }) => {
                let answers = answers.into_iter();
                results.extend(answers.map(|answer| take_apart(stamp, answer, read)));
            }
        }
        results
    }

    pub(crate) fn record(&self, event: Event) {
        let client = Some(self.runtime.client);
        self.world()
            .act(|network, now| network.record(now, client, event));
    }
}

fn take_apart<T>(
    stamp: Stamp,
    answer: Answer,
    read: fn(Reply) -> Option<T>,
) -> Result<Stamped<T>, BackendError> {
    match answer {
        Answer::Foreign(found) => Err(BackendError::ForeignValue { found }),
        Answer::Reply(reply) => Ok(Stamped {
            stamp,
            reply: read(reply).expect("a reply is of its command's kind"),
        }),
    }
}

/// A function that takes a reply apart, for the variant of that name.
macro_rules! of {
    ($variant:ident) => {
        |reply| match reply {
            Reply::$variant(reply) => Some(reply),
            _ => None,
        }
    };
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockBackend for SimBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::full()
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime) as Arc<dyn Runtime>
    }

    async fn hello(&self) -> Result<Stamp, BackendError> {
        let response = self.call(Call::Hello, Request::Hello).await?;
        Ok(response.stamp)
    }

    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        let client = self.runtime.client;
        let number = self
            .world()
            .act(|network, _| network.add_subscription(client, session));
        let listener = Listener {
            world: Arc::clone(self.world()),
            client,
            number,
            turnstile: Turnstile::new(self.gate().clone()),
        };
        self.call(Call::Listen, Request::Listen(number)).await?;
        Ok(Box::pin(listener))
    }

    async fn acquire(&self, request: &Acquire) -> Result<Stamped<AcquireReply>, BackendError> {
        let command = Command::Acquire(request.clone());
        self.one(Call::Acquire, &request.key, command, of!(Acquire))
            .await
    }

    async fn acquire_all(
        &self,
        batch: &[Acquire],
    ) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        let steps = batch
            .iter()
            .map(|request| (request.key.clone(), Command::Acquire(request.clone())));
        self.steps(Call::Acquire, steps.collect(), of!(Acquire))
            .await
    }

    async fn poll(&self, batch: &[PollWaiter]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        let steps = batch
            .iter()
            .map(|request| (request.key.clone(), Command::Poll(request.clone())));
        self.steps(Call::Poll, steps.collect(), of!(Poll)).await
    }

    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        let steps = batch
            .iter()
            .map(|request| (request.key.clone(), Command::Renew(request.clone())));
        self.steps(Call::Renew, steps.collect(), of!(Renew)).await
    }

    async fn release(&self, batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>> {
        let steps = batch
            .iter()
            .map(|request| (request.key.clone(), Command::Release(request.clone())));
        self.steps(Call::Release, steps.collect(), of!(Release))
            .await
    }

    async fn convert(&self, request: &Convert) -> Result<Stamped<ConvertReply>, BackendError> {
        let command = Command::Convert(request.clone());
        self.one(Call::Convert, &request.key, command, of!(Convert))
            .await
    }

    async fn inspect(&self, key: &Key) -> Result<Stamped<InspectReply>, BackendError> {
        self.one(Call::Inspect, key, Command::Inspect, of!(Inspect))
            .await
    }

    async fn force_release(
        &self,
        request: &ForceRelease,
    ) -> Result<Stamped<ForceReply>, BackendError> {
        let command = Command::ForceRelease(request.clone());
        self.one(Call::ForceRelease, &request.key, command, of!(ForceRelease))
            .await
    }

    async fn close(&self) -> Result<(), BackendError> {
        let client = self.runtime.client;
        self.world().act(|network, now| {
            if network.close(now, client) {
                network.record(now, Some(client), Event::Client(ClientEvent::Closed));
            }
        });
        Ok(())
    }
}

/// The notifications of one subscription; dropping it ends the subscription.
struct Listener {
    world: Arc<World>,
    client: ClientIndex,
    number: u64,
    turnstile: Turnstile<Gate>,
}

impl Stream for Listener {
    type Item = Notification;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Notification>> {
        if self.turnstile.poll_open(cx).is_pending() {
            return Poll::Pending;
        }
        let (poll, before) = self.world.act(|network, _| {
            let state = &mut network.clients[self.client];
            match state.subscriptions.get_mut(&self.number) {
                None => (Poll::Ready(None), None),
                Some(subscription) => match subscription.notifications.pop_front() {
                    Some(notification) => (Poll::Ready(Some(notification)), None),
                    None if subscription.ended => (Poll::Ready(None), None),
                    None => {
                        let before = network.wakers.replace(&mut subscription.waiter, cx.waker());
                        (Poll::Pending, before)
                    }
                },
            }
        });
        drop(before);
        poll
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let subscription = self
            .world
            .act(|network, now| network.drop_subscription(now, self.client, self.number));
        // Its waker may own the task that is being dropped: it is let go outside of the lock.
        drop(subscription);
    }
}

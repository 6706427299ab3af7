//! One client's connection to the simulated server, as a [`LockBackend`].

use std::fmt;
use std::future::poll_fn;
use std::iter::repeat_n;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use futures_core::Stream;
use leasehold_api::machine::{Command, Reply};
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Capabilities, ClockId, Convert, ConvertReply,
    ForceRelease, ForceReply, InspectReply, Key, List, Listed, LockBackend, Note, NoteReply,
    Notification, Notifications, Poll as PollWaiter, PollReply, Release, ReleaseReply, Renew,
    RenewReply, Runtime, ServerTime, SessionId, Stamp, Stamped,
};

use crate::driver::world::World;
use crate::engine::gate::{Gate, Turnstile};
use crate::handle::runtime::SimRuntime;
use crate::network::Network;
use crate::network::calls::CallResult;
use crate::network::event::{CallId, ClientIndex, Request, Response};
use crate::record::{Call, Event, ServerAnswer};

/// A client of a [`SimServer`](crate::SimServer): a process with one connection to the server.
///
/// Clones are the same client. Give one to the code under test, and keep one to pause the client,
/// to break its connection, or to lose its messages.
/// [`SimServer::client`](crate::SimServer::client) creates a client.
///
/// # Errors
/// The calls return errors as [`LockBackend`] specifies:
///
/// - [`BackendError::Unavailable`] if the server is stopped;
/// - [`BackendError::OutcomeUnknown`] if no reply arrives within
///   [`CALL_TIMEOUT`](leasehold_api::bounds::CALL_TIMEOUT), or if the connection breaks first;
/// - [`BackendError::ForeignValue`] for a key with a
///   [foreign value](crate::SimServer::plant_foreign);
/// - [`BackendError::Closed`] after [`close`](LockBackend::close).
///
/// # Panics
/// In a tokio test, a call panics if the runtime's clock is no longer paused, if a task of the
/// simulation panicked, or if a replay diverged from its tape.
///
/// # Cancel safety
/// A call sends its request when its future is first polled. If you drop the future later, the
/// request is still executed.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use leasehold_api::LockBackend;
/// use leasehold_sim::SimServer;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), leasehold_api::BackendError> {
/// let server = SimServer::new(1);
/// let machine = server.client("a");
/// machine.hello().await?;
/// assert_eq!(server.elapsed(), Duration::from_millis(2)); // one round trip
/// # Ok(())
/// # }
/// ```
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

/// A call that waits for its response. Dropping it discards the response.
struct SentCall<'a> {
    world: &'a World,
    /// `None` before the request is sent, and after the response.
    id: Option<CallId>,
}

impl SentCall<'_> {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<CallResult> {
        let Some(id) = self.id else {
            return Poll::Pending;
        };
        let (poll, waiter) = self.world.act(|network| network.poll_call(id, cx.waker()));
        if poll.is_ready() {
            self.id = None;
        }
        // Dropping the waker may drop the task that is being polled, so it must happen outside the
        // lock.
        drop(waiter);
        poll
    }
}

impl Drop for SentCall<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            // Dropping the waker may drop its task, so it must happen outside the lock.
            let waiter = self.world.act(|network| network.forget(id));
            drop(waiter);
        }
    }
}

impl SimBackend {
    pub(crate) fn new(world: &Arc<World>, client: ClientIndex) -> Self {
        let runtime = Arc::new(SimRuntime::new(Arc::clone(world), client));
        Self { runtime }
    }

    pub(crate) fn world(&self) -> &Arc<World> {
        &self.runtime.world
    }

    /// Returns the index of the client. Clients are numbered from 0, in the order in which they
    /// were created.
    pub fn index(&self) -> usize {
        self.runtime.client
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.runtime.gate
    }

    /// Sends a request and waits for its response, at most until the call times out.
    async fn call(&self, call: Call, request: Request) -> CallResult {
        let exchange = async {
            let outcome = self.exchange(call, request).await;
            if let Err(error) = &outcome {
                let error = error.to_string();
                self.record(Event::Failed { call, error });
            }
            outcome
        };
        self.gate().clone().through(pin!(exchange)).await
    }

    async fn exchange(&self, call: Call, request: Request) -> CallResult {
        let world = self.world();
        world.clock.assert_paused();
        world.assert_sound();
        let mut sent = SentCall { world, id: None };
        let mut unsent = Some((call, request));
        poll_fn(|cx| {
            let Some(request) = unsent.take() else {
                return sent.poll(cx);
            };
            sent.id = Some(self.act(|network, client| network.send(client, request, cx.waker()))?);
            Poll::Pending
        })
        .await
    }

    async fn one<T>(
        &self,
        call: Call,
        key: &Key,
        command: Command,
        read: fn(Reply) -> Option<T>,
    ) -> Result<Stamped<T>, BackendError> {
        let steps = vec![(key.clone(), command)];
        self.steps(call, steps, read).await.remove(0)
    }

    /// Sends a batch of commands. The result has an element for each.
    async fn steps<T>(
        &self,
        call: Call,
        steps: Vec<(Key, Command)>,
        read: fn(Reply) -> Option<T>,
    ) -> Vec<Result<Stamped<T>, BackendError>> {
        let count = steps.len();
        // Without a capacity, `collect` would reuse the allocation of the answers and shrink it.
        let mut results = Vec::with_capacity(count);
        if count == 0 {
            return results;
        }
        match self.call(call, Request::Steps(steps)).await {
            Err(error) => results.extend(repeat_n(error, count).map(Err)),
            Ok(Response { stamp, answers, .. }) => {
                let answers = answers.into_iter();
                results.extend(answers.map(|answer| unwrap_answer(stamp, answer, read)));
            }
        }
        results
    }

    /// Acts on the network as this client.
    pub(crate) fn act<T>(&self, act: impl FnOnce(&mut Network, ClientIndex) -> T) -> T {
        let client = self.runtime.client;
        self.world().act(|network| act(network, client))
    }

    pub(crate) fn record(&self, event: Event) {
        self.act(|network, client| network.record(Some(client), event));
    }
}

fn unwrap_answer<T>(
    stamp: Stamp,
    answer: ServerAnswer,
    read: fn(Reply) -> Option<T>,
) -> Result<Stamped<T>, BackendError> {
    match answer {
        ServerAnswer::Foreign(found) => Err(BackendError::foreign_value(found)),
        ServerAnswer::Reply(reply) => Ok(Stamped {
            stamp,
            reply: read(reply).expect("a reply is of its command's kind"),
        }),
    }
}

/// A function that returns the content of a reply if it is this variant.
macro_rules! of {
    ($variant:ident) => {
        |reply| match reply {
            Reply::$variant(reply) => Some(reply),
            _ => None,
        }
    };
}

/// Sends a batch of requests of one kind.
macro_rules! batch {
    ($backend:ident, $batch:ident, $kind:ident) => {{
        let steps = $batch
            .iter()
            .map(|request| (request.key.clone(), Command::$kind(request.clone())));
        let steps = steps.collect();
        $backend.steps(Call::$kind, steps, of!($kind)).await
    }};
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
        Ok(self.call(Call::Hello, Request::Hello).await?.stamp)
    }

    /// All keys have the clock of the primary.
    fn clock(&self, _: &Key) -> Option<ClockId> {
        None
    }

    fn clock_address(&self, _: ClockId) -> Option<String> {
        None
    }

    fn time_of_day(&self, at: ServerTime) -> ServerTime {
        at
    }

    async fn read_clock(&self, _: &Key) -> Result<Stamp, BackendError> {
        self.hello().await
    }

    /// Each command is one step of the server.
    async fn self_check(&self, _: &Key) -> Result<(), BackendError> {
        Ok(())
    }

    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        let number = self.act(|network, client| network.add_subscription(client, session));
        let stream = NotificationStream {
            world: Arc::clone(self.world()),
            client: self.runtime.client,
            number,
            turnstile: Turnstile::new(self.gate().clone()),
        };
        self.call(Call::Listen, Request::Listen(number)).await?;
        Ok(Box::pin(stream))
    }

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        batch!(self, batch, Acquire)
    }

    async fn poll(&self, batch: &[PollWaiter]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        batch!(self, batch, Poll)
    }

    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        batch!(self, batch, Renew)
    }

    async fn release(&self, batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>> {
        batch!(self, batch, Release)
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

    async fn list(&self, request: &List) -> Result<Listed, BackendError> {
        let request = Request::List(request.clone());
        Ok(self.call(Call::List, request).await?.listed)
    }

    async fn write_note(&self, request: &Note) -> Result<Stamped<NoteReply>, BackendError> {
        let command = Command::Note(request.clone());
        self.one(Call::Note, &request.key, command, of!(Note)).await
    }

    async fn close(&self) -> Result<(), BackendError> {
        self.act(Network::close);
        Ok(())
    }
}

/// The notifications of a subscription. Dropping the stream unsubscribes.
struct NotificationStream {
    world: Arc<World>,
    client: ClientIndex,
    number: u64,
    turnstile: Turnstile,
}

impl Stream for NotificationStream {
    type Item = Notification;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Notification>> {
        if self.turnstile.poll_open(cx).is_pending() {
            return Poll::Pending;
        }
        let (poll, before) = self.world.act(|network| {
            let state = &mut network.clients[self.client];
            let Some(subscription) = state.subscriptions.get_mut(&self.number) else {
                return (Poll::Ready(None), None);
            };
            let next = subscription.notifications.pop_front();
            if next.is_some() || subscription.ended {
                return (Poll::Ready(next), None);
            }
            let before = network.wakers.replace(&mut subscription.waiter, cx.waker());
            (Poll::Pending, before)
        });
        drop(before);
        poll
    }
}

impl Drop for NotificationStream {
    fn drop(&mut self) {
        let subscription = self
            .world
            .act(|network| network.drop_subscription(self.client, self.number));
        // Dropping the waker may drop its task, so it must happen outside the lock.
        drop(subscription);
    }
}

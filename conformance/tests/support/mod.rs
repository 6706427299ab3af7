//! A backend that runs the state machine directly, in virtual time and without a network. The tests
//! of the suite use it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use leasehold_api::machine::{self, Command, Message, Reach, Reply, Settings, State};
use leasehold_api::{
    Acquire, AcquireReply, BackendError, BoxFuture, Capabilities, ClockId, Convert, ConvertReply,
    Cursor, ForceRelease, ForceReply, InspectReply, Key, List, Listed, LockBackend, Moment, Note,
    NoteReply, Notification, Notifications, Poll, PollReply, Release, ReleaseReply, Renew,
    RenewReply, Runtime, ServerTime, SessionId, Stamp, Stamped, bounds,
};
use leasehold_conformance::{Abilities, Environment, Harness, SetupError, Timing};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::time::Instant;

/// A wrapper that a test may put around each client's backend.
pub(crate) type Wrap =
    Arc<dyn Fn(Arc<dyn LockBackend>, &Arc<Server>) -> Arc<dyn LockBackend> + Send + Sync>;

type Step = fn(&mut State, machine::Env<'_>, &Command) -> (Reply, Vec<Message>);

/// The harness of the state machine.
#[derive(Clone)]
pub(crate) struct Reference {
    wrap: Wrap,
    /// Without `reachability`, the server can't tell who listens. The wrapper hides what else is
    /// missing.
    pub(crate) capabilities: Capabilities,
    pub(crate) fencing_tokens: bool,
    pub(crate) timing: Timing,
}

impl Reference {
    pub(crate) fn plain() -> Self {
        Self::wrapped(Arc::new(|backend, _| backend))
    }

    pub(crate) fn wrapped(wrap: Wrap) -> Self {
        Self {
            wrap,
            capabilities: Capabilities::full(),
            fencing_tokens: true,
            timing: Timing::simulated().watchdog(Duration::from_secs(20)),
        }
    }
}

impl fmt::Debug for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reference")
    }
}

#[async_trait]
impl Harness for Reference {
    fn name(&self) -> &str {
        "reference"
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn abilities(&self) -> Abilities {
        Abilities::default()
            .plant_foreign(true)
            .virtual_time(true)
            .cut(true)
            .freeze(true)
            .fencing_tokens(self.fencing_tokens)
    }

    fn timing(&self) -> Timing {
        self.timing
    }

    fn block_on(&self, case: BoxFuture<'static, ()>) {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a tokio runtime starts")
            .block_on(case);
    }

    async fn environment(&self, _namespace: &str) -> Result<Arc<dyn Environment>, SetupError> {
        Ok(Arc::new(MachineEnvironment {
            server: Arc::new(Server::new(self.capabilities)),
            wrap: Arc::clone(&self.wrap),
        }))
    }
}

struct MachineEnvironment {
    server: Arc<Server>,
    wrap: Wrap,
}

impl fmt::Debug for MachineEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MachineEnvironment")
    }
}

#[async_trait]
impl Environment for MachineEnvironment {
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError> {
        let backend = Arc::new(Client {
            server: Arc::clone(&self.server),
            closed: watch::Sender::new(false),
            cuts: AtomicU64::new(self.server.cuts.load(Ordering::Relaxed)),
        });
        Ok((self.wrap)(backend, &self.server))
    }

    async fn let_time_pass(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    async fn cut(&self) -> Result<(), SetupError> {
        self.server.cut();
        Ok(())
    }

    async fn freeze(&self, frozen: bool) -> Result<(), SetupError> {
        self.server.freeze(frozen);
        Ok(())
    }

    async fn plant_foreign(&self, key: &Key) -> Result<(), SetupError> {
        if !self.server.greeted.load(Ordering::Relaxed) {
            return Err("no client has created the table".into());
        }
        self.server.lock().foreign.insert(key.clone());
        Ok(())
    }

    async fn foreign_is_untouched(&self, key: &Key) -> Result<bool, SetupError> {
        let inner = self.server.lock();
        Ok(inner.foreign.contains(key) && !inner.keys.contains_key(key))
    }
}

/// The keys, and the sessions that listen.
#[derive(Debug)]
pub(crate) struct Server {
    /// Requests that a wrapper records across all clients.
    #[allow(dead_code, reason = "only some tests wrap")]
    pub(crate) notes: Mutex<Vec<Acquire>>,
    /// What a wrapper has each command do instead of [`machine::step`].
    #[allow(dead_code, reason = "only some tests wrap")]
    pub(crate) step: OnceLock<Step>,
    capabilities: Capabilities,
    inner: Mutex<Inner>,
    started: Instant,
    next_random: AtomicU64,
    /// How often the connections were cut.
    cuts: AtomicU64,
    frozen: AtomicBool,
    /// A client has said hello.
    greeted: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    keys: BTreeMap<Key, State>,
    foreign: BTreeSet<Key>,
    listeners: BTreeMap<SessionId, Vec<UnboundedSender<Notification>>>,
}

impl Server {
    fn new(capabilities: Capabilities) -> Self {
        Self {
            capabilities,
            notes: Mutex::default(),
            step: OnceLock::new(),
            inner: Mutex::new(Inner::default()),
            started: Instant::now(),
            next_random: AtomicU64::new(1),
            cuts: AtomicU64::new(0),
            frozen: AtomicBool::new(false),
            greeted: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets no call through, or lets them through again.
    pub(crate) fn freeze(&self, frozen: bool) {
        self.frozen.store(frozen, Ordering::Relaxed);
    }

    /// Cuts all connections. Subscriptions are back at once.
    fn cut(&self) {
        self.cuts.fetch_add(1, Ordering::Relaxed);
        for sender in self.lock().listeners.values().flatten() {
            for listening in [false, true] {
                // Fails if the subscriber is gone.
                let _ = sender.send(Notification::Missed { listening });
            }
        }
    }

    fn stamp(&self) -> Stamp {
        let since = u64::try_from(self.started.elapsed().as_micros()).expect("tests are short");
        Stamp {
            clock: ClockId::new(1),
            at: ServerTime::from_micros(1_700_000_000_000_000 + since),
        }
    }

    fn step(&self, key: &Key, command: &Command) -> Result<Stamped<Reply>, BackendError> {
        let stamp = self.stamp();
        let mut inner = self.lock();
        if inner.foreign.contains(key) {
            return Err(BackendError::foreign_value("something else"));
        }
        let Inner {
            keys, listeners, ..
        } = &mut *inner;
        for senders in listeners.values_mut() {
            senders.retain(|sender| !sender.is_closed());
        }
        let reachable = |session: SessionId| match listeners.get(&session) {
            _ if !self.capabilities.reachability => Reach::Unknown,
            Some(senders) if !senders.is_empty() => Reach::Listening,
            _ => Reach::Nobody,
        };
        let env = machine::Env {
            now: stamp.at,
            settings: Settings::default(),
            reachable: &reachable,
        };
        let state = keys.entry(key.clone()).or_default();
        let step = self.step.get().copied().unwrap_or(machine::step);
        let (reply, messages) = step(state, env, command);
        for message in messages {
            for sender in listeners.get(&message.to).into_iter().flatten() {
                // Fails if the subscriber is gone.
                let _ = sender.send(message.payload.stamped(stamp));
            }
        }
        Ok(Stamped { stamp, reply })
    }
}

#[derive(Debug)]
struct Client {
    server: Arc<Server>,
    closed: watch::Sender<bool>,
    /// The cuts that the client has noticed.
    cuts: AtomicU64,
}

/// How often a call looks whether the server is frozen.
const LOOK: Duration = Duration::from_millis(10);

/// Executes one command, whose reply has its own type.
macro_rules! ask {
    ($self:ident, $request:ident, $command:ident) => {{
        let command = Command::$command($request.clone());
        let Stamped { stamp, reply } = $self.server.step(&$request.key, &command)?;
        match reply {
            Reply::$command(reply) => Ok(Stamped { stamp, reply }),
            other => unreachable!("unexpected reply to {command:?}: {other:?}"),
        }
    }};
}

impl Client {
    /// Returns when a call reaches the server. The first call after a cut fails.
    async fn reach_server(&self) -> Result<(), BackendError> {
        if *self.closed.borrow() {
            return Err(BackendError::Closed);
        }
        let cuts = self.server.cuts.load(Ordering::Relaxed);
        if self.cuts.swap(cuts, Ordering::Relaxed) != cuts {
            return Err(BackendError::outcome_unknown("the connection was cut"));
        }
        let began = Instant::now();
        while self.server.frozen.load(Ordering::Relaxed) {
            if began.elapsed() >= bounds::CALL_TIMEOUT {
                return Err(BackendError::outcome_unknown("no answer"));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }
}

/// Executes a batch if it reaches the server.
macro_rules! batch {
    ($self:ident, $batch:ident, $command:ident) => {{
        let reached = $self.reach_server().await;
        let one = |request: &$command| {
            reached.clone()?;
            ask!($self, request, $command)
        };
        $batch.iter().map(one).collect()
    }};
}

#[async_trait]
impl LockBackend for Client {
    fn capabilities(&self) -> Capabilities {
        self.server.capabilities
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(Virtual {
            server: Arc::clone(&self.server),
        })
    }

    async fn hello(&self) -> Result<Stamp, BackendError> {
        self.reach_server().await?;
        self.server.greeted.store(true, Ordering::Relaxed);
        Ok(self.server.stamp())
    }

    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        if !self.server.capabilities.push {
            return Err(BackendError::unsupported("listen"));
        }
        self.reach_server().await?;
        let (sender, mut receiver) = unbounded_channel();
        let mut inner = self.server.lock();
        inner.listeners.entry(session).or_default().push(sender);
        let mut closed = self.closed.subscribe();
        let closing = async move { drop(closed.wait_for(|closed| *closed).await) };
        let received = stream::poll_fn(move |cx| receiver.poll_recv(cx));
        Ok(received.take_until(Box::pin(closing)).boxed())
    }

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        batch!(self, batch, Acquire)
    }

    async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        batch!(self, batch, Poll)
    }

    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        batch!(self, batch, Renew)
    }

    async fn release(&self, batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>> {
        batch!(self, batch, Release)
    }

    async fn convert(&self, request: &Convert) -> Result<Stamped<ConvertReply>, BackendError> {
        self.reach_server().await?;
        ask!(self, request, Convert)
    }

    async fn inspect(&self, key: &Key) -> Result<Stamped<InspectReply>, BackendError> {
        self.reach_server().await?;
        let Stamped { stamp, reply } = self.server.step(key, &Command::Inspect)?;
        match reply {
            Reply::Inspect(reply) => Ok(Stamped { stamp, reply }),
            other => unreachable!("unexpected reply to an inspection: {other:?}"),
        }
    }

    async fn list(&self, request: &List) -> Result<Listed, BackendError> {
        self.reach_server().await?;
        let after = request.cursor.as_ref().map_or("", Cursor::as_str);
        let mut keys: Vec<Key> = self.server.lock().keys.keys().cloned().collect();
        keys.retain(|key| key.as_str() > after && key.as_str().starts_with(&request.prefix));
        keys.sort_unstable();
        let limit = usize::try_from(request.limit).expect("64 bits");
        let is_last = keys.len() <= limit;
        keys.truncate(limit);
        let next = keys.last().filter(|_| !is_last);
        Ok(Listed {
            next: next.map(|last| Cursor::new(last.as_str())),
            keys,
        })
    }

    async fn force_release(
        &self,
        request: &ForceRelease,
    ) -> Result<Stamped<ForceReply>, BackendError> {
        self.reach_server().await?;
        ask!(self, request, ForceRelease)
    }

    async fn write_note(&self, request: &Note) -> Result<Stamped<NoteReply>, BackendError> {
        self.reach_server().await?;
        ask!(self, request, Note)
    }

    async fn close(&self) -> Result<(), BackendError> {
        self.closed.send_replace(true);
        Ok(())
    }
}

/// A runtime with tokio's paused clock, and distinct numbers instead of random ones.
#[derive(Debug)]
struct Virtual {
    server: Arc<Server>,
}

impl Runtime for Virtual {
    fn now(&self) -> Moment {
        Moment::from_origin(self.server.started.elapsed())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }

    fn spawn(&self, future: BoxFuture<'static, ()>) {
        tokio::spawn(future);
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let next_random = self.server.next_random.fetch_add(1, Ordering::Relaxed);
            // Multiplies, so that the first bytes differ too.
            let mixed = next_random
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .to_le_bytes();
            chunk.copy_from_slice(&mixed[..chunk.len()]);
        }
    }
}

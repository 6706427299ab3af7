//! A lock backend on a store.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join, join_all};
use leasehold_api::machine::{Command, Reply};
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Capabilities, ClockId, Convert, ConvertReply,
    ForceRelease, ForceReply, InspectReply, InvalidInput, Key, List, Listed, LockBackend, Moment,
    Note, NoteReply, Notifications, Poll, PollReply, Queued, Release, ReleaseReply, Renew,
    RenewReply, Runtime, SessionId, Stamp, Stamped, bounds,
};

use crate::call::{Answer, Call};
use crate::check::check_writes;
use crate::execute::Executor;
use crate::local::Local;
use crate::memory::Memory;
use crate::store::Store;
use crate::streams::Streams;
use crate::turns::Turns;

/// A client removes expired rows at most this often.
const REMOVE_EVERY: Duration = Duration::from_secs(60);
/// The maximum time of one removal.
const REMOVE_WITHIN: Duration = Duration::from_secs(10);
/// The maximum time of one check of a store.
const CHECK_WITHIN: Duration = Duration::from_secs(10);

/// A [`LockBackend`] on a [`Store`].
///
/// It has all [capabilities](Capabilities) but `batches`. It has `list` if the store
/// [can list](Store::can_list). It has `push` if the store
/// [can listen](Store::can_listen); otherwise it wakes only its own waiters, and the others
/// [poll](Store::first_waiters_poll). It has `reachability` if the store [can tell reach](Store::can_tell_reach),
/// and `independent_renewal` with [a store for renewals](Self::renewals).
///
/// A command is a read and a conditional write, see the [crate's documentation](crate). If the store
/// [compares the time](crate::Written::AppliedAt), an acquire or a release of a key that only this client uses
/// is one write. The commands
/// of one backend on one key are executed in the order in which they come. Those that come while one is
/// executed share the next read and write, up to 128 of them. Between backends, a conflict is tried again
/// after a random pause, until the call timeout.
///
/// # Errors of the commands
/// - [`BackendError::Unavailable`] if the store did not answer a read in time, or other clients were
///   faster each time. Nothing was written.
/// - [`BackendError::OutcomeUnknown`] if the store did not answer a write in time.
/// - [`BackendError::ForeignValue`] if the row is not the state of a lock, or a later version of this
///   crate wrote it.
///
/// # Cancel safety
/// Dropping the future of a command abandons the call. The store may still apply its write. A future that is
/// not polled for a while holds nobody up.
///
/// # The check of the store
/// [`self_check`](LockBackend::self_check) finds a store that doesn't compare the version, the deadline, the
/// time of the step or who listens, as far as it says that it does, answers with a wrong time, or removes a row too early. The conformance suite calls it. It leaves rows behind, which may be
/// removed after 20 s.
pub struct StoreBackend<S> {
    store: Arc<S>,
    /// The store that renewals use, if they have one of their own.
    renewals: Option<Arc<S>>,
    call_timeout: Duration,
    turns: Arc<Turns>,
    local: Arc<Local>,
    memory: Arc<Memory>,
    closed: AtomicBool,
    streams: Streams,
    /// When rows were last removed.
    removed: Mutex<Option<Moment>>,
}

impl<S: Store> fmt::Debug for StoreBackend<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreBackend")
            .field("store", &self.store)
            .field("call_timeout", &self.call_timeout)
            .finish_non_exhaustive()
    }
}

impl<S: Store> StoreBackend<S> {
    /// Creates a backend on a store, with the default [call timeout](bounds::CALL_TIMEOUT).
    pub fn new(store: S) -> Self {
        Self {
            store: Arc::new(store),
            renewals: None,
            call_timeout: bounds::CALL_TIMEOUT,
            turns: Arc::default(),
            local: Arc::default(),
            memory: Arc::default(),
            closed: AtomicBool::new(false),
            streams: Streams::default(),
            removed: Mutex::new(None),
        }
    }

    /// Sets the maximum time of one call, 10 ms to 5 s. It includes all retries after conflicts.
    ///
    /// # Errors
    /// [`InvalidInput::Setting`] if the timeout is outside the range.
    pub fn call_timeout(mut self, timeout: Duration) -> Result<Self, InvalidInput> {
        InvalidInput::check_time_limit("call_timeout", timeout)?;
        self.call_timeout = timeout;
        Ok(self)
    }

    /// Sets a second connection to the same data, for renewals only. It must be connected on the
    /// [renewal thread](Runtime), so that a program that blocks its runtime doesn't stop renewals.
    #[must_use]
    pub fn renewals(mut self, store: S) -> Self {
        self.renewals = Some(Arc::new(store));
        self
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Executes commands on one key, each after the one before it, within the call timeout.
    async fn call(
        &self,
        store: &Arc<S>,
        key: &Key,
        commands: Vec<Command>,
        in_turn: bool,
    ) -> Answer {
        if self.closed.load(Ordering::Relaxed) {
            return Err(BackendError::Closed);
        }
        let runtime = store.runtime();
        let ends = runtime.now().saturating_add(self.call_timeout);
        let (call, caller) = Call::new(commands, ends);
        let executor = Executor {
            store: Arc::clone(store),
            runtime: Arc::clone(&runtime),
            local: Arc::clone(&self.local),
            memory: Arc::clone(&self.memory),
        };
        let waiting = caller.wait(&*runtime, self.call_timeout);
        let answer = match in_turn {
            true => {
                if let Some(task) = self.turns.add(key, call) {
                    // The caller may be blocked by its program, and others wait for the same task.
                    runtime.spawn(Box::pin(executor.run(task)));
                }
                waiting.await
            }
            false => join(executor.run_alone(key, call), waiting).await.1,
        };
        self.remove_expired(&runtime);
        answer
    }

    /// The first waiters poll as often as the store wishes (rule 3).
    fn poll_sooner(&self, queued: &mut Queued) {
        if queued.ahead < bounds::FIRST_WAITERS {
            queued.poll_after = queued.poll_after.min(self.store.first_waiters_poll());
        }
    }

    /// Removes expired rows in the background, once in a while.
    fn remove_expired(&self, runtime: &Arc<dyn Runtime>) {
        let now = runtime.now();
        let mut removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        if removed.is_some_and(|last| now.saturating_since(last) < REMOVE_EVERY) {
            return;
        }
        *removed = Some(now);
        let (store, limits) = (Arc::clone(&self.store), Arc::clone(runtime));
        runtime.spawn(Box::pin(async move {
            // If this fails, a later removal finds the same rows.
            let _ = limits.timeout(REMOVE_WITHIN, store.remove_expired()).await;
        }));
    }

    /// Executes a batch: the commands of each key in one write, the keys side by side.
    async fn batch(
        &self,
        store: &Arc<S>,
        batch: Vec<(&Key, Command)>,
        in_turn: bool,
    ) -> Vec<Result<Stamped<Reply>, BackendError>> {
        let mut keys: BTreeMap<&Key, (Vec<usize>, Vec<Command>)> = BTreeMap::new();
        let size = batch.len();
        for (index, (key, command)) in batch.into_iter().enumerate() {
            let (indices, commands) = keys.entry(key).or_default();
            indices.push(index);
            commands.push(command);
        }
        let calls = keys.into_iter().map(async |(key, (indices, commands))| {
            let answer = self.call(store, key, commands, in_turn).await;
            (indices, answer)
        });
        let mut results: Vec<_> = (0..size).map(|_| None).collect();
        for (indices, answer) in join_all(calls).await {
            for (index, result) in indices.into_iter().zip(spread(answer)) {
                results[index] = Some(result);
            }
        }
        let results = results
            .into_iter()
            .map(|result| result.expect("each has a key"));
        results.collect()
    }

    async fn one(&self, key: &Key, command: Command) -> Result<Stamped<Reply>, BackendError> {
        let batch = vec![(key, command)];
        self.batch(&self.store, batch, true).await.remove(0)
    }
}

/// The result of each command of a call. An error is the error of all of them.
fn spread(answer: Answer) -> Box<dyn Iterator<Item = Result<Stamped<Reply>, BackendError>> + Send> {
    match answer {
        Ok(Stamped { stamp, reply }) => {
            let replies = reply.into_iter();
            Box::new(replies.map(move |reply| Ok(Stamped { stamp, reply })))
        }
        Err(error) => Box::new(std::iter::repeat(Err(error))),
    }
}

/// Converts the reply to a command to its own type.
macro_rules! reply {
    ($command:ident) => {
        |result: Result<Stamped<Reply>, BackendError>| match result {
            Ok(Stamped {
                stamp,
                reply: Reply::$command(reply),
            }) => Ok(Stamped { stamp, reply }),
            Ok(_) => unreachable!("the machine answers a command with a reply of its name"),
            Err(error) => Err(error),
        }
    };
}

/// Executes a batch of requests of one kind.
macro_rules! batch {
    ($backend:ident, $batch:ident, $command:ident, $store:expr, $in_turn:expr) => {{
        let commands = $batch.iter().map(|request| {
            let command = Command::$command(request.clone());
            (&request.key, command)
        });
        let results = $backend.batch($store, commands.collect(), $in_turn).await;
        results.into_iter().map(reply!($command)).collect()
    }};
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Store> LockBackend for StoreBackend<S> {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full();
        capabilities.push = self.store.can_listen();
        capabilities.reachability = self.store.can_tell_reach();
        capabilities.independent_renewal = self.renewals.is_some();
        capabilities.list = self.store.can_list();
        // Each key needs its own read and write.
        capabilities.batches = false;
        capabilities
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        self.store.runtime()
    }

    async fn hello(&self) -> Result<Stamp, BackendError> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(BackendError::Closed);
        }
        let runtime = self.store.runtime();
        let stamp = runtime
            .timeout(self.call_timeout, self.store.time())
            .await
            .unwrap_or_else(|| Err(BackendError::unavailable("no answer in time")))?;
        self.memory.saw_clock(stamp, runtime.now());
        Ok(stamp)
    }

    fn clock(&self, _: &Key) -> Option<ClockId> {
        None
    }

    fn clock_address(&self, _: ClockId) -> Option<String> {
        None
    }

    async fn read_clock(&self, _: &Key) -> Result<Stamp, BackendError> {
        self.hello().await
    }

    async fn self_check(&self, key: &Key) -> Result<(), BackendError> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(BackendError::Closed);
        }
        let stores = [Some(&self.store), self.renewals.as_ref()];
        for (store, name) in stores.into_iter().flatten().zip(["commands", "renewals"]) {
            let key = Key::new(format!("{key} {name}"))
                .map_err(|error| BackendError::rejected(error.to_string()))?;
            let checking = check_writes(&**store, &key);
            store
                .runtime()
                .timeout(CHECK_WITHIN, checking)
                .await
                .unwrap_or_else(|| Err(BackendError::unavailable("not checked in time")))?;
        }
        Ok(())
    }

    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(BackendError::Closed);
        }
        let runtime = self.store.runtime();
        // It may take a new connection, and no caller waits for it: a short call timeout does not apply.
        let limit = self.call_timeout.max(bounds::CALL_TIMEOUT);
        let stream = match self.store.can_listen() {
            true => runtime
                .timeout(limit, self.store.listen(session))
                .await
                .unwrap_or_else(|| Err(BackendError::unavailable("no subscription in time")))?,
            // Grants that this backend makes reach their waiters, if these are its own.
            false => self.local.listen(session),
        };
        let stream = self.streams.add(stream);
        // `close` may have ended the streams before this one was among them.
        if self.closed.load(Ordering::Relaxed) {
            return Err(BackendError::Closed);
        }
        Ok(stream)
    }

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        let mut replies: Vec<_> = batch!(self, batch, Acquire, &self.store, true);
        for answer in replies.iter_mut().flatten() {
            if let AcquireReply::Queued(queued) = &mut answer.reply {
                self.poll_sooner(queued);
            }
        }
        replies
    }

    async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        let mut replies: Vec<_> = batch!(self, batch, Poll, &self.store, true);
        for answer in replies.iter_mut().flatten() {
            if let PollReply::Queued(queued) = &mut answer.reply {
                self.poll_sooner(queued);
            }
        }
        replies
    }

    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        let store = self.renewals.as_ref().unwrap_or(&self.store);
        // Renewals don't wait: a program may block the runtime of the task whose turn it is.
        batch!(self, batch, Renew, store, false)
    }

    async fn release(&self, batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>> {
        batch!(self, batch, Release, &self.store, true)
    }

    async fn convert(&self, request: &Convert) -> Result<Stamped<ConvertReply>, BackendError> {
        let command = Command::Convert(request.clone());
        reply!(Convert)(self.one(&request.key, command).await)
    }

    async fn inspect(&self, key: &Key) -> Result<Stamped<InspectReply>, BackendError> {
        reply!(Inspect)(self.one(key, Command::Inspect).await)
    }

    async fn list(&self, request: &List) -> Result<Listed, BackendError> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(BackendError::Closed);
        }
        if !self.store.can_list() {
            return Err(BackendError::unsupported("list"));
        }
        let runtime = self.store.runtime();
        runtime
            .timeout(self.call_timeout, self.store.list(request))
            .await
            .unwrap_or_else(|| Err(BackendError::unavailable("no answer in time")))
    }

    async fn force_release(
        &self,
        request: &ForceRelease,
    ) -> Result<Stamped<ForceReply>, BackendError> {
        let command = Command::ForceRelease(request.clone());
        reply!(ForceRelease)(self.one(&request.key, command).await)
    }

    async fn write_note(&self, request: &Note) -> Result<Stamped<NoteReply>, BackendError> {
        let command = Command::Note(request.clone());
        reply!(Note)(self.one(&request.key, command).await)
    }

    async fn close(&self) -> Result<(), BackendError> {
        self.closed.store(true, Ordering::Relaxed);
        self.streams.end();
        let runtime = self.store.runtime();
        let stores = [Some(&self.store), self.renewals.as_ref()];
        let closing = stores.into_iter().flatten().map(|store| store.close());
        let closed = runtime.timeout(self.call_timeout, join_all(closing)).await;
        let late = || vec![Err(BackendError::unavailable("not closed in time"))];
        closed.unwrap_or_else(late).into_iter().collect()
    }
}

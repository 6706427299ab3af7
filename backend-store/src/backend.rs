//! A lock backend on a store.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_channel::oneshot;
use futures_util::future::{Shared, join, join_all, pending};
use futures_util::{FutureExt, StreamExt};
use leasehold_api::machine::{Command, Reply};
use leasehold_api::{
    Acquire, AcquireReply, BackendError, BoxFuture, Capabilities, ClockId, Convert, ConvertReply,
    ForceRelease, ForceReply, InspectReply, InvalidInput, Key, Kind, List, Listed, LockBackend,
    Moment, Note, NoteReply, Notifications, Poll, PollReply, Release, ReleaseReply, Renew,
    RenewReply, Runtime, ServerTime, SessionId, Stamp, Stamped, bounds,
};

use crate::call::{Answer, Call};
use crate::check::check_writes;
use crate::execute::Executor;
use crate::lock;
use crate::observed::Observed;
use crate::store::Store;
use crate::tag_store::TagStore;
use crate::turns::Turns;

/// A client removes expired rows at most this often.
const REMOVE_EVERY: Duration = Duration::from_secs(60);
/// The maximum time of one removal.
const REMOVE_WITHIN: Duration = Duration::from_secs(10);
/// The maximum time of one check of a store.
const CHECK_WITHIN: Duration = Duration::from_secs(10);
/// The error of a store that is silent for the call timeout.
const LATE: &str = "no answer in time";

/// A [`LockBackend`] on a [`Store`].
///
/// It has all [capabilities](Capabilities) but `batches`. It has `list` if the store
/// [can list](Store::can_list). It has `push` if the store
/// [can listen](Store::can_listen); otherwise it wakes only its own waiters, and the others
/// [poll](Store::first_waiters_poll). It has `reachability` if the store [can tell reach](Store::can_tell_reach),
/// and `independent_renewal` with [a store for renewals](Self::renewals).
///
/// A command is a read and a conditional write, see the [crate's documentation](crate). If the store
/// [compares the time](crate::Written::applied_at), an acquire or a release of a key that only this client uses
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
    commands: Arc<Executor<S>>,
    /// The executor of renewals, if they have a store of their own.
    renewals: Option<Arc<Executor<S>>>,
    call_timeout: Duration,
    turns: Arc<Turns>,
    /// Completes `closed`. `None` once the backend is closed.
    close: Mutex<Option<oneshot::Sender<()>>>,
    /// Ends the streams of `listen`.
    closed: Shared<BoxFuture<'static, ()>>,
    /// When rows were last removed.
    removed: Mutex<Option<Moment>>,
}

impl<S: Store> fmt::Debug for StoreBackend<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreBackend")
            .field("store", &self.commands.store)
            .field("call_timeout", &self.call_timeout)
            .finish_non_exhaustive()
    }
}

impl<T: TagStore> StoreBackend<Observed<T>> {
    /// Creates a backend on a store without a clock, with the default [call timeout](bounds::CALL_TIMEOUT). It has mutexes and
    /// elections: see [`Observed`].
    pub fn observing(store: T) -> Self {
        Self::new(Observed::new(store))
    }

    /// Sets a second connection, for renewals only: see [`renewals`](Self::renewals). Its runtime must have the same clock.
    #[must_use]
    pub fn observing_renewals(self, store: T) -> Self {
        let store = self.store().over(store);
        self.renewals(store)
    }
}

impl<S: Store> StoreBackend<S> {
    /// Creates a backend on a store, with the default [call timeout](bounds::CALL_TIMEOUT).
    pub fn new(store: S) -> Self {
        let (close, closed) = oneshot::channel();
        let closed = async {
            if closed.await.is_err() {
                // A backend that is dropped ends no stream.
                pending::<()>().await;
            }
        };
        Self {
            commands: Arc::new(Executor::new(store, Arc::default(), Arc::default())),
            renewals: None,
            call_timeout: bounds::CALL_TIMEOUT,
            turns: Arc::default(),
            close: Mutex::new(Some(close)),
            closed: closed.boxed().shared(),
            removed: Mutex::new(None),
        }
    }

    /// Sets the maximum time of one call, 10 ms to 5 s. It includes all retries after conflicts.
    ///
    /// # Errors
    /// [`InvalidInput`] if the timeout is outside the range.
    pub fn call_timeout(mut self, timeout: Duration) -> Result<Self, InvalidInput> {
        bounds::check_time_limit("call_timeout", timeout)?;
        self.call_timeout = timeout;
        Ok(self)
    }

    /// Sets a second connection to the same data, for renewals only. It must be connected on the
    /// [renewal thread](Runtime), so that a program that blocks its runtime doesn't stop renewals.
    #[must_use]
    pub fn renewals(mut self, store: S) -> Self {
        let Executor { local, memory, .. } = &*self.commands;
        let executor = Executor::new(store, Arc::clone(local), Arc::clone(memory));
        self.renewals = Some(Arc::new(executor));
        self
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.commands.store
    }

    fn executors(&self) -> impl Iterator<Item = &Arc<Executor<S>>> {
        std::iter::once(&self.commands).chain(&self.renewals)
    }

    fn check_open(&self) -> Result<(), BackendError> {
        match *lock(&self.close) {
            Some(_) => Ok(()),
            None => Err(BackendError::Closed),
        }
    }

    /// Awaits an answer of a store for at most this time. `late` is the error after it.
    async fn within<T>(
        &self,
        limit: Duration,
        answer: impl Future<Output = Result<T, BackendError>>,
        late: &str,
    ) -> Result<T, BackendError> {
        let answer = self.commands.runtime.timeout(limit, answer).await;
        answer.unwrap_or_else(|| Err(BackendError::unavailable(late)))
    }

    /// Executes commands on one key, each after the one before it, within the call timeout.
    async fn call(&self, key: &Key, mut commands: Vec<Command>) -> Answer {
        self.check_open()?;
        if !self.commands.counts_as_listening() {
            commands.iter_mut().for_each(polls_only);
        }
        // Renewals don't wait: a program may block the runtime of the task whose turn it is.
        let in_turn = !matches!(commands.first(), Some(Command::Renew(_)));
        let executor = match &self.renewals {
            Some(renewals) if !in_turn => renewals,
            _ => &self.commands,
        };
        let runtime = &executor.runtime;
        let ends = runtime.now().saturating_add(self.call_timeout);
        let (call, caller) = Call::new(commands, ends);
        let waiting = caller.wait(&**runtime, self.call_timeout);
        let answer = if in_turn {
            if let Some(task) = self.turns.add(key, call) {
                // The caller may be blocked by its program, and others wait for the same task.
                runtime.spawn(Box::pin(Arc::clone(executor).run(task)));
            }
            waiting.await
        } else {
            join(executor.run_alone(key, call), waiting).await.1
        };
        self.remove_expired();
        answer
    }

    /// The first waiters poll as often as the store wishes (rule 3).
    fn poll_sooner(&self, mut reply: Reply) -> Reply {
        if let Reply::Acquire(AcquireReply::Queued(queued)) | Reply::Poll(PollReply::Queued(queued)) =
            &mut reply
            && queued.ahead < bounds::FIRST_WAITERS
        {
            queued.poll_after = queued.poll_after.min(self.store().first_waiters_poll());
        }
        reply
    }

    /// Removes expired rows in the background, once in a while.
    fn remove_expired(&self) {
        let executor = Arc::clone(&self.commands);
        let now = executor.runtime.now();
        let mut removed = lock(&self.removed);
        if removed.is_some_and(|last| now.saturating_since(last) < REMOVE_EVERY) {
            return;
        }
        *removed = Some(now);
        drop(removed);
        self.commands.runtime.spawn(Box::pin(async move {
            let removing = executor.store.remove_expired();
            // If this fails, a later removal finds the same rows.
            let _ = executor.runtime.timeout(REMOVE_WITHIN, removing).await;
        }));
    }

    /// Executes a batch: the commands of each key in one write, the keys side by side.
    async fn batch(
        &self,
        batch: Vec<(&Key, Command)>,
    ) -> Vec<Result<Stamped<Reply>, BackendError>> {
        let mut keys: BTreeMap<&Key, (Vec<usize>, Vec<Command>)> = BTreeMap::new();
        for (index, (key, command)) in batch.into_iter().enumerate() {
            let (indices, commands) = keys.entry(key).or_default();
            indices.push(index);
            commands.push(command);
        }
        let calls = keys.into_iter().map(async |(key, (indices, commands))| {
            let answer = self.call(key, commands).await;
            (indices, answer)
        });
        let mut results = Vec::new();
        for (indices, answer) in join_all(calls).await {
            let of_each: Vec<_> = match answer {
                Ok(Stamped { stamp, reply }) => {
                    let replies = reply.into_iter().map(|reply| self.poll_sooner(reply));
                    replies.map(|reply| Ok(Stamped { stamp, reply })).collect()
                }
                Err(error) => vec![Err(error); indices.len()],
            };
            results.extend(indices.into_iter().zip(of_each));
        }
        results.sort_by_key(|(index, _)| *index);
        results.into_iter().map(|(_, result)| result).collect()
    }

    async fn one(&self, key: &Key, command: Command) -> Result<Stamped<Reply>, BackendError> {
        self.batch(vec![(key, command)]).await.remove(0)
    }
}

/// Says that the session of a waiter doesn't listen.
fn polls_only(command: &mut Command) {
    match command {
        Command::Acquire(acquire) => {
            if let Some(wait) = &mut acquire.wait {
                wait.listening = false;
            }
        }
        Command::Poll(poll) => poll.listening = false,
        _ => {}
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
    ($backend:ident, $batch:ident, $command:ident) => {{
        let commands = $batch.iter().map(|request| {
            let command = Command::$command(request.clone());
            (&request.key, command)
        });
        let results = $backend.batch(commands.collect()).await;
        results.into_iter().map(reply!($command)).collect()
    }};
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Store> LockBackend for StoreBackend<S> {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full();
        capabilities.push = self.store().can_listen();
        capabilities.reachability = self.store().can_listen() && self.store().can_tell_reach();
        capabilities.independent_renewal = self.renewals.is_some();
        capabilities.list = self.store().can_list();
        capabilities.clock_error = self.store().clock_error();
        // Each key needs its own read and write.
        capabilities.batches = false;
        // Without a clock, the ends of several holders can't be observed one by one.
        let has_clock = self.store().has_clock();
        capabilities.rw_locks = has_clock;
        capabilities.semaphores = has_clock;
        capabilities.convert = has_clock;
        capabilities.time_of_day = has_clock;
        capabilities
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.commands.runtime)
    }

    async fn hello(&self) -> Result<Stamp, BackendError> {
        self.check_open()?;
        let reading = self.store().time();
        let stamp = self.within(self.call_timeout, reading, LATE).await?;
        let now = self.commands.runtime.now();
        self.commands.memory.saw_clock(stamp, now);
        Ok(stamp)
    }

    fn clock(&self, _: &Key) -> Option<ClockId> {
        None
    }

    fn clock_address(&self, _: ClockId) -> Option<String> {
        None
    }

    fn time_of_day(&self, at: ServerTime) -> ServerTime {
        self.store().time_of_day(at)
    }

    async fn read_clock(&self, _: &Key) -> Result<Stamp, BackendError> {
        self.hello().await
    }

    async fn self_check(&self, key: &Key) -> Result<(), BackendError> {
        self.check_open()?;
        for (executor, name) in self.executors().zip(["commands", "renewals"]) {
            let key = Key::new(format!("{key} {name}"))
                .map_err(|error| BackendError::rejected(error.to_string()))?;
            let checking = async {
                match executor.store.has_clock() {
                    true => check_writes(&executor.store, &key).await,
                    false => executor.store.check(&key).await,
                }
            };
            let checked = self.within(CHECK_WITHIN, checking, "not checked in time");
            checked.await?;
        }
        Ok(())
    }

    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        self.check_open()?;
        // It may take a new connection, and no caller waits for it: a short call timeout does not apply.
        let limit = self.call_timeout.max(bounds::CALL_TIMEOUT);
        let stream = if self.store().can_listen() {
            let listening = self.store().listen(session);
            self.within(limit, listening, "no subscription in time")
                .await?
        } else {
            // Grants that this backend makes reach their waiters, if these are its own.
            self.commands.local.listen(session)
        };
        // `close` may have ended the streams while this one was on its way.
        self.check_open()?;
        Ok(Box::pin(stream.take_until(self.closed.clone())))
    }

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        let is_shared = |request: &Acquire| request.spec.kind() != Kind::Mutex;
        if !self.store().has_clock() && batch.iter().any(is_shared) {
            let refuse = |_| Err(BackendError::unsupported("locks with several holders"));
            return batch.iter().map(refuse).collect();
        }
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
        let command = Command::Convert(request.clone());
        reply!(Convert)(self.one(&request.key, command).await)
    }

    async fn inspect(&self, key: &Key) -> Result<Stamped<InspectReply>, BackendError> {
        let mut answer = reply!(Inspect)(self.one(key, Command::Inspect).await)?;
        let reply = &mut answer.reply;
        if reply.holder_count + reply.waiter_count > 0 {
            reply.last_change = self.store().last_change(key);
        }
        Ok(answer)
    }

    async fn list(&self, request: &List) -> Result<Listed, BackendError> {
        self.check_open()?;
        if !self.store().can_list() {
            return Err(BackendError::unsupported("list"));
        }
        let listing = self.store().list(request);
        self.within(self.call_timeout, listing, LATE).await
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
        // The wakers of the streams run without the lock.
        let close = lock(&self.close).take();
        if let Some(close) = close {
            let _ = close.send(());
        }
        let closing = join_all(self.executors().map(|it| it.store.close()));
        let closed = self.runtime().timeout(self.call_timeout, closing).await;
        let late = || vec![Err(BackendError::unavailable("not closed in time"))];
        closed.unwrap_or_else(late).into_iter().collect()
    }
}

//! The fixture of the models: a client, a server that answers at once, and a clock that stands
//! still.
//!
//! No timer ever fires, and the runtime either keeps the tasks that the client spawns, or never runs them. So
//! a model has only the threads that it starts, and loom has few interleavings to explore.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use loom::future::block_on;

use crate::backend::{Capabilities, LockBackend};
use crate::client::core::Core;
use crate::client::loom_models::STAMP;
use crate::client::state::session::Session;
use crate::client::state::signal::Signal;
use crate::client::task::{release, renew as renewal};
use crate::client::{Guard, LockClient, MutexGuard};
use crate::error::BackendError;
use crate::id::FencingToken;
use crate::reply::{
    AcquireReply, Acquired, EndReason, PollReply, Queued, ReleaseReply, RenewReply,
};
use crate::request::{Acquire, Poll, Release, Renew};
use crate::runtime::{BoxFuture, Moment, Runtime};
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};
use crate::time::{Stamp, Stamped};

const LEASE: Duration = Duration::from_secs(30);

/// A runtime whose clock stands still and that runs no task by itself.
#[derive(Debug)]
struct StillRuntime(Arc<Tasks>);

/// The tasks that a client spawns, for a model that runs them itself.
#[derive(Default)]
pub(super) struct Tasks {
    /// Whether tasks are kept. Otherwise they never run.
    kept: AtomicBool,
    spawned: Mutex<Vec<BoxFuture<'static, ()>>>,
    /// How many threads may still spawn a task.
    users: AtomicU64,
    changed: Signal,
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tasks")
    }
}

impl Tasks {
    /// Runs the tasks one after the other, until no thread may spawn another.
    pub(super) async fn run(&self) {
        loop {
            let version = self.changed.version();
            let is_done = self.users.load(Ordering::Acquire) == 0;
            let task = self.spawned.lock().pop();
            match task {
                Some(task) => task.await,
                None if is_done => return,
                None => self.changed.changed(version).await,
            }
        }
    }

    /// Notes that one thread spawns no more tasks.
    pub(super) fn user_done(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
        self.changed.notify();
    }
}

impl Runtime for StillRuntime {
    fn now(&self) -> Moment {
        Moment::from_origin(Duration::from_secs(1))
    }
    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        if self.0.kept.load(Ordering::Acquire) {
            self.0.spawned.lock().push(task);
            self.0.changed.notify();
        } else {
            // A task that is dropped before its end closes its client.
            std::mem::forget(task);
        }
    }
    fn fill_random(&self, bytes: &mut [u8]) {
        bytes.fill(0);
    }
    fn process_id(&self) -> u32 {
        1
    }
}

/// A server that grants every acquire, or queues every acquire.
#[derive(Debug, Default)]
pub(super) struct Server {
    /// Whether an acquire is answered with `Queued`.
    pub(super) queues: AtomicBool,
    state: Mutex<ServerState>,
    tasks: Arc<Tasks>,
}

#[derive(Debug, Default)]
struct ServerState {
    released: Vec<u64>,
    /// Its router must know an operation until the release is acknowledged.
    session: Option<Arc<Session>>,
}

fn stamped<T>(reply: T) -> Stamped<T> {
    Stamped {
        stamp: STAMP,
        reply,
    }
}

impl Server {
    /// How many releases of an operation were executed.
    pub(super) fn releases(&self, sequence: u64) -> usize {
        let state = self.state.lock();
        let released = state.released.iter();
        released.filter(|released| **released == sequence).count()
    }

    fn release_one(&self, request: &Release) -> ReleaseReply {
        let sequence = request.operation.sequence;
        let mut state = self.state.lock();
        if let Some(session) = &state.session {
            assert!(
                session.router.knows(sequence),
                "the router keeps the operation until its release is acknowledged"
            );
        }
        let is_repeated = state.released.contains(&sequence);
        state.released.push(sequence);
        if is_repeated {
            return ReleaseReply::NotHeld(EndReason::Released);
        }
        ReleaseReply::Released {
            holds_left: 0,
            holder: None,
        }
    }
}

#[async_trait]
impl LockBackend for Server {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            // Batches would add interleavings. Their own models send them directly.
            batches: false,
            ..Capabilities::full()
        }
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(StillRuntime(Arc::clone(&self.tasks)))
    }

    async fn hello(&self) -> Result<Stamp, BackendError> {
        Ok(STAMP)
    }

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        let reply = if self.queues.load(Ordering::Acquire) {
            AcquireReply::Queued(queued())
        } else {
            AcquireReply::Acquired(Acquired {
                token: FencingToken::new(7),
                holds: 1,
                remaining: LEASE,
            })
        };
        batch.iter().map(|_| Ok(stamped(reply.clone()))).collect()
    }

    async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        let answer = || Ok(stamped(PollReply::Queued(queued())));
        batch.iter().map(|_| answer()).collect()
    }

    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        let state = self.state.lock();
        let answer = |request: &Renew| match state.released.contains(&request.operation.sequence) {
            true => RenewReply::Lost(EndReason::Released),
            false => RenewReply::Renewed {
                token: FencingToken::new(7),
                remaining: LEASE,
            },
        };
        let replies = batch.iter().map(|request| Ok(stamped(answer(request))));
        replies.collect()
    }

    async fn release(&self, batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>> {
        let answers = batch.iter();
        answers
            .map(|request| Ok(stamped(self.release_one(request))))
            .collect()
    }

    async fn close(&self) -> Result<(), BackendError> {
        Ok(())
    }
}

const fn queued() -> Queued {
    Queued {
        ahead: 0,
        poll_after: Duration::from_secs(1),
        waiter_remaining: Duration::from_secs(5),
    }
}

/// A client and its server.
pub(super) struct Fixture {
    pub(super) server: Arc<Server>,
    pub(super) locks: LockClient,
}

impl Fixture {
    pub(super) fn new() -> Self {
        let server = Arc::new(Server::default());
        let locks = LockClient::new(Arc::clone(&server));
        server.state.lock().session = Some(locks.client.session());
        Self { server, locks }
    }

    /// A client whose tasks the model runs, with this number of threads that may spawn one. Its
    /// router does not have to know the operations that are released.
    pub(super) fn with_tasks(users: u64) -> (Self, Arc<Tasks>) {
        let fixture = Self::new();
        fixture.server.state.lock().session = None;
        let tasks = Arc::clone(&fixture.server.tasks);
        tasks.users.store(users, Ordering::Release);
        tasks.kept.store(true, Ordering::Release);
        (fixture, tasks)
    }

    /// The core, without a client handle.
    pub(super) fn core(&self) -> Arc<Core> {
        Arc::clone(&self.locks.client)
    }

    pub(super) fn session(&self) -> Arc<Session> {
        self.locks.client.session()
    }

    /// A guard whose renewal is due.
    pub(super) fn guard(&self) -> MutexGuard {
        let mutex = self.locks.mutex("k").expect("a valid key");
        let guard = block_on(mutex.lock()).expect("free");
        let core = self.core();
        core.renewals
            .schedule(&guard.hold.holder, core.now(), Some(core.now()));
        guard
    }
}

/// One round of the renewal task.
pub(super) fn renew(core: &Arc<Core>) {
    renewal::check_due(core);
    if let Some((_, batch)) = renewal::ready_batch(core) {
        block_on(renewal::renew(Arc::clone(core), batch));
    }
}

/// Runs the release task until the client has no user left.
pub(super) fn run_releases(core: Arc<Core>) {
    block_on(release::run(core));
}

/// Asserts that the client has forgotten a released operation.
pub(super) fn assert_nothing_left(core: &Core, session: &Session, sequence: u64) {
    assert!(
        core.renewals.holders().is_empty(),
        "a holder is still renewed"
    );
    assert!(core.releases.is_idle(), "a release is still queued");
    assert!(
        !session.router.knows(sequence),
        "the router still knows the operation"
    );
}

/// The sequence number of a guard's operation.
pub(super) fn sequence<K>(guard: &Guard<K>) -> u64 {
    guard.hold.operation.sequence
}

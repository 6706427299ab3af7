//! A client whose backend answers at once and whose clock stands still, so that a model has no
//! more threads than it starts.

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

/// No timer ever ends; no task is started but by a model, as a thread.
#[derive(Debug)]
struct Still(Arc<Tasks>);

/// The tasks that a client starts, for a model that runs them itself.
#[derive(Default)]
pub(super) struct Tasks {
    /// Others drop them.
    kept: AtomicBool,
    started: Mutex<Vec<BoxFuture<'static, ()>>>,
    /// How many may still start some.
    users: AtomicU64,
    changed: Signal,
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tasks")
    }
}

impl Tasks {
    /// Runs one after the other until nobody starts any more.
    pub(super) async fn run(&self) {
        loop {
            let version = self.changed.version();
            let over = self.users.load(Ordering::Acquire) == 0;
            let task = self.started.lock().pop();
            match task {
                Some(task) => task.await,
                None if over => return,
                None => self.changed.changed(version).await,
            }
        }
    }

    /// One of the users starts no more.
    pub(super) fn end(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
        self.changed.notify();
    }
}

impl Runtime for Still {
    fn now(&self) -> Moment {
        Moment::from_origin(Duration::from_secs(1))
    }
    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        if self.0.kept.load(Ordering::Acquire) {
            self.0.started.lock().push(task);
            self.0.changed.notify();
        }
    }
    fn fill_random(&self, bytes: &mut [u8]) {
        bytes.fill(0);
    }
    fn process_id(&self) -> u32 {
        1
    }
}

/// A server that gives the lock to whoever asks, or a place in the queue.
#[derive(Default)]
pub(super) struct Server {
    /// Whether an acquire is answered with a place.
    pub(super) queues: AtomicBool,
    /// Whether the reply to the next end never comes.
    pub(super) loses_reply: AtomicBool,
    state: Mutex<Seen>,
    changed: Signal,
    tasks: Arc<Tasks>,
}

#[derive(Default)]
struct Seen {
    queued: bool,
    ended: Vec<u64>,
    /// Whose router must know an operation as long as its end is on the way.
    session: Option<Arc<Session>>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Server")
    }
}

fn stamped<T>(reply: T) -> Stamped<T> {
    Stamped {
        stamp: STAMP,
        reply,
    }
}

impl Server {
    /// How many ends of an operation were executed.
    pub(super) fn ends(&self, sequence: u64) -> usize {
        let state = self.state.lock();
        state
            .ended
            .iter()
            .filter(|ended| **ended == sequence)
            .count()
    }

    /// Ends when somebody has a place in the queue.
    pub(super) async fn queued(&self) {
        loop {
            let version = self.changed.version();
            if self.state.lock().queued {
                return;
            }
            self.changed.changed(version).await;
        }
    }

    fn release_one(&self, request: &Release) -> ReleaseReply {
        let sequence = request.operation.sequence;
        let mut state = self.state.lock();
        if let Some(session) = &state.session {
            assert!(
                session.router.knows(sequence),
                "a push may come until the end is acknowledged"
            );
        }
        let again = state.ended.contains(&sequence);
        state.ended.push(sequence);
        if again {
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
            // Who travels with whom is no part of these models, and makes more orders of threads.
            batches: false,
            ..Capabilities::full()
        }
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(Still(Arc::clone(&self.tasks)))
    }

    async fn hello(&self) -> Result<Stamp, BackendError> {
        Ok(STAMP)
    }

    async fn acquire(&self, _: &Acquire) -> Result<Stamped<AcquireReply>, BackendError> {
        if !self.queues.load(Ordering::Acquire) {
            return Ok(stamped(AcquireReply::Acquired(Acquired {
                token: FencingToken::new(7),
                holds: 1,
                remaining: LEASE,
            })));
        }
        self.state.lock().queued = true;
        self.changed.notify();
        Ok(stamped(AcquireReply::Queued(waiter())))
    }

    async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        let answer = || Ok(stamped(PollReply::Queued(waiter())));
        batch.iter().map(|_| answer()).collect()
    }

    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        let state = self.state.lock();
        let answer = |request: &Renew| match state.ended.contains(&request.operation.sequence) {
            true => RenewReply::Lost(EndReason::Released),
            false => RenewReply::Renewed {
                token: FencingToken::new(7),
                remaining: LEASE,
            },
        };
        batch.iter().map(|it| Ok(stamped(answer(it)))).collect()
    }

    async fn release(&self, batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>> {
        let answers = batch
            .iter()
            .map(|end| Ok(stamped(self.release_one(end))))
            .collect();
        if self.loses_reply.swap(false, Ordering::AcqRel) {
            std::future::pending::<()>().await;
        }
        answers
    }
}

const fn waiter() -> Queued {
    Queued {
        ahead: 0,
        poll_after: Duration::from_secs(1),
        waiter_remaining: Duration::from_secs(5),
    }
}

/// A client, and its server.
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

    /// A client of so many users, whose tasks a model runs, and whose ends are of operations that
    /// its router never knew.
    pub(super) fn with_tasks(users: u64) -> (Self, Arc<Tasks>) {
        let fixture = Self::new();
        fixture.server.state.lock().session = None;
        let tasks = Arc::clone(&fixture.server.tasks);
        tasks.users.store(users, Ordering::Release);
        tasks.kept.store(true, Ordering::Release);
        (fixture, tasks)
    }

    /// The client without its user.
    pub(super) fn core(&self) -> Arc<Core> {
        Arc::clone(&self.locks.client)
    }

    pub(super) fn session(&self) -> Arc<Session> {
        self.locks.client.session()
    }

    /// A guard, whose renewal is due.
    pub(super) fn guard(&self) -> MutexGuard {
        let mutex = self.locks.mutex("k").expect("a valid key");
        let guard = block_on(mutex.lock()).expect("free");
        let core = self.core();
        core.renewals
            .schedule(&guard.hold.holder, core.now(), core.now());
        guard
    }
}

/// What the task of the renewals does once.
pub(super) fn renew(core: &Arc<Core>) {
    for batch in renewal::batches(core) {
        block_on(renewal::renew(Arc::clone(core), batch));
    }
}

/// The task that ends what was dropped; until the client has no user left.
pub(super) fn clean_up(core: Arc<Core>) {
    block_on(release::run(core));
}

/// That nothing is left of an operation that has ended.
pub(super) fn assert_nothing_left(core: &Core, session: &Session, sequence: u64) {
    assert!(core.renewals.holders().is_empty(), "it is still renewed");
    assert!(core.releases.is_idle(), "something is to be ended");
    assert!(!session.router.knows(sequence), "the router still knows it");
}

/// The number of a guard's operation.
pub(super) fn sequence<K>(guard: &Guard<K>) -> u64 {
    guard.hold.operation.sequence
}

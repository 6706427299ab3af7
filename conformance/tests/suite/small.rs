//! A minimal backend passes the suite: exclusive locks with a lease, and nothing else.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::support::Reference;
use crate::variants::passes;
use async_trait::async_trait;
use leasehold_api::{
    Acquire, AcquireReply, Acquired, BackendError, BoxFuture, Capabilities, Contended, EndReason,
    FencingToken, Key, LockBackend, Operation, Release, ReleaseReply, Renew, RenewReply, Runtime,
    ServerTime, SessionId, Stamp, Stamped, bounds,
};
use leasehold_conformance::{Abilities, Environment, Harness, SetupError, Timing, cases};

/// The state of a key: the holder and its expiry, and the highest sequence of each session.
#[derive(Debug, Default)]
struct Lock {
    holder: Option<(Operation, ServerTime)>,
    seen: BTreeMap<SessionId, u64>,
}

impl Lock {
    /// The expiry of the operation's lease, if the operation holds the key.
    fn held_by(&self, operation: Operation, now: ServerTime) -> Option<ServerTime> {
        let held = self.holder.filter(|(holder, _)| *holder == operation);
        held.map(|(_, end)| end).filter(|end| *end > now)
    }

    fn see(&mut self, operation: Operation) {
        let seen = self.seen.entry(operation.session).or_default();
        *seen = operation.sequence.max(*seen);
    }
}

type Locks = Arc<Mutex<BTreeMap<Key, Lock>>>;

#[derive(Debug)]
struct Small {
    /// Provides the clock and the runtime.
    base: Arc<dyn LockBackend>,
    locks: Locks,
    closed: AtomicBool,
}

impl Small {
    fn with<T>(&self, key: &Key, step: impl FnOnce(&mut Lock) -> T) -> T {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        step(locks.entry(key.clone()).or_default())
    }
}

fn acquire(lock: &mut Lock, request: &Acquire, now: ServerTime) -> AcquireReply {
    let latest = now.saturating_add(bounds::DELIVERY_WINDOW);
    if request.deliver_before < now || request.deliver_before > latest {
        return AcquireReply::TooLate;
    }
    let operation = request.operation;
    if lock.held_by(operation, now).is_none() {
        if lock.seen.get(&operation.session) >= Some(&operation.sequence) {
            return AcquireReply::Stale;
        }
        lock.see(operation);
        if let Some((_, end)) = lock.holder.filter(|(_, end)| *end > now) {
            return AcquireReply::Contended(Contended {
                retry_after: end.saturating_since(now),
                holder: None,
            });
        }
        lock.holder = Some((operation, now.saturating_add(request.lease)));
    }
    let end = lock.held_by(operation, now).unwrap_or(now);
    AcquireReply::Acquired(Acquired {
        token: FencingToken::new(1),
        holds: 1,
        remaining: end.saturating_since(now),
    })
}

fn renew(lock: &mut Lock, request: &Renew, now: ServerTime) -> RenewReply {
    let Some(end) = lock.held_by(request.operation, now) else {
        return RenewReply::Lost(EndReason::Unknown);
    };
    let end = end.max(now.saturating_add(request.lease));
    lock.holder = Some((request.operation, end));
    RenewReply::Renewed {
        token: FencingToken::new(1),
        remaining: end.saturating_since(now),
    }
}

fn release(lock: &mut Lock, request: &Release, now: ServerTime) -> ReleaseReply {
    lock.see(request.operation);
    if lock.held_by(request.operation, now).is_none() {
        return ReleaseReply::NotHeld(EndReason::Unknown);
    }
    lock.holder = None;
    ReleaseReply::Released {
        holds_left: 0,
        holder: None,
    }
}

/// Executes the requests of a batch one by one.
macro_rules! each {
    ($small:ident, $batch:ident, $step:ident) => {{
        let mut replies = Vec::new();
        for request in $batch {
            replies.push($small.hello().await.map(|stamp| {
                let reply = $small.with(&request.key, |lock| $step(lock, request, stamp.at));
                Stamped { stamp, reply }
            }));
        }
        replies
    }};
}

#[async_trait]
impl LockBackend for Small {
    fn capabilities(&self) -> Capabilities {
        Capabilities::minimal()
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        self.base.runtime()
    }

    async fn hello(&self) -> Result<Stamp, BackendError> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(BackendError::Closed);
        }
        self.base.hello().await
    }

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        each!(self, batch, acquire)
    }

    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        each!(self, batch, renew)
    }

    async fn release(&self, batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>> {
        each!(self, batch, release)
    }

    async fn close(&self) -> Result<(), BackendError> {
        self.closed.store(true, Ordering::Relaxed);
        Ok(())
    }
}

#[derive(Debug)]
struct SmallHarness {
    reference: Reference,
}

#[async_trait]
impl Harness for SmallHarness {
    fn name(&self) -> &str {
        "small"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::minimal()
    }

    fn abilities(&self) -> Abilities {
        Abilities::default().fencing_tokens(false)
    }

    fn timing(&self) -> Timing {
        self.reference.timing()
    }

    fn block_on(&self, case: BoxFuture<'static, ()>) {
        self.reference.block_on(case);
    }

    async fn environment(&self, namespace: &str) -> Result<Arc<dyn Environment>, SetupError> {
        Ok(Arc::new(SmallEnvironment {
            base: self.reference.environment(namespace).await?,
            locks: Locks::default(),
        }))
    }
}

#[derive(Debug)]
struct SmallEnvironment {
    base: Arc<dyn Environment>,
    locks: Locks,
}

#[async_trait]
impl Environment for SmallEnvironment {
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError> {
        Ok(Arc::new(Small {
            base: self.base.backend().await?,
            locks: Arc::clone(&self.locks),
            closed: AtomicBool::new(false),
        }))
    }

    async fn let_time_pass(&self, duration: Duration) {
        self.base.let_time_pass(duration).await;
    }
}

#[test]
fn minimal_backend_passes_its_cases() {
    let ignored = passes(SmallHarness {
        reference: Reference::plain(),
    });
    let passed = cases().count() - ignored.len();
    assert!(passed >= 80, "only {passed} cases ran");
}

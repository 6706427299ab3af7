//! A lock, and a session that asks for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_api::{
    InspectReply, Key, LockBackend, LockSpec, Notifications, Operation, OwnerId, Runtime,
    ServerTime, SessionId, Stamped,
};

use crate::failure::Failure;

/// The time of the slowest call of a case, in µs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slowest(Arc<AtomicU64>);

impl Slowest {
    /// Waits for a call, and notes how long it takes.
    pub(crate) async fn time<T>(&self, runtime: &dyn Runtime, call: impl Future<Output = T>) -> T {
        let began = runtime.now();
        let answer = call.await;
        let took = runtime.now().saturating_since(began).as_micros();
        let took = u64::try_from(took).unwrap_or(u64::MAX);
        self.0.fetch_max(took, Ordering::Relaxed);
        answer
    }

    pub(crate) fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// A key and the kind of lock that a case uses it as.
#[derive(Clone, Debug)]
pub(crate) struct Lock {
    pub(crate) key: Key,
    pub(crate) spec: LockSpec,
}

impl Lock {
    pub(crate) fn new(name: &str, spec: LockSpec) -> Self {
        let key = Key::new(name).expect("scenario keys are valid");
        Self { key, spec }
    }

    pub(crate) fn mutex(name: &str) -> Self {
        Self::new(name, LockSpec::mutex())
    }

    pub(crate) fn rw(name: &str) -> Self {
        Self::new(name, LockSpec::rw_lock())
    }

    pub(crate) fn semaphore(name: &str, permits: u32) -> Self {
        let spec = LockSpec::semaphore(permits).expect("scenario permits are valid");
        Self::new(name, spec)
    }

    pub(crate) fn waiter_lease(mut self, lease: Duration) -> Self {
        let spec = self.spec.with_waiter_lease(lease);
        self.spec = spec.expect("scenario waiter leases are valid");
        self
    }
}

/// A session, which numbers its attempts.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) backend: Arc<dyn LockBackend>,
    pub(crate) id: SessionId,
    sequence: Arc<AtomicU64>,
    pub(crate) slowest: Slowest,
}

impl Session {
    /// Another session on a client that exists. Its calls don't count for the tolerance.
    pub(crate) fn on(backend: Arc<dyn LockBackend>) -> Self {
        let mut id = [0; 16];
        backend.runtime().fill_random(&mut id);
        Self {
            backend,
            id: SessionId::from_bytes(id),
            sequence: Arc::new(AtomicU64::new(0)),
            slowest: Slowest::default(),
        }
    }

    /// Waits for a call of this session.
    pub(crate) async fn timed<T>(&self, call: impl Future<Output = T>) -> T {
        self.slowest.time(&*self.backend.runtime(), call).await
    }

    /// The server's time.
    pub(crate) async fn now(&self) -> Result<ServerTime, Failure> {
        Ok(self.timed(self.backend.hello()).await?.at)
    }

    pub(crate) fn owner(&self) -> OwnerId {
        OwnerId::from_u64(self.backend.runtime().random_u64())
    }

    /// Numbers the next attempt of the given owner.
    pub(crate) fn operation(&self, owner: OwnerId) -> Operation {
        Operation {
            session: self.id,
            sequence: self.sequence.fetch_add(1, Ordering::Relaxed) + 1,
            owner,
        }
    }

    pub(crate) async fn inspect(&self, lock: &Lock) -> Result<Stamped<InspectReply>, Failure> {
        Ok(self.backend.inspect(&lock.key).await?)
    }

    /// Subscribes the session.
    pub(crate) async fn listen(&self) -> Result<Notifications, Failure> {
        Ok(self.backend.listen(self.id).await?)
    }
}

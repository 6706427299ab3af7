//! Sends single commands to the backend, without a lock client.

use std::slice::from_ref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_api::bounds::DELIVERY_WINDOW;
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Key, Label, LockBackend, LockSpec, Mode, Notification,
    Operation, OwnerId, Poll, PollReply, Release, ReleaseReply, Renew, RenewReply, SessionId,
    Stamp, Stamped, Wait,
};
use leasehold_sim::tools::replay;
use leasehold_sim::{SimBackend, SimServer};

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Asserts that a value matches a pattern.
macro_rules! assert_is {
    ($value:expr => $($pattern:tt)+) => {
        match &$value {
            $($pattern)+ => {}
            other => panic!("{}: {other:?}, wanted {}", stringify!($value), stringify!($($pattern)+)),
        }
    };
}
pub(crate) use assert_is;

type Reply = Result<Stamped<AcquireReply>, BackendError>;

/// A client that sends only the commands of the test.
pub(crate) struct Raw {
    pub(crate) backend: SimBackend,
    pub(crate) session: SessionId,
    name: String,
    sequence: AtomicU64,
}

pub(crate) fn key() -> Key {
    Key::new("job").expect("a valid key")
}

/// Asserts that the log of a server, executed again, gives the same answers.
#[track_caller]
pub(crate) fn assert_replays(server: &SimServer) {
    replay(&server.log()).expect("the same answers");
}

/// A tokio runtime whose clock is paused.
pub(crate) fn paused() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime")
}

impl Raw {
    /// A server and its only client, `a`.
    pub(crate) fn alone() -> (SimServer, Self) {
        let server = SimServer::new(1);
        let a = Self::new(&server, "a");
        (server, a)
    }

    /// A server and two clients, `a` and `b`.
    pub(crate) fn pair() -> (SimServer, Self, Self) {
        let (server, a) = Self::alone();
        let b = Self::new(&server, "b");
        (server, a, b)
    }

    pub(crate) fn new(server: &SimServer, name: &str) -> Self {
        let backend = server.client(name);
        let mut bytes = [0; 16];
        backend.runtime().fill_random(&mut bytes);
        Self {
            backend,
            session: SessionId::from_bytes(bytes),
            name: name.to_owned(),
            sequence: AtomicU64::new(0),
        }
    }

    pub(crate) fn operation(&self) -> Operation {
        Operation {
            session: self.session,
            sequence: self.sequence.fetch_add(1, Ordering::Relaxed) + 1,
            owner: OwnerId::from_u64(self.backend.runtime().random_u64()),
        }
    }

    /// An acquire of the mutex, whose delivery window begins now.
    pub(crate) async fn request(&self, operation: Operation, lease: Duration) -> Acquire {
        let stamp = self.backend.hello().await.expect("the server answers");
        self.request_at(stamp, operation, lease)
    }

    fn request_at(&self, stamp: Stamp, operation: Operation, lease: Duration) -> Acquire {
        let before = stamp.at.saturating_add(DELIVERY_WINDOW);
        let (spec, mode) = (LockSpec::mutex(), Mode::Exclusive);
        let request = Acquire::new(key(), spec, mode, operation, lease, before);
        let label = Label::new(&self.name).expect("a short name");
        request.expect("a valid request").with_label(label)
    }

    /// The next operation, and its acquire.
    pub(crate) async fn ask(&self, lease: Duration) -> (Operation, Acquire) {
        let operation = self.operation();
        (operation, self.request(operation, lease).await)
    }

    /// Sends one acquire.
    pub(crate) async fn send(&self, request: &Acquire) -> Reply {
        self.backend.acquire(from_ref(request)).await.remove(0)
    }

    pub(crate) async fn acquire(&self, lease: Duration) -> (Operation, AcquireReply) {
        let (operation, request) = self.ask(lease).await;
        let reply = self.send(&request).await.expect("an answer");
        (operation, reply.reply)
    }

    pub(crate) async fn queue(&self, lease: Duration) -> (Operation, AcquireReply) {
        let (operation, request) = self.ask(lease).await;
        let request = request.with_wait(Wait::new(true));
        let reply = self.send(&request).await.expect("an answer");
        (operation, reply.reply)
    }

    /// Queues, and ignores errors: the connection may break meanwhile.
    pub(crate) async fn try_queue(&self, lease: Duration) -> Operation {
        let operation = self.operation();
        if let Ok(stamp) = self.backend.hello().await {
            let request = self.request_at(stamp, operation, lease);
            let request = request.with_wait(Wait::new(true));
            // The result doesn't matter: the test polls and releases the operation later.
            let _ = self.send(&request).await;
        }
        operation
    }

    pub(crate) async fn poll(&self, operation: Operation) -> Result<PollReply, BackendError> {
        let batch = [Poll::new(key(), operation, true)];
        let reply = self.backend.poll(&batch).await.remove(0);
        reply.map(|stamped| stamped.reply)
    }

    pub(crate) async fn renew(
        &self,
        operation: Operation,
        lease: Duration,
    ) -> Result<RenewReply, BackendError> {
        let batch = [Renew::new(key(), operation, lease).expect("a valid lease")];
        let reply = self.backend.renew(&batch).await.remove(0);
        reply.map(|stamped| stamped.reply)
    }

    pub(crate) async fn release(&self, operation: Operation) -> Result<ReleaseReply, BackendError> {
        let batch = [Release::new(key(), operation)];
        let reply = self.backend.release(&batch).await.remove(0);
        reply.map(|stamped| stamped.reply)
    }
}

/// What a stream says when its subscription is lost, and when it is back.
pub(crate) const MISSED: [Notification; 2] = [
    Notification::Missed { listening: false },
    Notification::Missed { listening: true },
];

/// Whether the outcome of a call is unknown.
pub(crate) fn unknown<T>(result: &Result<T, BackendError>) -> bool {
    matches!(result, Err(BackendError::OutcomeUnknown { .. }))
}

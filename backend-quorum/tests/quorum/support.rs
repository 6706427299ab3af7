//! Three simulated servers with unrelated clocks, and processes that use them.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use leasehold_api::{
    Acquire, AcquireReply, BackendError, FencingToken, Key, LockBackend, LockClient, LockSpec,
    Mode, MutexGuard, Operation, OwnerId, SessionId,
};
use leasehold_quorum::Quorum;
use leasehold_sim::{SimBackend, SimOptions, SimServer};

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A message takes 1 ms in each direction.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) all: [SimServer; 3],
}

impl Servers {
    pub(crate) fn start(seed: u64) -> Self {
        let all = [0, 1, 2].map(|n| SimServer::with_options(SimOptions::new(3 * seed + n)));
        all[1].step_clock_forward(secs(3_600));
        all[2].step_clock_forward(secs(5 * 3_600));
        Self { all }
    }

    /// Starts servers, and two processes that know their clocks.
    pub(crate) async fn start_with_two(seed: u64) -> (Self, Process, Process) {
        let servers = Self::start(seed);
        let (a, b) = (servers.acquainted("a").await, servers.acquainted("b").await);
        (servers, a, b)
    }

    /// A process with a connection to each server.
    pub(crate) fn process(&self, name: &str) -> Process {
        self.process_with_quorum(name, |quorum| quorum)
    }

    /// A process with settings of the quorum.
    pub(crate) fn process_with_quorum(
        &self,
        name: &str,
        set: impl FnOnce(Quorum) -> Quorum,
    ) -> Process {
        let links = [0, 1, 2].map(|n: usize| self.all[n].client(name));
        let quorum = set(Quorum::new(links.clone()).expect("three servers"));
        let quorum: Arc<dyn LockBackend> = Arc::new(quorum);
        Process {
            links,
            locks: LockClient::new(Arc::clone(&quorum)),
            quorum,
        }
    }

    /// A process that knows the clocks of all servers.
    pub(crate) async fn acquainted(&self, name: &str) -> Process {
        let process = self.process(name);
        process.token("acquaintance").await;
        self.advance(ms(10)).await;
        process
    }

    pub(crate) async fn advance(&self, by: Duration) {
        self.all[0].advance(by).await;
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.all[0].elapsed()
    }

    /// How long the future takes.
    pub(crate) async fn timed<T>(&self, future: impl Future<Output = T>) -> (T, Duration) {
        let began = self.elapsed();
        let output = future.await;
        (output, self.elapsed() - began)
    }

    /// Drops the future unless it completes in time.
    pub(crate) async fn within<T>(
        &self,
        time: Duration,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        match select(pin!(future), pin!(self.advance(time))).await {
            Either::Left((output, _)) => Some(output),
            Either::Right(_) => None,
        }
    }

    /// Waits until the guard is lost.
    pub(crate) async fn lost(&self, guard: &MutexGuard) {
        let lost = self.within(secs(45), guard.lost()).await;
        lost.expect("lost within 45 s");
    }

    /// Checks that nothing was sent to a server.
    #[track_caller]
    pub(crate) fn assert_untouched(&self) {
        let untouched = |server: &SimServer| server.messages().is_empty();
        assert!(self.all.iter().all(untouched));
    }

    #[track_caller]
    pub(crate) fn assert_idle(&self) {
        for server in &self.all {
            server.assert_idle();
        }
    }
}

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) links: [SimBackend; 3],
    pub(crate) quorum: Arc<dyn LockBackend>,
    pub(crate) locks: LockClient,
}

impl Process {
    /// Waits for a lock. A lock that is never granted is a failure, and not a test that hangs.
    pub(crate) async fn lock(&self, key: &str) -> MutexGuard {
        let mutex = self.locks.mutex(key).expect("a valid key");
        let outcome = mutex.try_lock_for(secs(45)).await.expect("an answer");
        outcome.into_guard().expect("granted within 45 s")
    }

    /// Whether the key is free at once.
    pub(crate) async fn gets(&self, key: &str) -> bool {
        let mutex = self.locks.mutex(key).expect("a valid key");
        let outcome = mutex.try_lock().await.expect("an answer");
        outcome.into_guard().is_some()
    }

    pub(crate) fn kill(&self) {
        self.links.iter().for_each(SimBackend::kill);
    }

    /// Builds an acquire, to be delivered within 2 s.
    pub(crate) fn request(&self, key: &str, sequence: u64) -> Acquire {
        let now = self.quorum.runtime().now().since_origin();
        let now = leasehold_api::ServerTime::default().saturating_add(now);
        let id = self.links[0].index() as u8;
        let operation = Operation {
            session: SessionId::from_bytes([id; 16]),
            sequence,
            owner: OwnerId::from_u64(sequence),
        };
        let key = Key::new(key).expect("a valid key");
        let (spec, mode) = (LockSpec::mutex(), Mode::Exclusive);
        let soon = now.saturating_add(secs(2));
        let request = Acquire::new(key, spec, mode, operation, secs(30), soon);
        request.expect("a valid request")
    }

    /// Sends one attempt.
    pub(crate) async fn ask(&self, key: &str, sequence: u64) -> Result<AcquireReply, BackendError> {
        let batch = [self.request(key, sequence)];
        let answer = self.quorum.acquire(&batch).await.remove(0)?;
        Ok(answer.reply)
    }

    pub(crate) async fn token(&self, key: &str) -> FencingToken {
        let guard = self.lock(key).await;
        let token = guard.fencing_token();
        guard.release().await.expect("released");
        token
    }
}

/// Whether an attempt got the lock.
pub(crate) fn granted(answer: &Result<AcquireReply, BackendError>) -> bool {
    matches!(answer, Ok(AcquireReply::Acquired(_)))
}

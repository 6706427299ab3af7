//! A backend that counts the calls to the backend that it wraps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Capabilities, Convert, ConvertReply, End, EndReply,
    ForceRelease, ForceReply, InspectReply, Key, LockBackend, Notices, Poll, PollReply, Renew,
    RenewReply, Runtime, SessionId, Stamp, Stamped,
};

/// Counters of calls, by purpose.
#[derive(Debug, Default)]
pub struct Counts {
    acquires: AtomicU64,
    polls: AtomicU64,
    renewals: AtomicU64,
    ends: AtomicU64,
}

/// The values of [`Counts`] at one moment, or their difference between two.
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshot {
    /// Calls that acquire.
    pub acquires: u64,
    /// Calls that poll for one or more waiters.
    pub polls: u64,
    /// Calls that renew one or more leases.
    pub renewals: u64,
    /// Calls that release one or more operations.
    pub ends: u64,
}

impl Snapshot {
    /// The calls since an earlier one.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            acquires: self.acquires - earlier.acquires,
            polls: self.polls - earlier.polls,
            renewals: self.renewals - earlier.renewals,
            ends: self.ends - earlier.ends,
        }
    }
}

impl Counts {
    /// The calls so far.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            acquires: self.acquires.load(Ordering::Relaxed),
            polls: self.polls.load(Ordering::Relaxed),
            renewals: self.renewals.load(Ordering::Relaxed),
            ends: self.ends.load(Ordering::Relaxed),
        }
    }
}

/// Wraps a backend and counts its calls.
#[derive(Debug)]
pub struct Counting<B> {
    inner: B,
    counts: Arc<Counts>,
}

impl<B> Counting<B> {
    /// Counts the calls to `inner` in `counts`.
    pub const fn new(inner: B, counts: Arc<Counts>) -> Self {
        Self { inner, counts }
    }
}

fn one(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<B: LockBackend> LockBackend for Counting<B> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn runtime(&self) -> Arc<dyn Runtime> {
        self.inner.runtime()
    }
    async fn hello(&self) -> Result<Stamp, BackendError> {
        self.inner.hello().await
    }
    async fn listen(&self, session: SessionId) -> Result<Notices, BackendError> {
        self.inner.listen(session).await
    }
    async fn acquire(&self, request: &Acquire) -> Result<Stamped<AcquireReply>, BackendError> {
        one(&self.counts.acquires);
        self.inner.acquire(request).await
    }
    async fn acquire_all(
        &self,
        batch: &[Acquire],
    ) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        one(&self.counts.acquires);
        self.inner.acquire_all(batch).await
    }
    async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        one(&self.counts.polls);
        self.inner.poll(batch).await
    }
    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        one(&self.counts.renewals);
        self.inner.renew(batch).await
    }
    async fn end(&self, batch: &[End]) -> Vec<Result<Stamped<EndReply>, BackendError>> {
        one(&self.counts.ends);
        self.inner.end(batch).await
    }
    async fn convert(&self, request: &Convert) -> Result<Stamped<ConvertReply>, BackendError> {
        self.inner.convert(request).await
    }
    async fn inspect(&self, key: &Key) -> Result<Stamped<InspectReply>, BackendError> {
        self.inner.inspect(key).await
    }
    async fn force_release(
        &self,
        request: &ForceRelease,
    ) -> Result<Stamped<ForceReply>, BackendError> {
        self.inner.force_release(request).await
    }
    async fn close(&self) -> Result<(), BackendError> {
        self.inner.close().await
    }
}

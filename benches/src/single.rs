//! A backend that sends each acquire and each release in its own call.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Capabilities, Convert, ConvertReply, End, EndReply,
    ForceRelease, ForceReply, InspectReply, Key, LockBackend, Notices, Poll, PollReply, Renew,
    RenewReply, Runtime, SessionId, Stamp, Stamped,
};

/// Wraps a backend and hides that it accepts batches.
#[derive(Debug)]
pub struct Single<B>(B);

impl<B> Single<B> {
    /// Wraps `inner`.
    pub const fn new(inner: B) -> Self {
        Self(inner)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<B: LockBackend> LockBackend for Single<B> {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.0.capabilities();
        capabilities.batches = false;
        capabilities
    }
    fn runtime(&self) -> Arc<dyn Runtime> {
        self.0.runtime()
    }
    async fn hello(&self) -> Result<Stamp, BackendError> {
        self.0.hello().await
    }
    async fn listen(&self, session: SessionId) -> Result<Notices, BackendError> {
        self.0.listen(session).await
    }
    async fn acquire(&self, request: &Acquire) -> Result<Stamped<AcquireReply>, BackendError> {
        self.0.acquire(request).await
    }
    async fn acquire_all(
        &self,
        batch: &[Acquire],
    ) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        self.0.acquire_all(batch).await
    }
    async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        self.0.poll(batch).await
    }
    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        self.0.renew(batch).await
    }
    async fn end(&self, batch: &[End]) -> Vec<Result<Stamped<EndReply>, BackendError>> {
        self.0.end(batch).await
    }
    async fn convert(&self, request: &Convert) -> Result<Stamped<ConvertReply>, BackendError> {
        self.0.convert(request).await
    }
    async fn inspect(&self, key: &Key) -> Result<Stamped<InspectReply>, BackendError> {
        self.0.inspect(key).await
    }
    async fn force_release(
        &self,
        request: &ForceRelease,
    ) -> Result<Stamped<ForceReply>, BackendError> {
        self.0.force_release(request).await
    }
    async fn close(&self) -> Result<(), BackendError> {
        self.0.close().await
    }
}

//! A network cable that can be pulled, and that can lose a reply: a backend around another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use leasehold::LockBackend;
use leasehold::api::{
    Acquire, AcquireReply, BackendError, Convert, ConvertReply, End, EndReply, ForceRelease,
    ForceReply, InspectReply, Key, Notices, Poll, PollReply, Renew, RenewReply, SessionId, Stamp,
    Stamped, forward_lock_backend,
};

/// While the cable is out, no call gets through; what was pushed before still arrives.
#[derive(Debug)]
pub(crate) struct Cable {
    inner: Arc<dyn LockBackend>,
    out: AtomicBool,
    loses_a_reply: AtomicBool,
}

impl Cable {
    pub(crate) fn around(inner: Arc<dyn LockBackend>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            out: AtomicBool::new(false),
            loses_a_reply: AtomicBool::new(false),
        })
    }

    pub(crate) fn pull(&self) {
        self.out.store(true, Ordering::Relaxed);
    }

    pub(crate) fn plug_in(&self) {
        self.out.store(false, Ordering::Relaxed);
    }

    /// The next acquire is executed, but its reply does not come back.
    pub(crate) fn lose_a_reply(&self) {
        self.loses_a_reply.store(true, Ordering::Relaxed);
    }

    /// Whether the reply that was to be lost has been.
    pub(crate) fn has_lost_it(&self) -> bool {
        !self.loses_a_reply.load(Ordering::Relaxed)
    }

    fn check(&self) -> Result<(), BackendError> {
        if self.out.load(Ordering::Relaxed) {
            return Err(BackendError::unavailable("the cable is out"));
        }
        Ok(())
    }

    /// One error for each element of a batch, or nothing if the cable is in.
    fn check_batch<T>(&self, len: usize) -> Option<Vec<Result<T, BackendError>>> {
        let error = self.check().err()?;
        Some((0..len).map(|_| Err(error.clone())).collect())
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockBackend for Cable {
    forward_lock_backend!(|it| it.inner; capabilities runtime close);

    async fn hello(&self) -> Result<Stamp, BackendError> {
        self.check()?;
        self.inner.hello().await
    }

    async fn listen(&self, session: SessionId) -> Result<Notices, BackendError> {
        self.check()?;
        self.inner.listen(session).await
    }

    async fn acquire(&self, request: &Acquire) -> Result<Stamped<AcquireReply>, BackendError> {
        self.check()?;
        let reply = self.inner.acquire(request).await?;
        if self.loses_a_reply.swap(false, Ordering::Relaxed) {
            return Err(BackendError::outcome_unknown("the reply was lost"));
        }
        Ok(reply)
    }

    async fn acquire_all(
        &self,
        batch: &[Acquire],
    ) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        match self.check_batch(batch.len()) {
            Some(errors) => errors,
            None => self.inner.acquire_all(batch).await,
        }
    }

    async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        match self.check_batch(batch.len()) {
            Some(errors) => errors,
            None => self.inner.poll(batch).await,
        }
    }

    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        match self.check_batch(batch.len()) {
            Some(errors) => errors,
            None => self.inner.renew(batch).await,
        }
    }

    async fn end(&self, batch: &[End]) -> Vec<Result<Stamped<EndReply>, BackendError>> {
        match self.check_batch(batch.len()) {
            Some(errors) => errors,
            None => self.inner.end(batch).await,
        }
    }

    async fn convert(&self, request: &Convert) -> Result<Stamped<ConvertReply>, BackendError> {
        self.check()?;
        self.inner.convert(request).await
    }

    async fn inspect(&self, key: &Key) -> Result<Stamped<InspectReply>, BackendError> {
        self.check()?;
        self.inner.inspect(key).await
    }

    async fn force_release(
        &self,
        request: &ForceRelease,
    ) -> Result<Stamped<ForceReply>, BackendError> {
        self.check()?;
        self.inner.force_release(request).await
    }
}

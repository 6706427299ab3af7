//! A backend that wraps another one and simulates network failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use leasehold::backend::LockBackend;
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Convert, ConvertReply, ForceRelease, ForceReply,
    InspectReply, Key, List, Listed, Note, NoteReply, Notifications, Poll, PollReply, Release,
    ReleaseReply, Renew, RenewReply, SessionId, Stamp, Stamped, forward_lock_backend,
};

/// A connection that the tour can cut, and that can lose a reply.
///
/// While the connection is cut, every call fails. Notifications that were already sent still
/// arrive.
#[derive(Debug)]
pub(crate) struct FlakyConnection {
    inner: Arc<dyn LockBackend>,
    cut: AtomicBool,
    lose_next_reply: AtomicBool,
}

impl FlakyConnection {
    pub(crate) fn new(inner: Arc<dyn LockBackend>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            cut: AtomicBool::new(false),
            lose_next_reply: AtomicBool::new(false),
        })
    }

    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }

    pub(crate) fn restore(&self) {
        self.cut.store(false, Ordering::Relaxed);
    }

    /// Loses the reply of the next acquire. The server still executes it.
    pub(crate) fn lose_next_reply(&self) {
        self.lose_next_reply.store(true, Ordering::Relaxed);
    }

    /// Whether the reply of an acquire was lost since [`lose_next_reply`](Self::lose_next_reply).
    pub(crate) fn has_lost_reply(&self) -> bool {
        !self.lose_next_reply.load(Ordering::Relaxed)
    }

    fn check(&self) -> Result<(), BackendError> {
        if self.cut.load(Ordering::Relaxed) {
            return Err(BackendError::unavailable("the connection is cut"));
        }
        Ok(())
    }

    /// One error per element of a batch while the connection is cut, otherwise `None`.
    fn check_batch<T>(&self, len: usize) -> Option<Vec<Result<T, BackendError>>> {
        let error = self.check().err()?;
        Some((0..len).map(|_| Err(error.clone())).collect())
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockBackend for FlakyConnection {
    forward_lock_backend!(|it| it.inner; capabilities runtime clock close);

    async fn hello(&self) -> Result<Stamp, BackendError> {
        self.check()?;
        self.inner.hello().await
    }

    async fn read_clock(&self, key: &Key) -> Result<Stamp, BackendError> {
        self.check()?;
        self.inner.read_clock(key).await
    }

    async fn self_check(&self, key: &Key) -> Result<(), BackendError> {
        self.check()?;
        self.inner.self_check(key).await
    }

    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        self.check()?;
        self.inner.listen(session).await
    }

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        if let Some(errors) = self.check_batch(batch.len()) {
            return errors;
        }
        let replies = self.inner.acquire(batch).await;
        if self.lose_next_reply.swap(false, Ordering::Relaxed) {
            let lost = BackendError::outcome_unknown("the reply was lost");
            return batch.iter().map(|_| Err(lost.clone())).collect();
        }
        replies
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

    async fn release(&self, batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>> {
        match self.check_batch(batch.len()) {
            Some(errors) => errors,
            None => self.inner.release(batch).await,
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

    async fn list(&self, request: &List) -> Result<Listed, BackendError> {
        self.check()?;
        self.inner.list(request).await
    }

    async fn force_release(
        &self,
        request: &ForceRelease,
    ) -> Result<Stamped<ForceReply>, BackendError> {
        self.check()?;
        self.inner.force_release(request).await
    }

    async fn write_note(&self, request: &Note) -> Result<Stamped<NoteReply>, BackendError> {
        self.check()?;
        self.inner.write_note(request).await
    }
}

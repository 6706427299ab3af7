//! A backend that wraps another one and simulates network failures.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use leasehold::LockBackend;
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Poll, PollReply, Release, ReleaseReply, Renew, RenewReply,
    Stamped, forward_lock_backend,
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

    /// What `call` returns, or one error per element of the batch while the connection is cut.
    async fn unless_cut<T: Clone>(
        &self,
        elements: usize,
        call: impl Future<Output = Vec<Result<T, BackendError>>>,
    ) -> Vec<Result<T, BackendError>> {
        match self.check() {
            Ok(()) => call.await,
            Err(cut) => vec![Err(cut); elements],
        }
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl LockBackend for FlakyConnection {
    forward_lock_backend!(|it| it.inner; capabilities runtime clock close);

    // Over a cut connection, each of these calls fails.
    forward_lock_backend! {
        |it| {
            if let Err(cut) = it.check() {
                return Box::pin(ready(Err(cut)));
            }
            &it.inner
        };
        hello read_clock listen convert inspect list force_release write_note
    }

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        let acquiring = self.inner.acquire(batch);
        let replies = self.unless_cut(batch.len(), acquiring).await;
        if self.check().is_ok() && self.lose_next_reply.swap(false, Ordering::Relaxed) {
            let lost = BackendError::outcome_unknown("the reply was lost");
            return vec![Err(lost); batch.len()];
        }
        replies
    }

    async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        self.unless_cut(batch.len(), self.inner.poll(batch)).await
    }

    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        self.unless_cut(batch.len(), self.inner.renew(batch)).await
    }

    async fn release(&self, batch: &[Release]) -> Vec<Result<Stamped<ReleaseReply>, BackendError>> {
        self.unless_cut(batch.len(), self.inner.release(batch))
            .await
    }
}

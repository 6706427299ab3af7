//! A backend that records the progress of its caller's attempts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use leasehold_api::{
    Acquire, AcquireReply, BackendError, LockBackend, Notification, Notifications, Poll, PollReply,
    Runtime, SessionId, Stamped, forward_lock_backend,
};

/// The progress of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Nothing was sent.
    #[default]
    Idle,
    /// The acquire was passed to the client library.
    Sent,
    /// The server granted the lock, and this process received the reply.
    Granted,
}

/// A [`LockBackend`] that records how far the latest attempt got.
#[derive(Debug)]
pub(crate) struct RecordingBackend {
    inner: Arc<dyn LockBackend>,
    latest: Arc<Mutex<Latest>>,
    /// The maximum delay of replies and notifications.
    hold_back: Duration,
}

#[derive(Debug, Default)]
struct Latest {
    sequence: u64,
    phase: Phase,
}

impl Latest {
    fn advance(&mut self, sequence: u64, phase: Phase) {
        if self.sequence == sequence {
            self.phase = self.phase.max(phase);
        }
    }
}

impl RecordingBackend {
    /// Forwards everything to `inner`. Delays replies and notifications by a random time up to `hold_back`, so that a
    /// future can be dropped between the grant and its arrival.
    #[must_use]
    pub(crate) fn new(inner: Arc<dyn LockBackend>, hold_back: Duration) -> Self {
        Self {
            inner,
            latest: Arc::default(),
            hold_back,
        }
    }

    /// The progress of the attempt that started after the last call of this method. Only for a
    /// session that makes one attempt at a time.
    pub(crate) fn take_phase(&self) -> Phase {
        std::mem::take(&mut lock(&self.latest).phase)
    }

    /// Passes an answer on, perhaps later.
    async fn late<T>(&self, answer: T) -> T {
        late(&*self.inner.runtime(), self.hold_back, answer).await
    }
}

async fn late<T>(runtime: &dyn Runtime, longest: Duration, answer: T) -> T {
    let micros = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX);
    if micros > 0 {
        let time = Duration::from_micros(runtime.random_u64() % micros);
        runtime.sleep(time).await;
    }
    answer
}

fn lock(latest: &Mutex<Latest>) -> MutexGuard<'_, Latest> {
    latest.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockBackend for RecordingBackend {
    forward_lock_backend! {
        |it| it.inner;
        capabilities runtime hello clock read_clock renew release convert inspect force_release list write_note close
    }

    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        let notifications = self.inner.listen(session).await?;
        let (latest, runtime, longest) = (Arc::clone(&self.latest), self.runtime(), self.hold_back);
        Ok(Box::pin(notifications.then(move |notification| {
            if let Notification::Granted { sequence, .. } = notification {
                lock(&latest).advance(sequence, Phase::Granted);
            }
            let runtime = Arc::clone(&runtime);
            async move { late(&*runtime, longest, notification).await }
        })))
    }

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        for request in batch {
            let mut latest = lock(&self.latest);
            latest.sequence = request.operation.sequence;
            latest.advance(request.operation.sequence, Phase::Sent);
        }
        let replies = self.inner.acquire(batch).await;
        for (request, reply) in batch.iter().zip(&replies) {
            if let Ok(AcquireReply::Acquired(_)) = reply.as_ref().map(|it| &it.reply) {
                lock(&self.latest).advance(request.operation.sequence, Phase::Granted);
            }
        }
        self.late(replies).await
    }

    async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        let replies = self.inner.poll(batch).await;
        for (poll, reply) in batch.iter().zip(&replies) {
            if let Ok(PollReply::Acquired(_)) = reply.as_ref().map(|it| &it.reply) {
                lock(&self.latest).advance(poll.operation.sequence, Phase::Granted);
            }
        }
        self.late(replies).await
    }
}

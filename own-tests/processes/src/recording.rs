//! A backend that records the progress of its caller's attempts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use leasehold_api::bounds::DEFAULT_WAITER_LEASE;
use leasehold_api::{
    Acquire, AcquireReply, BackendError, FencingToken, LockBackend, Notification, Notifications,
    Poll, PollReply, Runtime, ServerTime, SessionId, Stamped, forward_lock_backend,
};

/// The progress of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Nothing was sent.
    #[default]
    Idle,
    /// The acquire was passed to the client library.
    Sent,
    /// The server granted the lock, and this process received the reply.
    Granted,
}

/// When the server queued or granted an attempt. Tickets are ordered as the server executed the
/// acquires of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    /// The server's time. All acquires of a batch share it.
    pub at: ServerTime,
    /// The position in the batch.
    pub position: usize,
}

/// A [`LockBackend`] that records tickets and grants.
#[derive(Debug)]
pub struct RecordingBackend {
    inner: Arc<dyn LockBackend>,
    notes: Arc<Mutex<Notes>>,
    /// The maximum delay of replies and notifications.
    hold_back: Duration,
    /// The waiter lease of each acquire.
    waiter_lease: Duration,
}

#[derive(Debug, Default)]
struct Notes {
    /// The ticket of each attempt, by its first reply.
    tickets: BTreeMap<u64, Ticket>,
    /// The attempt that was granted with each token.
    granted: BTreeMap<FencingToken, u64>,
    current: u64,
    phase: Phase,
}

impl RecordingBackend {
    /// Forwards everything to `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn LockBackend>) -> Self {
        Self {
            inner,
            notes: Arc::default(),
            hold_back: Duration::ZERO,
            waiter_lease: DEFAULT_WAITER_LEASE,
        }
    }

    /// Also delays replies and notifications by a random time up to `longest`, so that a future can
    /// be dropped between the grant and its arrival.
    #[must_use]
    pub const fn holding_back(mut self, longest: Duration) -> Self {
        self.hold_back = longest;
        self
    }

    /// Also changes the waiter lease of each acquire: a long one outlasts the stalls of a busy machine.
    #[must_use]
    pub const fn waiter_lease(mut self, lease: Duration) -> Self {
        self.waiter_lease = lease;
        self
    }

    /// The ticket of the attempt that was granted with this token.
    #[must_use]
    pub fn ticket(&self, token: FencingToken) -> Option<Ticket> {
        let notes = lock(&self.notes);
        let attempt = notes.granted.get(&token)?;
        notes.tickets.get(attempt).copied()
    }

    /// The progress of the attempt that started after the last call of this method. Only for a
    /// session that makes one attempt at a time.
    pub fn take_phase(&self) -> Phase {
        std::mem::take(&mut lock(&self.notes).phase)
    }

    /// The same requests with the waiter lease.
    fn lasting(&self, batch: &[Acquire]) -> Vec<Acquire> {
        let mut batch = batch.to_vec();
        for request in &mut batch {
            let spec = request.spec.with_waiter_lease(self.waiter_lease);
            request.spec = spec.expect("a good waiter lease");
        }
        batch
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

fn lock(notes: &Mutex<Notes>) -> MutexGuard<'_, Notes> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Notes {
    fn grant(&mut self, sequence: u64, token: FencingToken) {
        self.granted.insert(token, sequence);
        self.advance(sequence, Phase::Granted);
    }

    fn advance(&mut self, sequence: u64, phase: Phase) {
        if self.current == sequence {
            self.phase = self.phase.max(phase);
        }
    }
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
        let (notes, runtime, longest) = (Arc::clone(&self.notes), self.runtime(), self.hold_back);
        Ok(Box::pin(notifications.then(move |notification| {
            if let Notification::Granted {
                sequence, token, ..
            } = notification
            {
                lock(&notes).grant(sequence, token);
            }
            let runtime = Arc::clone(&runtime);
            async move { late(&*runtime, longest, notification).await }
        })))
    }

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        {
            let mut notes = lock(&self.notes);
            for request in batch {
                notes.current = request.operation.sequence;
                notes.advance(request.operation.sequence, Phase::Sent);
            }
        }
        let replies = self.inner.acquire(&self.lasting(batch)).await;
        {
            let mut notes = lock(&self.notes);
            for (position, (request, reply)) in batch.iter().zip(&replies).enumerate() {
                let Ok(reply) = reply else { continue };
                let sequence = request.operation.sequence;
                match reply.reply {
                    AcquireReply::Acquired(acquired) => notes.grant(sequence, acquired.token),
                    AcquireReply::Queued(_) => {}
                    AcquireReply::Contended(_)
                    | AcquireReply::Stale
                    | AcquireReply::TooLate
                    | AcquireReply::Refused(_) => continue,
                }
                let at = reply.stamp.at;
                let ticket = notes.tickets.entry(sequence);
                ticket.or_insert(Ticket { at, position });
            }
        }
        self.late(replies).await
    }

    async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        let replies = self.inner.poll(batch).await;
        {
            let mut notes = lock(&self.notes);
            for (poll, reply) in batch.iter().zip(&replies) {
                if let Ok(PollReply::Acquired(acquired)) = reply.as_ref().map(|it| &it.reply) {
                    notes.grant(poll.operation.sequence, acquired.token);
                }
            }
        }
        self.late(replies).await
    }
}

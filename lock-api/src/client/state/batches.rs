//! Acquires and releases that wait to be sent in one batch.

use std::task::{Context, Poll, Waker};

use crate::backend::LockBackend;
use crate::client::state::answer::Answer;
use crate::error::BackendError;
use crate::reply::{AcquireReply, ReleaseReply};
use crate::request::{Acquire, Release};
use crate::runtime::BoxFuture;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, Weak};
use crate::time::Stamped;

/// The number of calls under way that are sent alone. Two tasks gain nothing from a batch, and the
/// turn of the scheduler that they would wait for it costs them time.
pub(crate) const UNBATCHED_CALLS: u64 = 2;

/// The answers to a batch of `Q`.
type Answers<'a, Q> = BoxFuture<'a, Vec<Result<Stamped<<Q as Batchable>::Reply>, BackendError>>>;
pub(crate) type Response<R> = Result<Answer<R>, BackendError>;

/// A request that can be sent in one call with others of its type.
pub(crate) trait Batchable: Send + Sync + Sized + 'static {
    type Reply: Clone + Send + 'static;

    fn waiting(batcher: &Batcher) -> &Mutex<Vec<PendingRequest<Self>>>;

    fn send<'a>(backend: &'a dyn LockBackend, batch: &'a [Self]) -> Answers<'a, Self>;
}

impl Batchable for Acquire {
    type Reply = AcquireReply;

    fn waiting(batcher: &Batcher) -> &Mutex<Vec<PendingRequest<Self>>> {
        &batcher.acquires
    }

    fn send<'a>(backend: &'a dyn LockBackend, batch: &'a [Self]) -> Answers<'a, Self> {
        backend.acquire_all(batch)
    }
}

impl Batchable for Release {
    type Reply = ReleaseReply;

    fn waiting(batcher: &Batcher) -> &Mutex<Vec<PendingRequest<Self>>> {
        &batcher.ends
    }

    fn send<'a>(backend: &'a dyn LockBackend, batch: &'a [Self]) -> Answers<'a, Self> {
        backend.release(batch)
    }
}

/// The requests of one client that wait to be sent, and the number of its calls under way.
#[derive(Debug)]
pub(crate) struct Batcher {
    /// Whether the backend wants batches.
    wanted: bool,
    /// Calls under way. One that is about to be sent counts as so many that nobody goes by itself,
    /// who would be there before those who came earlier.
    pub(crate) calls_in_flight: AtomicU64,
    acquires: Mutex<Vec<PendingRequest<Acquire>>>,
    ends: Mutex<Vec<PendingRequest<Release>>>,
}

/// A request that waits to be sent, and where its caller sits; nowhere if it has gone.
#[derive(Debug)]
pub(crate) struct PendingRequest<Q: Batchable> {
    pub(crate) request: Q,
    pub(crate) slot: Weak<ResponseSlot<Q::Reply>>,
}

/// Where a caller waits for its answer.
#[derive(Debug)]
pub(crate) struct ResponseSlot<R>(Mutex<(Option<Response<R>>, Option<Waker>)>);

/// A call under way, from before it is sent until it is answered or dropped.
#[derive(Debug)]
pub(crate) struct InFlightCall<'a>(Option<&'a AtomicU64>);

impl Drop for InFlightCall<'_> {
    fn drop(&mut self) {
        if let Some(calls) = self.0 {
            calls.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Batcher {
    pub(crate) fn new(wanted: bool) -> Self {
        Self {
            wanted,
            calls_in_flight: AtomicU64::new(0),
            acquires: Mutex::default(),
            ends: Mutex::default(),
        }
    }

    /// Whether nothing waits or is under way.
    #[cfg(all(test, leasehold_loom))]
    pub(crate) fn is_idle(&self) -> bool {
        let waiting = self.acquires.lock().len() + self.ends.lock().len();
        waiting == 0 && self.calls_in_flight.load(Ordering::Acquire) == 0
    }

    /// For a call that is to be sent by itself; `None` if it had better [`send_batched`].
    pub(crate) fn alone(&self) -> Option<InFlightCall<'_>> {
        if !self.wanted {
            return Some(InFlightCall(None));
        }
        let calls = &self.calls_in_flight;
        let one_more = |before: u64| (before < UNBATCHED_CALLS).then_some(before + 1);
        let begun = calls.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_more);
        begun.ok().map(|_| InFlightCall(Some(calls)))
    }
}

impl<R> ResponseSlot<R> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new((None, None))))
    }

    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<Response<R>> {
        let mut state = self.0.lock();
        if let Some(response) = state.0.take() {
            return Poll::Ready(response);
        }
        // Dropping a waker may drop a task, and with it anything: not under the lock.
        let replaced = state.1.replace(cx.waker().clone());
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    pub(crate) fn take(&self, response: Response<R>) {
        let waker = {
            let mut state = self.0.lock();
            state.0 = Some(response);
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

//! Acquires and releases that wait to be sent in one batch.
//!
//! The [`Batcher`] has one list of pending requests for each type of request, and a count of the
//! calls in flight. A call that finds fewer than [`UNBATCHED_CALLS`] in flight is sent alone. Any
//! other request goes into the list of its type, and its caller waits on a [`ResponseSlot`]. The
//! caller that finds the list empty spawns the flush task ([`crate::client::task::batch`]), which
//! sends the list and fills the slots. The list keeps only a weak reference to a slot, so dropping
//! the caller takes its request back.
//!
//! A flush task that is about to send counts as `UNBATCHED_CALLS` calls. So no later request
//! overtakes the pending ones by going alone.

use std::task::{Context, Poll, Waker};

use crate::backend::LockBackend;
use crate::client::state::answer::Answer;
use crate::error::BackendError;
use crate::reply::{AcquireReply, ReleaseReply};
use crate::request::{Acquire, Release};
use crate::runtime::BoxFuture;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, Weak};
use crate::time::Stamped;

/// How many calls in flight are sent alone. Two tasks gain nothing from a batch, and the turn of
/// the scheduler that a batch waits for would cost them time.
pub(crate) const UNBATCHED_CALLS: u64 = 2;

type Replies<'a, Q> = BoxFuture<'a, Vec<Result<Stamped<<Q as Batchable>::Reply>, BackendError>>>;
pub(crate) type Response<R> = Result<Answer<R>, BackendError>;

/// A request that can be sent in one call with others of its type.
pub(crate) trait Batchable: Send + Sync + Sized + 'static {
    type Reply: Clone + Send + 'static;

    fn pending(batcher: &Batcher) -> &Mutex<Vec<PendingRequest<Self>>>;

    fn send<'a>(backend: &'a dyn LockBackend, batch: &'a [Self]) -> Replies<'a, Self>;
}

impl Batchable for Acquire {
    type Reply = AcquireReply;

    fn pending(batcher: &Batcher) -> &Mutex<Vec<PendingRequest<Self>>> {
        &batcher.acquires
    }

    fn send<'a>(backend: &'a dyn LockBackend, batch: &'a [Self]) -> Replies<'a, Self> {
        backend.acquire(batch)
    }
}

impl Batchable for Release {
    type Reply = ReleaseReply;

    fn pending(batcher: &Batcher) -> &Mutex<Vec<PendingRequest<Self>>> {
        &batcher.releases
    }

    fn send<'a>(backend: &'a dyn LockBackend, batch: &'a [Self]) -> Replies<'a, Self> {
        backend.release(batch)
    }
}

/// The pending requests of one client, and the number of its calls in flight.
#[derive(Debug)]
pub(crate) struct Batcher {
    /// Whether the backend gains from batches. Otherwise every call is sent alone and none is
    /// counted.
    enabled: bool,
    /// Calls in flight. A flush task that has not sent its batch counts as [`UNBATCHED_CALLS`].
    pub(crate) calls_in_flight: AtomicU64,
    acquires: Mutex<Vec<PendingRequest<Acquire>>>,
    releases: Mutex<Vec<PendingRequest<Release>>>,
}

/// A request that waits to be sent, and the slot of its caller. The slot is gone if the caller was
/// dropped.
#[derive(Debug)]
pub(crate) struct PendingRequest<Q: Batchable> {
    pub(crate) request: Q,
    pub(crate) slot: Weak<ResponseSlot<Q::Reply>>,
}

/// Holds the response to one request, and the waker of the caller that waits for it.
#[derive(Debug)]
pub(crate) struct ResponseSlot<R>(Mutex<(Option<Response<R>>, Option<Waker>)>);

/// Counts a call as in flight until it is answered or dropped.
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
    pub(crate) fn new(enabled: bool) -> Self {
        Self {
            enabled,
            calls_in_flight: AtomicU64::new(0),
            acquires: Mutex::default(),
            releases: Mutex::default(),
        }
    }

    /// Whether no request is pending and no call is in flight.
    #[cfg(all(test, leasehold_loom))]
    pub(crate) fn is_idle(&self) -> bool {
        let pending = self.acquires.lock().len() + self.releases.lock().len();
        pending == 0 && self.calls_in_flight.load(Ordering::Acquire) == 0
    }

    /// Counts a call that is sent alone. Returns `None` if enough calls are in flight that the
    /// request goes through [`send_batched`](crate::client::task::batch::send_batched) instead.
    pub(crate) fn begin_unbatched(&self) -> Option<InFlightCall<'_>> {
        if !self.enabled {
            return Some(InFlightCall(None));
        }
        let calls = &self.calls_in_flight;
        let increment = |count: u64| (count < UNBATCHED_CALLS).then_some(count + 1);
        let counted = calls.fetch_update(Ordering::Acquire, Ordering::Relaxed, increment);
        counted.ok().map(|_| InFlightCall(Some(calls)))
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
        // Dropping a waker may drop a task and run any code, so it happens outside the lock.
        let replaced = state.1.replace(cx.waker().clone());
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    pub(crate) fn fill(&self, response: Response<R>) {
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

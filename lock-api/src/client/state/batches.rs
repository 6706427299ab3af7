//! Acquires and releases that wait to be sent in one batch.

use std::task::{Context, Poll, Waker};

use crate::backend::LockBackend;
use crate::client::state::answer::Answer;
use crate::error::BackendError;
use crate::reply::{AcquireReply, EndReply};
use crate::request::{Acquire, End};
use crate::runtime::BoxFuture;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, Weak};
use crate::time::Stamped;

/// The number of calls under way that are sent alone. Two tasks gain nothing from a batch, and the
/// turn of the scheduler that they would wait for it costs them time.
pub(crate) const BY_THEMSELVES: u64 = 2;

/// The answers to a batch of `Q`.
type Answers<'a, Q> = BoxFuture<'a, Vec<Result<Stamped<<Q as Travels>::Reply>, BackendError>>>;
pub(crate) type Arrival<R> = Result<Answer<R>, BackendError>;

/// A request that can be sent in one call with others of its type.
pub(crate) trait Travels: Send + Sync + Sized + 'static {
    type Reply: Clone + Send + 'static;

    fn waiting(convoys: &Convoys) -> &Mutex<Vec<Passenger<Self>>>;

    fn send<'a>(backend: &'a dyn LockBackend, batch: &'a [Self]) -> Answers<'a, Self>;
}

impl Travels for Acquire {
    type Reply = AcquireReply;

    fn waiting(convoys: &Convoys) -> &Mutex<Vec<Passenger<Self>>> {
        &convoys.acquires
    }

    fn send<'a>(backend: &'a dyn LockBackend, batch: &'a [Self]) -> Answers<'a, Self> {
        backend.acquire_all(batch)
    }
}

impl Travels for End {
    type Reply = EndReply;

    fn waiting(convoys: &Convoys) -> &Mutex<Vec<Passenger<Self>>> {
        &convoys.ends
    }

    fn send<'a>(backend: &'a dyn LockBackend, batch: &'a [Self]) -> Answers<'a, Self> {
        backend.end(batch)
    }
}

/// The requests of one client that wait to be sent, and the number of its calls under way.
#[derive(Debug)]
pub(crate) struct Convoys {
    /// Whether the backend wants batches.
    wanted: bool,
    /// Calls under way. One that is about to be sent counts as so many that nobody goes by itself,
    /// who would be there before those who came earlier.
    pub(crate) under_way: AtomicU64,
    acquires: Mutex<Vec<Passenger<Acquire>>>,
    ends: Mutex<Vec<Passenger<End>>>,
}

/// A request that waits to be sent, and where its caller sits; nowhere if it has gone.
#[derive(Debug)]
pub(crate) struct Passenger<Q: Travels> {
    pub(crate) request: Q,
    pub(crate) seat: Weak<Seat<Q::Reply>>,
}

/// Where a caller waits for its answer.
#[derive(Debug)]
pub(crate) struct Seat<R>(Mutex<(Option<Arrival<R>>, Option<Waker>)>);

/// A call under way, from before it is sent until it is answered or dropped.
#[derive(Debug)]
pub(crate) struct UnderWay<'a>(Option<&'a AtomicU64>);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(calls) = self.0 {
            calls.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Convoys {
    pub(crate) fn new(wanted: bool) -> Self {
        Self {
            wanted,
            under_way: AtomicU64::new(0),
            acquires: Mutex::default(),
            ends: Mutex::default(),
        }
    }

    /// Whether nothing waits or is under way.
    #[cfg(all(test, leasehold_loom))]
    pub(crate) fn is_idle(&self) -> bool {
        let waiting = self.acquires.lock().len() + self.ends.lock().len();
        waiting == 0 && self.under_way.load(Ordering::Acquire) == 0
    }

    /// For a call that is to be sent by itself; `None` if it had better [`travel`].
    pub(crate) fn alone(&self) -> Option<UnderWay<'_>> {
        if !self.wanted {
            return Some(UnderWay(None));
        }
        let calls = &self.under_way;
        let one_more = |before: u64| (before < BY_THEMSELVES).then_some(before + 1);
        let begun = calls.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_more);
        begun.ok().map(|_| UnderWay(Some(calls)))
    }
}

impl<R> Seat<R> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new((None, None))))
    }

    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<Arrival<R>> {
        let mut state = self.0.lock();
        if let Some(arrival) = state.0.take() {
            return Poll::Ready(arrival);
        }
        // Dropping a waker may drop a task, and with it anything: not under the lock.
        let replaced = state.1.replace(cx.waker().clone());
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    pub(crate) fn take(&self, arrival: Arrival<R>) {
        let waker = {
            let mut state = self.0.lock();
            state.0 = Some(arrival);
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

//! Waits for a future on the thread of the caller.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::client::error::Error;
use crate::error::InvalidInput;
use crate::tokio_runtime::TokioRuntime;

/// Runs a future of the async API to its end, and blocks the thread meanwhile.
///
/// The future runs on this thread, in the tokio context of the renewal thread. Calls may be nested.
///
/// # Errors
/// - [`InvalidInput`] in an async task or in the future of a `block_on` of tokio. The future is not polled. Not
///   recognized is a task within `tokio::task::unconstrained`, or between a `block_in_place` and its next await.
/// - [`InvalidInput`] if the renewal thread can't be started.
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{blocking, Error};
/// # fn example(locks: blocking::LockClient) -> Result<(), Error> {
/// let guard = blocking::block_on(locks.as_async().lock_all(["account:3", "account:7"]))??;
/// blocking::block_on(guard.release())??;
/// # Ok(())
/// # }
/// ```
pub fn block_on<F: Future>(future: F) -> Result<F::Output, InvalidInput> {
    if is_async_context() {
        let text =
            "a blocking call in an async task: make it in `spawn_blocking`, or use the async API";
        return Err(InvalidInput::new(text));
    }
    let Some(renewal_thread) = TokioRuntime::renewal_thread() else {
        let reason = "the renewal thread can't be started";
        return Err(InvalidInput::setting("the blocking API", reason));
    };
    let woken = Arc::new(Woken {
        thread: thread::current(),
        is_set: AtomicBool::new(false),
    });
    let waker = Waker::from(Arc::clone(&woken));
    // Entered first, so that the future is dropped in the context too.
    let _inside = renewal_thread.enter();
    let (mut cx, mut future) = (Context::from_waker(&waker), pin!(future));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Ok(output);
        }
        woken.wait();
    }
}

/// The calls of handles and guards.
pub(super) fn wait<T>(future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    block_on(future)?
}

/// Whether the thread polls a task, so that it must not be blocked.
///
/// Tokio has no call that says so. It limits what a task does per poll by a budget of at most 255 units, and has no
/// such limit elsewhere: not in `spawn_blocking`, nor in `block_in_place`.
fn is_async_context() -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    let mut is_spent = || {
        pin!(tokio::task::consume_budget())
            .poll(&mut cx)
            .is_pending()
    };
    (0..=u8::MAX).any(|_| is_spent())
}

/// Whether a future was woken since it was last polled. The token of `park` alone doesn't tell: a nested `block_on` takes it.
struct Woken {
    thread: Thread,
    is_set: AtomicBool,
}

impl Woken {
    fn wait(&self) {
        while !self.is_set.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_set.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

//! A version counter that tasks wait on. Every wait of the client uses it.
//!
//! A task reads the version, checks the state that it waits for, and then waits until the version
//! differs from the one that it read. [`wait_for`](Signal::wait_for) does this in a loop. `notify` increments the version and wakes all waiting tasks.
//! If it runs between the check and the wait, the wait returns at once, so no wake-up is lost.
//!
//! Each [`Changed`] future has at most one waker in the slab. It replaces the waker when it is polled
//! by another task, and removes it when it is dropped. Thousands of waiters may wait on one signal, so
//! both take constant time.
//!
//! [`Watched`] is a value with such a signal.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use slab::Slab;

use crate::sync::{AtomicBool, Mutex, Ordering};

/// Lets the first caller spawn a task.
#[derive(Debug, Default)]
pub(crate) struct StartFlag(AtomicBool);

impl StartFlag {
    pub(crate) fn is_first(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Signal(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    version: u64,
    waiters: Slab<Waker>,
}

/// The place of a waker. Each new version empties the slab.
#[derive(Clone, Copy, Debug)]
struct Place {
    version: u64,
    index: usize,
}

impl State {
    /// Returns the waker at a place, unless it was woken.
    fn waker(&mut self, place: Option<Place>) -> Option<&mut Waker> {
        let place = place.filter(|place| place.version == self.version)?;
        self.waiters.get_mut(place.index)
    }
}

impl Signal {
    pub(crate) fn version(&self) -> u64 {
        self.0.lock().version
    }

    pub(crate) fn notify(&self) {
        let woken = {
            let mut state = self.0.lock();
            state.version += 1;
            std::mem::take(&mut state.waiters)
        };
        for (_, waker) in woken {
            waker.wake();
        }
    }

    /// Waits until `ready` returns a value. It is asked at once, and after each change. Cancel safe.
    pub(crate) async fn wait_for<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        loop {
            let version = self.version();
            if let Some(value) = ready() {
                return value;
            }
            self.changed(version).await;
        }
    }

    pub(crate) const fn changed(&self, seen: u64) -> Changed<'_> {
        Changed {
            signal: self,
            seen,
            registered: None,
        }
    }
}

/// A value, and a signal when it changes. Closures run under its lock, so they must not panic or drop a waker.
#[derive(Debug, Default)]
pub(crate) struct Watched<T> {
    value: Mutex<T>,
    changed: Signal,
}

impl<T> Watched<T> {
    pub(crate) fn update(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.value.lock());
        self.changed.notify();
    }

    /// Waits until `ready` returns something. It is asked at once, and after each change. Cancel safe.
    pub(crate) async fn wait_for<U>(&self, mut ready: impl FnMut(&mut T) -> Option<U>) -> U {
        let ready = || ready(&mut self.value.lock());
        self.changed.wait_for(ready).await
    }
}

impl<T: Clone> Watched<T> {
    pub(crate) fn get(&self) -> T {
        self.value.lock().clone()
    }
}

#[derive(Debug)]
pub(crate) struct Changed<'a> {
    signal: &'a Signal,
    seen: u64,
    registered: Option<Place>,
}

impl Future for Changed<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let signal = self.signal;
        let mut state = signal.0.lock();
        if state.version != self.seen {
            return Poll::Ready(());
        }
        let waker = cx.waker();
        let replaced = match state.waker(self.registered) {
            Some(registered) if registered.will_wake(waker) => return Poll::Pending,
            Some(registered) => Some(std::mem::replace(registered, waker.clone())),
            None => {
                self.registered = Some(Place {
                    version: state.version,
                    index: state.waiters.insert(waker.clone()),
                });
                None
            }
        };
        // Dropping a waker may drop a task and run any code, so it happens outside the lock.
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        let Some(place) = self.registered else { return };
        let mut state = self.signal.0.lock();
        let is_current = place.version == state.version;
        let removed = is_current.then(|| state.waiters.try_remove(place.index));
        drop(state);
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use futures_util::FutureExt;

    use super::*;

    #[derive(Default)]
    struct WakeCount(AtomicUsize);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn change_before_the_wait_is_not_lost() {
        let signal = Signal::default();
        let seen = signal.version();
        signal.notify();
        assert_eq!(signal.changed(seen).now_or_never(), Some(()));
        assert_eq!(signal.changed(signal.version()).now_or_never(), None);
    }

    #[test]
    fn notify_wakes_each_waiting_task_once() {
        let (signal, count) = (Signal::default(), Arc::new(WakeCount::default()));
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        let (mut one, mut two) = (signal.changed(0), signal.changed(0));
        assert!(one.poll_unpin(&mut cx).is_pending());
        assert!(one.poll_unpin(&mut cx).is_pending());
        assert!(two.poll_unpin(&mut cx).is_pending());
        drop(signal.changed(0));
        let mut cancelled = signal.changed(0);
        assert!(cancelled.poll_unpin(&mut cx).is_pending());
        drop(cancelled);
        signal.notify();
        assert_eq!(count.0.load(Ordering::SeqCst), 2);
        assert!(one.poll_unpin(&mut cx).is_ready());
        assert!(two.poll_unpin(&mut cx).is_ready());
    }
}

//! A version counter that tasks wait on. Every wait of the client uses it.
//!
//! A task reads the version, checks the state that it waits for, and then waits until the version
//! differs from the one that it read. `notify` increments the version and wakes all waiting tasks.
//! If it runs between the check and the wait, the wait returns at once, so no wake-up is lost.
//!
//! Each [`Changed`] future has at most one waker in the list, under an id. It replaces the waker
//! when it is polled by another task, and removes it when it is dropped.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::mutants::mutant;
use crate::sync::Mutex;

#[derive(Debug, Default)]
pub(crate) struct Signal(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    version: u64,
    next_waiter: u64,
    waiters: Vec<(u64, Waker)>,
}

impl State {
    fn position(&self, id: Option<u64>) -> Option<usize> {
        self.waiters
            .iter()
            .position(|(other, _)| Some(*other) == id)
    }

    fn add(&mut self, waker: Waker) -> u64 {
        let id = self.next_waiter;
        self.next_waiter += 1;
        self.waiters.push((id, waker));
        id
    }
}

impl Signal {
    pub(crate) fn version(&self) -> u64 {
        self.0.lock().version
    }

    /// Increments the version and wakes all waiting tasks.
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

    /// Waits until the version differs from `seen`.
    pub(crate) const fn changed(&self, seen: u64) -> Changed<'_> {
        Changed {
            signal: self,
            seen,
            registered: None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Changed<'a> {
    signal: &'a Signal,
    seen: u64,
    registered: Option<u64>,
}

impl Future for Changed<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.signal.0.lock();
        let registered = self.registered.is_some() || !mutant!(ListenerChecksFirst);
        if state.version != self.seen && registered {
            return Poll::Ready(());
        }
        let own = state.position(self.registered);
        let waker = cx.waker();
        let (id, replaced) = match own.map(|index| &mut state.waiters[index]) {
            Some((_, registered)) if registered.will_wake(waker) => return Poll::Pending,
            Some((id, registered)) => (*id, Some(std::mem::replace(registered, waker.clone()))),
            None => (state.add(waker.clone()), None),
        };
        // Dropping a waker may drop a task and run any code, so it happens outside the lock.
        drop(state);
        drop(replaced);
        self.registered = Some(id);
        Poll::Pending
    }
}

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        if self.registered.is_some() {
            let mut state = self.signal.0.lock();
            let own = state.position(self.registered);
            let removed = own.map(|index| state.waiters.swap_remove(index));
            drop(state);
            drop(removed);
        }
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

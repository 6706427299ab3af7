//! A counter that tasks wait on: the one primitive under every wait of the client.
//!
//! A waiter reads the version, looks at the state that it cares about, and then waits for a
//! version other than the one it read. A change in between makes the wait return at once, so no
//! wake-up is lost.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::sync::Mutex;

#[derive(Debug, Default)]
pub(crate) struct Signal(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    version: u64,
    next_waiter: u64,
    waiters: Vec<(u64, Waker)>,
}

impl Signal {
    pub(crate) fn version(&self) -> u64 {
        self.0.lock().version
    }

    /// Wakes everyone who waits.
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

    /// Ends once the version is another than `seen`.
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
        if state.version != self.seen {
            return Poll::Ready(());
        }
        let registered = self.registered;
        let own = state
            .waiters
            .iter_mut()
            .find(|(id, _)| Some(*id) == registered);
        let id = match own {
            Some((id, waker)) => {
                waker.clone_from(cx.waker());
                *id
            }
            None => {
                let id = state.next_waiter;
                state.next_waiter += 1;
                state.waiters.push((id, cx.waker().clone()));
                id
            }
        };
        drop(state);
        self.registered = Some(id);
        Poll::Pending
    }
}

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        if let Some(registered) = self.registered {
            let mut state = self.signal.0.lock();
            state.waiters.retain(|(id, _)| *id != registered);
        }
    }
}

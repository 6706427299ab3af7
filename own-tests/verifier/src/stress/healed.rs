//! A flag that is set when the faulty phase of a run ends.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Set once, when everything has been healed.
#[derive(Debug, Default)]
pub(crate) struct Healed(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is: bool,
    waiting: Vec<Waker>,
}

impl Healed {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is(&self) -> bool {
        self.lock().is
    }

    /// Sets the flag, and wakes the tasks that wait for it.
    pub(crate) fn set(&self) {
        let waiting = {
            let mut state = self.lock();
            state.is = true;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Waits until the flag is set.
    pub(crate) async fn wait(&self) {
        poll_fn(|cx| {
            let mut state = self.lock();
            if state.is {
                return Poll::Ready(());
            }
            state.waiting.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

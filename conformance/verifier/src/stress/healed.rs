//! The moment from which nothing goes wrong any more, and who waits for it.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Set once, when all has been put right.
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

    /// All is well from now on.
    pub(crate) fn set(&self) {
        let waiting = {
            let mut state = self.lock();
            state.is = true;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Waits until it is.
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

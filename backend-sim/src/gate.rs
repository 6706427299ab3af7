//! Stopping and resuming the code of one client.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A gate that futures go through: while it is shut, none of them is polled.
///
/// This is what a stopped process is: its timers run out, messages reach its sockets, but none of
/// its code runs, until it is continued and finds all of that at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    shut: bool,
    next: u64,
    /// In the order in which they came: they are woken in that order.
    waiting: BTreeMap<u64, Waker>,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn shut(&self) {
        self.lock().shut = true;
    }

    pub(crate) fn open(&self) {
        let waiting = {
            let mut state = self.lock();
            state.shut = false;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_values().for_each(Waker::wake);
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.lock().shut
    }

    /// A turnstile in this gate, for one future or stream.
    pub(crate) fn turnstile(&self) -> Turnstile {
        Turnstile {
            gate: self.clone(),
            ticket: None,
        }
    }

    /// Runs a future that is polled only while the gate is open.
    pub(crate) async fn through<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut turnstile = self.turnstile();
        poll_fn(|cx| match turnstile.poll_open(cx) {
            Poll::Ready(()) => future.as_mut().poll(cx),
            Poll::Pending => Poll::Pending,
        })
        .await
    }
}

/// Lets one future or stream through, or keeps its waker until the gate opens.
#[derive(Debug)]
pub(crate) struct Turnstile {
    gate: Gate,
    ticket: Option<u64>,
}

impl Turnstile {
    pub(crate) fn poll_open(&mut self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.gate.lock();
        if !state.shut {
            return Poll::Ready(());
        }
        let ticket = *self.ticket.get_or_insert_with(|| {
            state.next += 1;
            state.next
        });
        state.waiting.insert(ticket, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Turnstile {
    fn drop(&mut self) {
        // The waker may own the task that is being dropped: it is let go outside of the lock.
        let waker = self
            .ticket
            .and_then(|ticket| self.gate.lock().waiting.remove(&ticket));
        drop(waker);
    }
}

//! Pausing and resuming the code of one client.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A gate for futures. While it is shut, none of them is polled.
///
/// This models a stopped process: its timers expire and messages reach its sockets, but none of its
/// code runs until it continues.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Changes only while `waiting` is locked.
    shut: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    /// By ticket, which is the order in which they are woken.
    wakers: BTreeMap<u64, Waker>,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        let waiting = &self.0.waiting;
        waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn shut(&self) {
        let _waiting = self.lock();
        self.0.shut.store(true, Ordering::Release);
    }

    pub(crate) fn open(&self) {
        let wakers = {
            let mut waiting = self.lock();
            self.0.shut.store(false, Ordering::Release);
            std::mem::take(&mut waiting.wakers)
        };
        wakers.into_values().for_each(Waker::wake);
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.0.shut.load(Ordering::Acquire)
    }

    /// Returns a future that polls another one only while the gate is open. It may be polled again
    /// after its end if the other one may.
    pub(crate) fn through<F: Future + Unpin>(
        self,
        mut future: F,
    ) -> impl Future<Output = F::Output> {
        let mut turnstile = Turnstile::new(self);
        poll_fn(move |cx| match turnstile.poll_open(cx) {
            Poll::Ready(()) => Pin::new(&mut future).poll(cx),
            Poll::Pending => Poll::Pending,
        })
    }
}

/// Lets one future or stream pass, or keeps its waker until the gate opens.
#[derive(Debug)]
pub(crate) struct Turnstile {
    gate: Gate,
    ticket: Option<u64>,
}

impl Turnstile {
    pub(crate) const fn new(gate: Gate) -> Self {
        Self { gate, ticket: None }
    }

    #[inline]
    pub(crate) fn poll_open(&mut self, cx: &Context<'_>) -> Poll<()> {
        match self.gate.is_shut() {
            true => self.wait(cx),
            false => Poll::Ready(()),
        }
    }

    fn wait(&mut self, cx: &Context<'_>) -> Poll<()> {
        let gate = &self.gate;
        let mut waiting = gate.lock();
        // It may have been opened since.
        if !gate.is_shut() {
            return Poll::Ready(());
        }
        let ticket = *self.ticket.get_or_insert_with(|| {
            waiting.next += 1;
            waiting.next
        });
        let before = waiting.wakers.insert(ticket, cx.waker().clone());
        drop(waiting);
        // Dropping the waker may drop a task that waits at this gate too, so it must happen outside
        // the lock.
        drop(before);
        Poll::Pending
    }
}

impl Drop for Turnstile {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            // Dropping the waker may drop its task, so it must happen outside the lock.
            let waker = self.gate.lock().wakers.remove(&ticket);
            drop(waker);
        }
    }
}

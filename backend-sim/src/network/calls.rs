//! Calls in flight, and their outcomes.

use std::task::{Poll, Waker};

use leasehold_api::BackendError;
use leasehold_api::bounds::CALL_TIMEOUT;

use crate::engine::event_queue::EventId;
use crate::engine::ready::{Wakers, Wakeup};
use crate::network::event::{CallId, ClientIndex, Response};

/// The result of a call.
pub(crate) type CallResult = Result<Response, BackendError>;

#[derive(Debug)]
struct Pending {
    number: u64,
    client: ClientIndex,
    /// The timer that ends the call.
    timeout: Option<EventId>,
    outcome: Option<CallResult>,
    timed_out: bool,
    waiter: Option<Wakeup>,
}

/// The calls of all clients.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pending: Vec<Option<Pending>>,
    free: Vec<u32>,
}

impl Calls {
    pub(crate) fn begin(&mut self, client: ClientIndex, number: u64, waiter: Wakeup) -> CallId {
        let pending = Some(Pending {
            number,
            client,
            timeout: None,
            outcome: None,
            timed_out: false,
            waiter: Some(waiter),
        });
        let index = if let Some(index) = self.free.pop() {
            self.pending[index as usize] = pending;
            index
        } else {
            self.pending.push(pending);
            u32::try_from(self.pending.len() - 1).expect("fewer than 2^32 calls at a time")
        };
        CallId { index, number }
    }

    fn get(&mut self, id: CallId) -> Option<&mut Pending> {
        let pending = self.pending.get_mut(id.index as usize)?.as_mut();
        pending.filter(|pending| pending.number == id.number)
    }

    pub(crate) fn limit(&mut self, id: CallId, timeout: EventId) {
        if let Some(pending) = self.get(id) {
            pending.timeout = Some(timeout);
        }
    }

    /// Returns the outcome of a call, or registers `waker`. Also returns the previous waker, which
    /// the caller must drop outside the lock.
    pub(crate) fn poll(
        &mut self,
        id: CallId,
        waker: &Waker,
        wakers: &Wakers,
    ) -> (Poll<CallResult>, Option<Wakeup>) {
        let Some(pending) = self.get(id) else {
            return (Poll::Pending, None);
        };
        if let Some(outcome) = pending.outcome.take() {
            return (Poll::Ready(outcome), None);
        }
        if pending.timed_out {
            let reason = format!("no reply within {CALL_TIMEOUT:?}");
            return (
                Poll::Ready(Err(BackendError::outcome_unknown(reason))),
                None,
            );
        }
        (Poll::Pending, wakers.replace(&mut pending.waiter, waker))
    }

    /// Sets the outcome of a call. Returns `false` if the call was dropped or has an outcome.
    pub(crate) fn finish(&mut self, id: CallId, outcome: CallResult) -> (bool, Option<Wakeup>) {
        match self.get(id) {
            Some(pending) if pending.outcome.is_none() => {
                pending.outcome = Some(outcome);
                (true, pending.waiter.take())
            }
            _ => (false, None),
        }
    }

    /// Marks a call as timed out. A reply that arrives before the caller polls still counts.
    pub(crate) fn time_out(&mut self, id: CallId) -> Option<Wakeup> {
        let pending = self.get(id)?;
        pending.timed_out = true;
        pending.timeout = None;
        pending.waiter.take()
    }

    /// Removes a call. Returns its timer, which the caller must cancel, and its waker, which the
    /// caller must drop outside the lock.
    pub(crate) fn forget(&mut self, id: CallId) -> (Option<EventId>, Option<Wakeup>) {
        if self.get(id).is_none() {
            return (None, None);
        }
        self.free.push(id.index);
        let pending = self.pending[id.index as usize].take();
        pending.map_or((None, None), |pending| (pending.timeout, pending.waiter))
    }

    /// Returns the calls of a client that have no outcome yet.
    pub(crate) fn waiting(&self, client: ClientIndex) -> Vec<CallId> {
        let pending = self.pending.iter().enumerate();
        pending
            .filter_map(|(index, pending)| {
                let pending = pending.as_ref()?;
                let waits = pending.client == client && pending.outcome.is_none();
                waits.then_some(CallId {
                    index: index as u32,
                    number: pending.number,
                })
            })
            .collect()
    }
}

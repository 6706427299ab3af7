//! Calls in flight, and their outcomes.

use std::task::{Poll, Waker};

use leasehold_api::BackendError;
use leasehold_api::bounds::CALL_TIMEOUT;
use slab::Slab;

use crate::engine::event_queue::EventId;
use crate::engine::ready::{Wakers, Wakeup};
use crate::network::event::{CallId, ClientIndex, Response};

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

#[derive(Debug, Default)]
pub(crate) struct Calls(Slab<Pending>);

impl Calls {
    pub(crate) fn begin(&mut self, client: ClientIndex, number: u64, waiter: Wakeup) -> CallId {
        let index = self.0.insert(Pending {
            number,
            client,
            timeout: None,
            outcome: None,
            timed_out: false,
            waiter: Some(waiter),
        });
        CallId { index, number }
    }

    fn get(&mut self, id: CallId) -> Option<&mut Pending> {
        let pending = self.0.get_mut(id.index);
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
            let error = BackendError::outcome_unknown(format!("no reply within {CALL_TIMEOUT:?}"));
            return (Poll::Ready(Err(error)), None);
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
        let pending = self.0.remove(id.index);
        (pending.timeout, pending.waiter)
    }

    /// Returns the calls of a client that have no outcome yet.
    pub(crate) fn waiting(&self, client: ClientIndex) -> Vec<CallId> {
        let all = self.0.iter();
        let waiting = all.filter(|(_, call)| call.client == client && call.outcome.is_none());
        let ids = waiting.map(|(index, call)| (index, call.number));
        ids.map(|(index, number)| CallId { index, number })
            .collect()
    }
}

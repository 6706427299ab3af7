//! Calls in flight, and their outcomes.

use std::task::{Poll, Waker};

use leasehold_api::BackendError;
use leasehold_api::bounds::CALL_TIMEOUT;

use crate::engine::event_queue::EventId;
use crate::engine::ready::{Wakers, Wakeup};
use crate::network::event::{CallId, ClientIndex, Response};

/// The result of a call, on its way to the future that waits for it.
pub(crate) type Outcome = Result<Response, BackendError>;

#[derive(Debug)]
struct Pending {
    number: u64,
    client: ClientIndex,
    /// Runs out when the call does.
    timeout: Option<EventId>,
    outcome: Option<Outcome>,
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

    /// The outcome, if there is one; otherwise it is this waker that is woken when there is.
    /// Returns too whom it was before, to be dropped where it does no harm.
    pub(crate) fn poll(
        &mut self,
        id: CallId,
        waker: &Waker,
        wakers: &Wakers,
    ) -> (Poll<Outcome>, Option<Wakeup>) {
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

    /// Gives a call its outcome; false if nobody waits for it any more.
    pub(crate) fn finish(&mut self, id: CallId, outcome: Outcome) -> (bool, Option<Wakeup>) {
        match self.get(id) {
            Some(pending) if pending.outcome.is_none() => {
                pending.outcome = Some(outcome);
                (true, pending.waiter.take())
            }
            _ => (false, None),
        }
    }

    /// Its time has run out; a reply that is there when the caller looks is still taken.
    pub(crate) fn time_out(&mut self, id: CallId) -> Option<Wakeup> {
        let pending = self.get(id)?;
        pending.timed_out = true;
        pending.timeout = None;
        pending.waiter.take()
    }

    /// Whoever waited does not any more; the timer and the waiter are the caller's to let go.
    pub(crate) fn forget(&mut self, id: CallId) -> (Option<EventId>, Option<Wakeup>) {
        if self.get(id).is_none() {
            return (None, None);
        }
        self.free.push(id.index);
        let pending = self.pending[id.index as usize].take();
        pending.map_or((None, None), |pending| (pending.timeout, pending.waiter))
    }

    /// The calls of a client that have no outcome yet.
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

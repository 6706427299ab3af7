//! Batches: acquires and releases that are ready at the same time go in one call.
//!
//! A call is sent alone while fewer than two calls of its client are under way. Otherwise its
//! request joins a list. The caller that finds the list empty spawns the flush task, which lets
//! every task that is ready now add its request, and then sends the whole list. No request waits
//! for the answer to another call.
//!
//! Each request keeps its operation, deliver-before, time limit and answer. A caller that is
//! dropped before the flush takes its request back. After the flush its answer goes nowhere, and
//! the others are not affected.

use std::future::poll_fn;
use std::marker::PhantomData;
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::bounds::MAX_CONVOY;
use crate::client::core::Core;
use crate::client::state::batches::{Arrival, BY_THEMSELVES, Passenger, Seat, Travels};
use crate::error::BackendError;
use crate::mutants::mutant;
use crate::sync::{Arc, Ordering};

const SHUTTING_DOWN: &str = "the runtime is shutting down";

/// Sends a request with what else is ready, and waits for its own answer for at most `limit`.
pub(crate) async fn travel<Q: Travels>(
    core: &Arc<Core>,
    limit: Duration,
    request: Q,
) -> Arrival<Q::Reply> {
    let seat = Seat::new();
    let passenger = Passenger {
        request,
        seat: Arc::downgrade(&seat),
    };
    let departure = {
        let mut waiting = Q::waiting(&core.convoys).lock();
        waiting.push(passenger);
        if mutant!(ConvoyThatNobodySends) {
            drop(waiting);
            waiting = Q::waiting(&core.convoys).lock();
        }
        (waiting.len() == 1).then(|| Departure::<Q>::announce(core))
    };
    if let Some(departure) = departure {
        core.runtime.spawn(Box::pin(departure.depart()));
    }
    core.bounded(limit, poll_fn(|cx| seat.poll(cx))).await
}

/// The task that sends what waits. If it is dropped before that, it says so.
struct Departure<Q: Travels> {
    core: Arc<Core>,
    gone: bool,
    sort: PhantomData<fn(Q)>,
}

impl<Q: Travels> Departure<Q> {
    fn announce(core: &Arc<Core>) -> Self {
        let under_way = &core.convoys.under_way;
        under_way.fetch_add(BY_THEMSELVES, Ordering::Acquire);
        Self {
            core: Arc::clone(core),
            gone: false,
            sort: PhantomData,
        }
    }

    async fn depart(mut self) {
        let core = Arc::clone(&self.core);
        next_turn().await;
        let mut waiting = self.take();
        self.gone = true;
        let under_way = &core.convoys.under_way;
        under_way.fetch_sub(BY_THEMSELVES - 1, Ordering::Release);
        let mut calls = FuturesUnordered::new();
        while !waiting.is_empty() {
            let rest = waiting.split_off(waiting.len().min(MAX_CONVOY));
            calls.push(sail(&core, std::mem::replace(&mut waiting, rest)));
        }
        while calls.next().await.is_some() {}
    }

    fn take(&self) -> Vec<Passenger<Q>> {
        std::mem::take(&mut *Q::waiting(&self.core.convoys).lock())
    }
}

impl<Q: Travels> Drop for Departure<Q> {
    fn drop(&mut self) {
        let counted = if self.gone { 1 } else { BY_THEMSELVES };
        let stranded = if self.gone { Vec::new() } else { self.take() };
        for passenger in stranded {
            if let Some(seat) = passenger.seat.upgrade() {
                seat.take(Err(BackendError::unavailable(SHUTTING_DOWN)));
            }
        }
        self.core
            .convoys
            .under_way
            .fetch_sub(counted, Ordering::Release);
    }
}

/// Ends when everyone who was ready to run has run.
async fn next_turn() {
    let mut waited = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        // Behind all that is ready by now.
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Sends what has a caller yet in one call, and gives each its answer.
async fn sail<Q: Travels>(core: &Core, passengers: Vec<Passenger<Q>>) {
    let with_callers = passengers
        .into_iter()
        .filter_map(|passenger| Some((passenger.request, passenger.seat.upgrade()?)));
    let (requests, seats): (Vec<Q>, Vec<_>) = with_callers.unzip();
    if requests.is_empty() {
        return;
    }
    let mut aboard = Aboard(seats);
    let call = Q::send(&*core.backend, &requests);
    let limit = core.settings.call_timeout;
    let answers = core.exchange_batch(limit, requests.len(), call).await;
    for (seat, answer) in aboard.0.drain(..).zip(spoiled(answers)) {
        seat.take(answer);
    }
}

/// What planted faults make of the answers.
fn spoiled<R: Clone>(mut answers: Vec<Arrival<R>>) -> Vec<Arrival<R>> {
    if mutant!(ConvoyMixesAnswers) {
        answers.reverse();
    }
    let failed = answers.iter().find_map(|answer| answer.as_ref().err());
    if let Some(error) = failed.cloned().filter(|_| mutant!(ConvoySharesFailure)) {
        answers.fill(Err(error));
    }
    answers
}

/// Those whose requests were sent. If the answer can no longer come, they are told.
struct Aboard<R>(Vec<Arc<Seat<R>>>);

impl<R> Drop for Aboard<R> {
    fn drop(&mut self) {
        for seat in self.0.drain(..) {
            seat.take(Err(BackendError::outcome_unknown(SHUTTING_DOWN)));
        }
    }
}

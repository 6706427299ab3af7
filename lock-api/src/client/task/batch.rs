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

use crate::bounds::MAX_BATCHED_CALLERS;
use crate::client::core::Core;
use crate::client::state::batches::{
    Batchable, PendingRequest, Response, ResponseSlot, UNBATCHED_CALLS,
};
use crate::error::BackendError;
use crate::mutants::mutant;
use crate::sync::{Arc, Ordering};

const SHUTTING_DOWN: &str = "the runtime is shutting down";

/// Sends a request with what else is ready, and waits for its own answer for at most `limit`.
pub(crate) async fn send_batched<Q: Batchable>(
    core: &Arc<Core>,
    limit: Duration,
    request: Q,
) -> Response<Q::Reply> {
    let slot = ResponseSlot::new();
    let pending = PendingRequest {
        request,
        slot: Arc::downgrade(&slot),
    };
    let flush_task = {
        let mut waiting = Q::waiting(&core.batcher).lock();
        waiting.push(pending);
        if mutant!(BatchThatNobodySends) {
            drop(waiting);
            waiting = Q::waiting(&core.batcher).lock();
        }
        (waiting.len() == 1).then(|| FlushTask::<Q>::begin(core))
    };
    if let Some(flush_task) = flush_task {
        core.runtime.spawn(Box::pin(flush_task.run()));
    }
    core.bounded(limit, poll_fn(|cx| slot.poll(cx))).await
}

/// The task that sends what waits. If it is dropped before that, it says so.
struct FlushTask<Q: Batchable> {
    core: Arc<Core>,
    gone: bool,
    sort: PhantomData<fn(Q)>,
}

impl<Q: Batchable> FlushTask<Q> {
    fn begin(core: &Arc<Core>) -> Self {
        let calls_in_flight = &core.batcher.calls_in_flight;
        calls_in_flight.fetch_add(UNBATCHED_CALLS, Ordering::Acquire);
        Self {
            core: Arc::clone(core),
            gone: false,
            sort: PhantomData,
        }
    }

    async fn run(mut self) {
        let core = Arc::clone(&self.core);
        next_turn().await;
        let mut waiting = self.take();
        self.gone = true;
        let calls_in_flight = &core.batcher.calls_in_flight;
        calls_in_flight.fetch_sub(UNBATCHED_CALLS - 1, Ordering::Release);
        let mut calls = FuturesUnordered::new();
        while !waiting.is_empty() {
            let rest = waiting.split_off(waiting.len().min(MAX_BATCHED_CALLERS));
            calls.push(flush(&core, std::mem::replace(&mut waiting, rest)));
        }
        while calls.next().await.is_some() {}
    }

    fn take(&self) -> Vec<PendingRequest<Q>> {
        std::mem::take(&mut *Q::waiting(&self.core.batcher).lock())
    }
}

impl<Q: Batchable> Drop for FlushTask<Q> {
    fn drop(&mut self) {
        let counted = if self.gone { 1 } else { UNBATCHED_CALLS };
        let stranded = if self.gone { Vec::new() } else { self.take() };
        for pending in stranded {
            if let Some(slot) = pending.slot.upgrade() {
                slot.take(Err(BackendError::unavailable(SHUTTING_DOWN)));
            }
        }
        self.core
            .batcher
            .calls_in_flight
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
async fn flush<Q: Batchable>(core: &Core, requests: Vec<PendingRequest<Q>>) {
    let with_callers = requests
        .into_iter()
        .filter_map(|pending| Some((pending.request, pending.slot.upgrade()?)));
    let (requests, slots): (Vec<Q>, Vec<_>) = with_callers.unzip();
    if requests.is_empty() {
        return;
    }
    let mut in_flight = InFlight(slots);
    let call = Q::send(&*core.backend, &requests);
    let limit = core.settings.call_timeout;
    let answers = core.exchange_batch(limit, requests.len(), call).await;
    for (slot, answer) in in_flight.0.drain(..).zip(spoiled(answers)) {
        slot.take(answer);
    }
}

/// What planted faults make of the answers.
fn spoiled<R: Clone>(mut answers: Vec<Response<R>>) -> Vec<Response<R>> {
    if mutant!(BatchMixesAnswers) {
        answers.reverse();
    }
    let failed = answers.iter().find_map(|answer| answer.as_ref().err());
    if let Some(error) = failed.cloned().filter(|_| mutant!(BatchSharesFailure)) {
        answers.fill(Err(error));
    }
    answers
}

/// Those whose requests were sent. If the answer can no longer come, they are told.
struct InFlight<R>(Vec<Arc<ResponseSlot<R>>>);

impl<R> Drop for InFlight<R> {
    fn drop(&mut self) {
        for slot in self.0.drain(..) {
            slot.take(Err(BackendError::outcome_unknown(SHUTTING_DOWN)));
        }
    }
}

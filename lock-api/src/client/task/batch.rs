//! Sends acquires and releases that are ready at the same time in one call.
//!
//! A call is sent alone while fewer than two calls of its client are in flight. Otherwise its
//! request joins a list. The caller that finds the list empty spawns the flush task. The flush task
//! yields once, so that every task that is ready can add its request, and then sends the whole
//! list. No request waits for the answer to another call.
//!
//! Each request keeps its operation, deliver-before, time limit and answer. If a caller is dropped
//! before the flush, its request is not sent. If it is dropped later, its answer is discarded. The
//! other requests are not affected. If the runtime drops the flush task, pending requests fail as
//! unavailable, requests in flight have an unknown outcome, and the client is closed.

use std::future::poll_fn;
use std::marker::PhantomData;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::bounds::MAX_BATCHED_CALLERS;
use crate::client::core::{Core, yield_now};
use crate::client::state::batches::{
    Batchable, PendingRequest, Response, ResponseSlot, UNBATCHED_CALLS,
};
use crate::error::BackendError;
use crate::sync::{Arc, Ordering};

const SHUTTING_DOWN: &str = "the runtime is shutting down";

/// Sends a request together with others that are ready, and waits at most `limit` for its answer.
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
        let mut queue = Q::pending(&core.batcher).lock();
        queue.push(pending);
        (queue.len() == 1).then(|| FlushTask::<Q>::begin(core))
    };
    if let Some(flush_task) = flush_task {
        core.runtime.spawn(core.background(flush_task.run()));
    }
    core.bounded(limit, poll_fn(|cx| slot.poll(cx))).await
}

/// The task that sends the pending requests. Dropping it before that fails them.
struct FlushTask<Q: Batchable> {
    core: Arc<Core>,
    /// Whether the pending requests were taken from the list.
    flushed: bool,
    request: PhantomData<fn(Q)>,
}

impl<Q: Batchable> FlushTask<Q> {
    fn begin(core: &Arc<Core>) -> Self {
        let calls_in_flight = &core.batcher.calls_in_flight;
        calls_in_flight.fetch_add(UNBATCHED_CALLS, Ordering::Acquire);
        Self {
            core: Arc::clone(core),
            flushed: false,
            request: PhantomData,
        }
    }

    async fn run(mut self) {
        let core = Arc::clone(&self.core);
        yield_now().await;
        let pending = self.take_pending();
        self.flushed = true;
        let calls_in_flight = &core.batcher.calls_in_flight;
        calls_in_flight.fetch_sub(UNBATCHED_CALLS - 1, Ordering::Release);
        let batches = in_batches(pending, MAX_BATCHED_CALLERS);
        let mut calls: FuturesUnordered<_> = batches.map(|batch| flush(&core, batch)).collect();
        while calls.next().await.is_some() {}
    }

    fn take_pending(&self) -> Vec<PendingRequest<Q>> {
        std::mem::take(&mut *Q::pending(&self.core.batcher).lock())
    }
}

impl<Q: Batchable> Drop for FlushTask<Q> {
    fn drop(&mut self) {
        let (counted, unsent) = if self.flushed {
            (1, Vec::new())
        } else {
            (UNBATCHED_CALLS, self.take_pending())
        };
        for pending in unsent {
            if let Some(slot) = pending.slot.upgrade() {
                slot.fill(Err(BackendError::unavailable(SHUTTING_DOWN)));
            }
        }
        self.core
            .batcher
            .calls_in_flight
            .fetch_sub(counted, Ordering::Release);
    }
}

/// Moves the elements into batches of this size.
fn in_batches<T>(all: Vec<T>, size: usize) -> impl Iterator<Item = Vec<T>> {
    let mut left = all.into_iter();
    std::iter::from_fn(move || {
        let batch: Vec<T> = left.by_ref().take(size).collect();
        (!batch.is_empty()).then_some(batch)
    })
}

/// Sends the requests whose callers still wait in one call, and fills their slots.
async fn flush<Q: Batchable>(core: &Core, requests: Vec<PendingRequest<Q>>) {
    let awaited = requests
        .into_iter()
        .filter_map(|pending| Some((pending.request, pending.slot.upgrade()?)));
    let (requests, slots): (Vec<Q>, Vec<_>) = awaited.unzip();
    if requests.is_empty() {
        return;
    }
    let mut in_flight = InFlight(slots);
    let call = Q::send(&*core.backend, &requests);
    let limit = core.settings.call_timeout;
    let answers = core.exchange_batch(limit, requests.len(), call).await;
    for (slot, answer) in in_flight.0.drain(..).zip(answers) {
        slot.fill(answer);
    }
}

/// The slots of requests in flight. Dropping it fails them with an unknown outcome.
struct InFlight<R>(Vec<Arc<ResponseSlot<R>>>);

impl<R> Drop for InFlight<R> {
    fn drop(&mut self) {
        for slot in self.0.drain(..) {
            slot.fill(Err(BackendError::outcome_unknown(SHUTTING_DOWN)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch that kept the room of all that follow it would take memory by the square of their number.
    #[test]
    fn batches_have_room_for_themselves_only() {
        let batches: Vec<Vec<u32>> = in_batches((0..10_000).collect(), 64).collect();
        let room: usize = batches.iter().map(Vec::capacity).sum();
        assert!(room <= 10_000 + 64, "{room}");
        assert_eq!(batches.concat(), (0..10_000).collect::<Vec<_>>());
    }
}

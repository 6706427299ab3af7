//! The task that polls all waiters of a session, in batches.
//!
//! [`Polls`](crate::client::state::polls::Polls) decides which waiters are due. Batches do not wait
//! for each other, so a batch without an answer delays only its own waiters.
//!
//! A dropped waiter is removed from the schedule. The answer to a poll in flight is then discarded,
//! and the release that the waiter queued undoes what the poll did.

use futures_util::stream::FuturesUnordered;

use crate::client::core::Core;
use crate::client::state::polls::PolledWaiter;
use crate::client::state::session::Session;
use crate::request::Poll;
use crate::runtime::BoxFuture;
use crate::sync::Arc;

/// Spawns the task of the session, the first time.
pub(crate) fn start(core: &Arc<Core>, session: &Arc<Session>) {
    if session.polls.started.is_first() {
        let task = run(Arc::clone(core), Arc::clone(session));
        core.runtime.spawn(core.background(task));
    }
}

async fn run(core: Arc<Core>, session: Arc<Session>) {
    let polls = &session.polls;
    let mut calls: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    loop {
        let version = polls.changed.version();
        let batches = polls.take_due(core.now()).into_iter();
        for batch in batches.flat_map(|batch| core.split_into_calls(batch, |waiter| &waiter.key)) {
            calls.push(Box::pin(send(
                Arc::clone(&core),
                Arc::clone(&session),
                batch,
            )));
        }
        if core.is_orphaned() {
            return;
        }
        let until = polls.arm();
        core.wait_for_work(&polls.changed, version, until, &mut calls)
            .await;
    }
}

async fn send(core: Arc<Core>, session: Arc<Session>, waiters: Vec<Arc<PolledWaiter>>) {
    let listening = session.router.is_listening();
    let requests: Vec<Poll> = waiters
        .iter()
        .map(|waiter| Poll::new(waiter.key.clone(), waiter.operation, listening))
        .collect();
    let call = async || core.backend.poll(&requests).await;
    let answers = core.exchange_in_background(requests.len(), call).await;
    for (waiter, answer) in waiters.iter().zip(answers) {
        core.events.poll(&waiter.key, &answer);
        waiter.answers.update(|answers| answers.push_back(answer));
    }
}

//! The task that polls all waiters of a session, in batches.
//!
//! [`Polls`](crate::client::state::polls::Polls) says which waiters are due. Batches do not wait
//! for each other, so a batch without an answer delays nobody but its own members.
//!
//! A waiter that is dropped is forgotten. The answer to a poll that is under way then goes
//! nowhere, and the release that the waiter has queued undoes whatever the poll did.

use futures_util::stream::FuturesUnordered;

use crate::client::core::Core;
use crate::client::state::answer::reply_of;
use crate::client::state::polls::{Polled, PolledWaiter};
use crate::client::state::session::Session;
use crate::id::{Key, Operation};
use crate::request::Poll;
use crate::runtime::BoxFuture;
use crate::sync::Arc;

/// Takes a waiter in, and starts the session's task with the first.
pub(crate) fn begin(
    core: &Arc<Core>,
    session: &Arc<Session>,
    key: &Key,
    operation: Operation,
) -> Polled {
    if session.polls.start() {
        core.runtime
            .spawn(Box::pin(run(Arc::clone(core), Arc::clone(session))));
    }
    Polled::begin(&session.polls, key, operation)
}

async fn run(core: Arc<Core>, session: Arc<Session>) {
    let polls = &session.polls;
    let mut calls: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    loop {
        let version = polls.changed.version();
        for batch in polls.take_due(core.now()) {
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
        core.until_work(&polls.changed, version, until, &mut calls)
            .await;
    }
}

async fn send(core: Arc<Core>, session: Arc<Session>, waiters: Vec<Arc<PolledWaiter>>) {
    let listening = session.router.is_listening();
    let requests: Vec<Poll> = waiters
        .iter()
        .map(|waiter| Poll::new(waiter.key.clone(), waiter.operation, listening))
        .collect();
    let call = core.backend.poll(&requests);
    let limit = core.settings.call_timeout;
    let answers = core.exchange_batch(limit, requests.len(), call).await;
    for (waiter, answer) in waiters.iter().zip(answers) {
        core.events.poll(&waiter.key, reply_of(&answer));
        waiter.put(answer);
    }
}

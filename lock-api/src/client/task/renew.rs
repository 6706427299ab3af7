//! The task that renews all guards of a client. It runs on the renewal thread.
//!
//! [`Renewals`](crate::client::state::renewals) decides when a holder is due. A failed renewal is
//! retried after a short random pause until the deadline. If a renewal gets no answer within the
//! time of a try, the task sends another one *beside* it. The first call goes on until its
//! call timeout. Its answer counts whenever it arrives, because the new deadline is computed from
//! the moment when that request was sent. So no lock is lost because the network is slower than a
//! try.
//!
//! Of many renewals that are due, some wait until others are answered ([`flow`](crate::client::state::flow)).
//!
//! A holder is lost when its deadline passes or the server says so. The task also reports losses
//! and calls the hook, even if no code awaits the loss.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::select;
use futures_util::stream::FuturesUnordered;

use crate::bounds::{MAX_BATCH, MAX_RENEW_TRY};
use crate::client::core::{Core, yield_now};
use crate::client::error::Loss;
use crate::client::state::answer::Answer;
use crate::client::state::holder::{HolderCell, Plan};
use crate::client::state::renewals::Next;
use crate::error::BackendError;
use crate::reply::{EndReason, RenewReply};
use crate::request::Renew;
use crate::runtime::BoxFuture;
use crate::sync::Arc;

/// How long a try may take before another one is sent beside it.
pub(crate) fn try_time(lease: Duration) -> Duration {
    MAX_RENEW_TRY.min(lease / 10)
}

/// Spawns the task, once.
pub(crate) fn start(core: &Arc<Core>) {
    if core.renewals.started.is_first() {
        core.runtime
            .spawn_on_renewal_thread(core.background(run(Arc::clone(core))));
    }
}

async fn run(core: Arc<Core>) {
    let mut calls: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    loop {
        let version = core.renewals.changed.version();
        let orphaned = core.is_orphaned();
        check_due(&core);
        if let Some((server, batch)) = ready_batch(&core) {
            for call in core.split_into_calls(batch, |member| &member.holder.key) {
                calls.push(send(Arc::clone(&core), server, call));
            }
        }
        core.events.call_hook();
        if orphaned {
            return;
        }
        let until = core.renewals.arm();
        if until.is_some_and(|until| until <= core.now()) {
            // More are due. This batch is sent before the next one is gathered: the connection has the same thread.
            select(calls.next(), pin!(yield_now())).await;
            continue;
        }
        core.wait_for_work(&core.renewals.changed, version, until, &mut calls)
            .await;
    }
}

fn send(core: Arc<Core>, server: u64, call: Vec<Member>) -> BoxFuture<'static, ()> {
    let sent = core.renewals.begin_call(server, call.len());
    Box::pin(async move {
        let answered = renew(Arc::clone(&core), call).await;
        core.renewals.end_call(server, &sent, answered);
    })
}

pub(crate) struct Member {
    holder: Arc<HolderCell>,
    plan: Plan,
    number: u64,
}

/// Reports losses that are due, and finds renewals that are: at most [`MAX_BATCH`] of both. More may be due.
pub(crate) fn check_due(core: &Core) {
    let now = core.now();
    for holder in core.renewals.take_due(now, MAX_BATCH) {
        for (hold, loss) in holder.take_losses(now) {
            core.events.lost(&holder, &hold, loss, now);
        }
        core.renewals.schedule_next_check(&holder, now);
    }
}

/// Takes out renewals to send now to one server, and names it.
pub(crate) fn ready_batch(core: &Core) -> Option<(u64, Vec<Member>)> {
    let now = core.now();
    let (server, holders) = core.renewals.take_ready(now, MAX_BATCH)?;
    let members = holders.into_iter().filter_map(|holder| {
        let plan = holder.plan(now)?;
        let retry = now.saturating_add(try_time(plan.lease) + pause(core, plan.lease));
        let number = core.renewals.begin_try(&holder, retry);
        Some(Member {
            holder,
            plan,
            number,
        })
    });
    let members: Vec<Member> = members.collect();
    (!members.is_empty()).then_some((server, members))
}

/// A random pause before a renewal is retried.
fn pause(core: &Core, lease: Duration) -> Duration {
    let limit = try_time(lease);
    core.random_between(limit / 4, limit / 2)
}

/// Sends a batch and applies the answers. Returns whether there were any.
pub(crate) async fn renew(core: Arc<Core>, batch: Vec<Member>) -> bool {
    let requests: Vec<Renew> = batch
        .iter()
        .map(|Member { holder, plan, .. }| Renew::checked(&holder.key, plan.operation, plan.lease))
        .collect();
    let call = async || core.backend.renew(&requests).await;
    let answers = core.exchange_in_background(requests.len(), call).await;
    let holders = batch.iter().map(|member| &member.holder);
    core.events.renewals(holders, &answers, core.now());
    let is_answered = |answer: &Result<_, BackendError>| {
        let error = answer.as_ref().err();
        !error.is_some_and(BackendError::is_transient)
    };
    let answered = answers.iter().any(is_answered);
    for (member, answer) in batch.iter().zip(answers) {
        core.events.renewal(&member.holder.key, &answer);
        let next = apply(&core, &member.holder, member.plan, &answer);
        core.renewals.end_try(&member.holder, member.number, next);
    }
    answered
}

fn apply(
    core: &Core,
    holder: &HolderCell,
    plan: Plan,
    answer: &Result<Answer<RenewReply>, BackendError>,
) -> Next {
    let now = core.now();
    let stop_if = |lost: bool| if lost { Next::Stop } else { Next::Retry(now) };
    match answer {
        Ok(answer) => match answer.reply {
            RenewReply::Renewed { token, remaining } => {
                if core.renewed(holder, answer.status(token, remaining)) {
                    Next::Renewed(core.renewals.due_after(answer.sent, plan.lease))
                } else {
                    Next::Stop
                }
            }
            RenewReply::Lost(reason) => {
                // If the release of this hold has begun, another hold may need the holder. The next
                // attempt renews through that one.
                stop_if(holder.lose_through(plan.operation.sequence, reason))
            }
        },
        Err(BackendError::ForeignValue { .. }) => {
            // Something else has overwritten the key and the hold.
            stop_if(holder.lose_through(plan.operation.sequence, EndReason::Unknown))
        }
        Err(BackendError::Closed) => {
            holder.lose(Loss::ClientClosed);
            Next::Stop
        }
        Err(_) => Next::Retry(now.saturating_add(pause(core, plan.lease))),
    }
}

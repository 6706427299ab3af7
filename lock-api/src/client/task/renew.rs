//! The task that renews all guards of a client; the renewal thread runs it.
//!
//! [`Renewals`](crate::client::state::renewals) says when a holder is due. What is
//! definite is final: the server's word that the holder is lost, or the deadline.
//!
//! A renewal that fails is tried again after a short random pause, until the deadline. One that
//! has no answer after the time of a try is tried again *beside* it: a call is given up only
//! after the time-out of a call, and an answer counts whenever it comes, since it says how long
//! the holder lasts from the moment when its own request was sent. So a network that is slower
//! than a try loses no lock.
//!
//! The same task notices losses and tells of them, whether anybody waits for one or not.

use std::time::Duration;

use futures_util::stream::FuturesUnordered;

use crate::bounds::{MAX_BATCH, MAX_RENEW_ATTEMPT};
use crate::client::core::Core;
use crate::client::error::Loss;
use crate::client::state::answer::{Answer, reply_of};
use crate::client::state::holder::{HolderCell, Plan};
use crate::client::state::renewals::Next;
use crate::error::BackendError;
use crate::mutants::mutant;
use crate::reply::{EndReason, RenewReply};
use crate::request::Renew;
use crate::runtime::BoxFuture;
use crate::sync::Arc;

/// How long a try is waited for, before another is sent beside it.
fn try_limit(lease: Duration) -> Duration {
    MAX_RENEW_ATTEMPT.min(lease / 10)
}

/// Starts the task, once.
pub(crate) fn start(core: &Arc<Core>) {
    if core.renewals.start() {
        core.runtime
            .spawn_on_renewal_thread(Box::pin(run(Arc::clone(core))));
    }
}

async fn run(core: Arc<Core>) {
    let mut calls: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    loop {
        let version = core.renewals.changed.version();
        let orphaned = core.is_orphaned();
        for batch in batches(&core) {
            calls.push(Box::pin(renew(Arc::clone(&core), batch)));
        }
        core.events.call_hook();
        if orphaned {
            return;
        }
        let until = core.renewals.arm();
        core.until_work(&core.renewals.changed, version, until, &mut calls)
            .await;
    }
}

/// One holder's part in a call.
pub(crate) struct Member {
    holder: Arc<HolderCell>,
    plan: Plan,
    /// The number of the try.
    number: u64,
}

/// What is due.
pub(crate) fn batches(core: &Core) -> Vec<Vec<Member>> {
    let now = core.now();
    let mut members = Vec::new();
    for (holder, renew) in core.renewals.take_due(now) {
        core.tell_losses(&holder, now);
        core.renewals.look_again(&holder);
        if renew && let Some(plan) = holder.plan(now) {
            let again = now.saturating_add(try_limit(plan.lease) + pause(core, plan.lease));
            let number = core.renewals.begin_try(&holder, again);
            members.push(Member {
                holder,
                plan,
                number,
            });
        }
    }
    let mut batches = Vec::new();
    while !members.is_empty() {
        let later = members.split_off(members.len().min(MAX_BATCH));
        batches.push(std::mem::replace(&mut members, later));
    }
    batches
}

/// The pause before a renewal is tried again.
fn pause(core: &Core, lease: Duration) -> Duration {
    let limit = try_limit(lease);
    core.random_between(limit / 4, limit / 2)
}

pub(crate) async fn renew(core: Arc<Core>, batch: Vec<Member>) {
    let requests: Vec<Renew> = batch
        .iter()
        .map(|Member { holder, plan, .. }| Renew {
            key: holder.key.clone(),
            operation: plan.operation,
            lease: plan.lease,
        })
        .collect();
    let call = core.backend.renew(&requests);
    let limit = core.settings.call_timeout;
    let answers = core.exchange_batch(limit, requests.len(), call).await;
    let mut errors = answers.iter().filter_map(|answer| answer.as_ref().err());
    if let Some(error) = errors.next() {
        let failed = 1 + errors.count();
        core.events.renewals_failed(failed, answers.len(), error);
    }
    for (member, answer) in batch.iter().zip(answers) {
        core.events.renewal(&member.holder.key, reply_of(&answer));
        let next = apply(&core, &member.holder, member.plan, &answer);
        if let Next::Renewed(due) = next
            && mutant!(CancelBeforeSchedule)
        {
            // Its end may have begun, and taken it out of the schedule.
            core.renewals.schedule(&member.holder, core.now(), due);
            continue;
        }
        core.renewals.end_try(&member.holder, member.number, next);
    }
}

/// Takes the answer to a renewal.
fn apply(
    core: &Core,
    holder: &HolderCell,
    plan: Plan,
    answer: &Result<Answer<RenewReply>, BackendError>,
) -> Next {
    let now = core.now();
    let unless_lost = |lost: bool| if lost { Next::Never } else { Next::Again(now) };
    match answer {
        Ok(answer) => match answer.reply {
            RenewReply::Renewed { token, remaining } => {
                if core.extend(holder, answer.status(token, remaining)) {
                    Next::Renewed(core.renewals.due_after(answer.sent, plan.lease))
                } else {
                    Next::Never
                }
            }
            RenewReply::Lost(reason) => {
                // If its end has begun, another hold may keep the holder: renew through that one.
                unless_lost(holder.lose_through(plan.operation.sequence, reason))
            }
        },
        Err(BackendError::ForeignValue { .. }) => {
            // Somebody wrote over the key, and the hold with it.
            unless_lost(holder.lose_through(plan.operation.sequence, EndReason::Unknown))
        }
        Err(BackendError::Closed) => {
            holder.lose(Loss::ClientClosed);
            Next::Never
        }
        Err(_) if mutant!(OneErrorEndsRenewal) => Next::Never,
        Err(_) => Next::Again(now.saturating_add(pause(core, plan.lease))),
    }
}

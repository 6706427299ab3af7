//! The machine beside a backend that executes some acquires at an estimate of its clock.

use std::time::Duration;

use leasehold_api::machine::{Command, Env, Message, Reply, State, step};
use leasehold_api::{AcquireReply, ServerTime, Stamped};

/// An estimate of the backend's clock is behind by at most this time.
const MOST_BEHIND: Duration = Duration::from_secs(1);

/// Executes a command as the backend may have done that gave this reply: at the time of the reply, or at an
/// estimate of it if `last_step` says when the last command was executed. Also returns the time.
pub(super) fn step_as_answered(
    model: &mut State,
    mut env: Env<'_>,
    command: &Command,
    reply: &Stamped<Reply>,
    last_step: Option<ServerTime>,
) -> (Reply, Vec<Message>, ServerTime) {
    let before = model.clone();
    let (mut expected, mut messages) = step(model, env, command);
    for earlier in last_step
        .into_iter()
        .flat_map(|last| executed_at(command, reply, last))
    {
        if reply.reply == expected {
            break;
        }
        (*model, env.now) = (before.clone(), earlier);
        (expected, messages) = step(model, env, command);
        if let Reply::Acquire(AcquireReply::Acquired(acquired)) = &mut expected {
            let behind = reply.stamp.at.saturating_since(earlier);
            acquired.remaining = acquired.remaining.saturating_sub(behind);
        }
    }
    (expected, messages, env.now)
}

/// The times at which an acquire may have been executed: when its lease began, and the time that its token shows.
/// Only times from `last_step` on and before the reply count.
fn executed_at(
    command: &Command,
    reply: &Stamped<Reply>,
    last_step: ServerTime,
) -> Vec<ServerTime> {
    let (Command::Acquire(request), Reply::Acquire(AcquireReply::Acquired(acquired))) =
        (command, &reply.reply)
    else {
        return Vec::new();
    };
    let now = reply.stamp.at;
    let end = now.saturating_add(acquired.remaining).as_micros();
    let lease = u64::try_from(request.lease.as_micros()).unwrap_or(u64::MAX);
    let times = [end.saturating_sub(lease), acquired.token.get()].map(ServerTime::from_micros);
    let is_right = |time: &ServerTime| {
        (last_step..now).contains(time) && now.saturating_since(*time) <= MOST_BEHIND
    };
    times.into_iter().filter(is_right).collect()
}

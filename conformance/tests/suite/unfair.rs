//! Steps of the state machine on a queue that is not served in order of arrival (rule 7).

use leasehold_api::machine::{self, Command, Env, Message, Reply, State, WaiterParts};
use leasehold_api::{AcquireReply, Mode};

/// Waiting readers pass writers.
pub(crate) fn readers_first(
    state: &mut State,
    env: Env<'_>,
    command: &Command,
) -> (Reply, Vec<Message>) {
    reorder(state, |waiters| {
        waiters.sort_by_key(|it| it.mode != Mode::Shared);
    });
    machine::step(state, env, command)
}

/// Waiting writers pass readers.
pub(crate) fn writers_first(
    state: &mut State,
    env: Env<'_>,
    command: &Command,
) -> (Reply, Vec<Message>) {
    reorder(state, |waiters| {
        waiters.sort_by_key(|it| it.mode != Mode::Exclusive);
    });
    machine::step(state, env, command)
}

/// The waiter that came last passes the others.
pub(crate) fn latest_first(
    state: &mut State,
    env: Env<'_>,
    command: &Command,
) -> (Reply, Vec<Message>) {
    reorder(state, |waiters| {
        waiters.rotate_right(usize::from(!waiters.is_empty()));
    });
    machine::step(state, env, command)
}

/// Gives the tickets to the waiters in the order that `change` makes.
fn reorder(state: &mut State, change: impl FnOnce(&mut [WaiterParts])) {
    let mut parts = state.to_parts();
    let tickets: Vec<u64> = parts.waiters.iter().map(|waiter| waiter.ticket).collect();
    change(&mut parts.waiters);
    for (waiter, ticket) in parts.waiters.iter_mut().zip(tickets) {
        waiter.ticket = ticket;
    }
    *state = State::from_parts(parts).expect("the same waiters");
}

/// An acquire that finds the key free passes all waiters.
pub(crate) fn newcomers_first(
    state: &mut State,
    env: Env<'_>,
    command: &Command,
) -> (Reply, Vec<Message>) {
    let passed = as_if_nobody_waited(state, env, command);
    passed.unwrap_or_else(|| machine::step(state, env, command))
}

/// Executes an acquire as if nobody waited. `None` if it isn't granted.
fn as_if_nobody_waited(
    state: &mut State,
    env: Env<'_>,
    command: &Command,
) -> Option<(Reply, Vec<Message>)> {
    let Command::Acquire(request) = command else {
        return None;
    };
    let mut parts = state.to_parts();
    let mut waiters = std::mem::take(&mut parts.waiters);
    let mut alone = State::from_parts(parts).expect("the same holders");
    let (reply, messages) = machine::step(&mut alone, env, command);
    if !matches!(reply, Reply::Acquire(AcquireReply::Acquired(_))) {
        return None;
    }
    waiters.retain(|it| it.operation != request.operation && it.end > env.now);
    let mut parts = alone.to_parts();
    parts.waiters = waiters;
    *state = State::from_parts(parts).expect("the stored end covers the waiters");
    Some((reply, messages))
}

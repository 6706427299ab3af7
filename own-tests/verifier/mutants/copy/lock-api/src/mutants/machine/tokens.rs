//! Rules 14 and 15: the stored end and fencing tokens.

use super::step::{Step, last_end};
use crate::machine::{Command, Reply};
use crate::reply::{AcquireReply, Refused};
use crate::request::Kind;

/// The stored end does not cover the last token.
pub(super) fn stored_end_too_early(step: &mut Step<'_>) {
    step.after.stored_end = last_end(&step.after);
}

/// A new token is the previous token + 1, whatever the time.
pub(super) fn token_counts_by_one(step: &mut Step<'_>) {
    let last = step.before.token;
    // The new tokens of the step, in the order in which they were granted.
    let given = std::cell::RefCell::new(vec![step.after.token]);
    step.map_tokens(|token| {
        given.borrow_mut().push(token);
        token
    });
    let mut given = given.into_inner();
    given.retain(|token| *token > last);
    given.sort_unstable();
    given.dedup();
    step.map_tokens(|token| match given.binary_search(&token) {
        Ok(n) => last + 1 + n as u64,
        Err(_) => token,
    });
}

/// A reader that joins other readers starts a new epoch.
pub(super) fn readers_distinct_tokens(step: &mut Step<'_>) {
    let (before, after) = (&step.before, &step.after);
    let rw_lock = after.spec.is_some_and(|it| it.kind() == Kind::RwLock);
    let joins = after.holders.iter().any(|holder| {
        let id = (holder.session, holder.id);
        let mut known = before.holders.iter();
        !known.any(|it| (it.session, it.id) == id)
    });
    let shared = before.token;
    if rw_lock && joins && after.token == shared {
        let own = (shared + 1).max(step.now().as_micros());
        step.map_tokens(|token| if token == shared { own } else { token });
    }
}

/// The floor of an acquire is ignored.
pub(super) fn floor_ignored(step: &mut Step<'_>) {
    if step.reply == Reply::Acquire(AcquireReply::Refused(Refused::FloorTooHigh)) {
        return;
    }
    let mut floors: Vec<_> = step
        .before
        .waiters
        .iter_mut()
        .map(|waiter| (waiter.operation, waiter.floor.take()))
        .collect();
    if let Command::Acquire(request) = &mut step.command {
        floors.push((request.operation, request.floor.take()));
    }
    step.rerun();
    for waiter in &mut step.after.waiters {
        let brought = floors.iter().find(|(it, _)| *it == waiter.operation);
        waiter.floor = brought.and_then(|(_, floor)| *floor);
    }
}

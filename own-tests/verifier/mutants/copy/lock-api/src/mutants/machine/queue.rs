//! Rules 7 to 10: the queue, notifications and offers.

use std::time::Duration;

use super::step::{Step, full_mode, holder};
use crate::bounds::{DEFAULT_LEASE, MAX_LEASE, OFFER_POLLS};
use crate::id::FencingToken;
use crate::machine::{Command, Env, Message, Payload, Reach, Reply, WaiterParts};
use crate::reply::{AcquireReply, ReleaseReply};
use crate::time::ServerTime;

/// An acquire that asks to wait is answered `Contended`.
pub(super) fn waiter_turned_down(step: &mut Step<'_>) {
    step.rerun_with_acquire(|request| request.wait = None);
}

/// An expired waiter blocks the waiters behind it.
///
/// The dead waiter asks for the full capacity. A grant to it is undone, and it stays in the queue.
pub(super) fn dead_waiter_blocks(step: &mut Step<'_>) {
    let (now, own) = (step.now(), step.operation());
    let mut waiters = step.before.waiters.iter_mut();
    let (Some(spec), Some(waiter)) = (
        step.before.spec,
        waiters.find(|it| it.end <= now && Some(it.operation) != own),
    ) else {
        return;
    };
    let dead = waiter.clone();
    let end = now.saturating_add(spec.waiter_lease());
    (waiter.mode, waiter.end) = (full_mode(spec), end);
    (waiter.listening, waiter.unreachable) = (false, false);
    step.before.stored_end = step.before.stored_end.max(end);
    step.rerun();
    if holder(&step.after, dead.operation).is_some() {
        step.after.holders.clear();
        step.after.token = step.before.token;
    }
    step.after.waiters.retain(|it| it.ticket != dead.ticket);
    step.after.waiters.push(dead);
    step.after.waiters.sort_by_key(|it| it.ticket);
}

/// A new acquire takes a free key past the queue.
pub(super) fn newcomer_passes(step: &mut Step<'_>) {
    if step.is_new() && matches!(step.reply, Reply::Acquire(AcquireReply::Queued(_))) {
        let fair = step.clone();
        step.rerun_without(|_| true);
        if step.acquired().is_none() {
            *step = fair;
        }
    }
}

/// Light waiters pass heavy ones: readers pass writers, and few permits pass many.
pub(super) fn light_waiters_first(step: &mut Step<'_>) {
    let Some(spec) = step.before.spec else { return };
    let arrived = step.before.waiters.clone();
    step.before.waiters.sort_by_key(|it| spec.weight(it.mode));
    for (waiter, was) in step.before.waiters.iter_mut().zip(&arrived) {
        waiter.ticket = was.ticket;
    }
    step.rerun();
    for waiter in &mut step.after.waiters {
        if let Some(was) = arrived.iter().find(|it| it.operation == waiter.operation) {
            waiter.ticket = was.ticket;
        }
    }
    step.after.waiters.sort_by_key(|it| it.ticket);
    step.before.waiters = arrived;
}

/// No grant is notified.
pub(super) fn grant_untold(step: &mut Step<'_>) {
    (step.messages).retain(|it| !matches!(it.payload, Payload::Granted { .. }));
}

/// A grant is notified to the next waiter in the queue.
pub(super) fn grant_told_to_next(step: &mut Step<'_>) {
    let mut next = step.after.waiters.first().map(|it| it.operation.session);
    for message in step.messages.iter_mut().rev() {
        if matches!(message.payload, Payload::Granted { .. }) {
            let to = message.to;
            message.to = next.unwrap_or(to);
            next = Some(to);
        }
    }
}

/// The notification of a grant has the token before its own.
pub(super) fn grant_told_with_old_token(step: &mut Step<'_>) {
    for message in &mut step.messages {
        if let Payload::Granted { token, .. } = &mut message.payload {
            *token = FencingToken::new(token.get() - 1);
        }
    }
}

/// The notification of a grant reports a full lease as remaining time.
pub(super) fn grant_told_with_full_lease(step: &mut Step<'_>) {
    for message in &mut step.messages {
        if let Payload::Granted { remaining, .. } = &mut message.payload {
            *remaining = DEFAULT_LEASE;
        }
    }
}

/// A release does not grant to the queue.
pub(super) fn release_grants_nobody(step: &mut Step<'_>) {
    let Command::Release(request) = &step.command else {
        return;
    };
    let own = request.operation;
    if !matches!(step.reply, Reply::Release(ReleaseReply::NotHeld(_))) {
        step.rerun_without(|waiter| waiter.operation != own);
    }
}

/// A waiter counts as unreachable if the backend cannot tell who listens.
pub(super) fn unknown_is_unreachable(step: &mut Step<'_>) {
    let env = step.env;
    let reachable = |session| match (env.reachable)(session) {
        Reach::Unknown => Reach::Nobody,
        known => known,
    };
    step.rerun_in(Env {
        reachable: &reachable,
        ..env
    });
}

/// A grant is published before it is known whether somebody listens. If the primary counts
/// nobody, the grant is taken back, and its token goes to the next waiter.
///
/// Pushes a grant to each waiter that the step marks. The token is that of the next grant.
pub(super) fn grant_taken_back(step: &mut Step<'_>) {
    let next = (step.before.token + 1).max(step.now().as_micros());
    let token = FencingToken::new(match step.after.token {
        same if same == step.before.token => next,
        granted => granted,
    });
    let poll = step.after.spec.map(|spec| spec.poll_interval());
    let shortest = poll.unwrap_or_default() * OFFER_POLLS;
    let marks = |waiters: &[WaiterParts], ticket| {
        let same = waiters.iter().find(|it| it.ticket == ticket);
        same.map_or(0, |it| it.unreachable_marks)
    };
    let before = &step.before.waiters;
    let waiters = step.after.waiters.iter();
    let marked = waiters.filter(|it| it.unreachable_marks > marks(before, it.ticket));
    let pushed: Vec<_> = marked
        .map(|waiter| {
            let end = step.in_time(waiter.lease.max(shortest)).min(waiter.end);
            let payload = Payload::Granted {
                sequence: waiter.operation.sequence,
                token,
                remaining: end.saturating_since(step.now()),
            };
            let to = waiter.operation.session;
            Message { to, payload }
        })
        .collect();
    step.messages.splice(..0, pushed);
}

/// A waiter that is marked unreachable loses its ticket.
pub(super) fn unreachable_loses_ticket(step: &mut Step<'_>) {
    let before = &step.before.waiters;
    step.after.waiters.retain(|waiter| {
        let was = before.iter().find(|it| it.ticket == waiter.ticket);
        waiter.unreachable_marks == was.map_or(0, |it| it.unreachable_marks)
    });
}

/// A grant to a waiter lasts a full lease without a confirmation.
pub(super) fn full_lease_for_offer(step: &mut Step<'_>) {
    let end = step.in_time(DEFAULT_LEASE);
    let waited = step.before.waiters.iter().map(|waiter| waiter.operation);
    let granted: Vec<_> = waited
        .filter(|it| holder(&step.after, *it).is_some())
        .collect();
    for operation in granted {
        step.set_end(operation, end);
    }
    grant_told_with_full_lease(step);
}

/// An offer lasts until its waiter would have expired, however short the lease is.
pub(super) fn offer_ignores_lease(step: &mut Step<'_>) {
    let waiters = step.before.waiters.clone();
    for waiter in &mut step.before.waiters {
        waiter.lease = MAX_LEASE;
    }
    step.rerun();
    for waiter in &mut step.after.waiters {
        if let Some(was) = waiters.iter().find(|it| it.ticket == waiter.ticket) {
            waiter.lease = was.lease;
        }
    }
}

/// A poll extends an offer.
pub(super) fn poll_extends_offer(step: &mut Step<'_>) {
    if matches!(step.command, Command::Poll(_)) && step.acquired().is_some() {
        step.extend(Duration::from_secs(5));
    }
}

/// When a waiter that polls now would expire.
fn refreshed_end(step: &Step<'_>, waiter: &WaiterParts) -> ServerTime {
    let spec = step.before.spec;
    let lease = spec.map_or(Duration::ZERO, |spec| spec.waiter_lease());
    let end = step.in_time(lease);
    waiter.wait_until.map_or(end, |until| until.min(end))
}

/// A poll refreshes all waiters of its key, also those of dead clients.
pub(super) fn poll_keeps_all(step: &mut Step<'_>) {
    if !matches!(step.command, Command::Poll(_)) {
        return;
    }
    let ends = step.after.waiters.iter();
    let ends: Vec<_> = ends.map(|it| it.end.max(refreshed_end(step, it))).collect();
    for (waiter, end) in step.after.waiters.iter_mut().zip(ends) {
        waiter.end = end;
    }
}

/// A poll does not refresh its waiter.
pub(super) fn poll_keeps_nothing(step: &mut Step<'_>) {
    let Command::Poll(request) = &step.command else {
        return;
    };
    let own = |waiter: &&WaiterParts| waiter.operation == request.operation;
    let before = step.before.waiters.iter().find(own);
    let mut after = step.after.waiters.iter_mut();
    if let (Some(before), Some(after)) =
        (before, after.find(|it| it.operation == request.operation))
    {
        after.end = before.end;
    }
}

/// A poll revives an expired waiter.
pub(super) fn poll_revives(step: &mut Step<'_>) {
    let Command::Poll(request) = &step.command else {
        return;
    };
    let own = |waiter: &WaiterParts| waiter.operation == request.operation;
    let Some(at) = step.before.waiters.iter().position(own) else {
        return;
    };
    let end = refreshed_end(step, &step.before.waiters[at]);
    if step.before.waiters[at].end <= step.now() && end > step.now() {
        step.before.waiters[at].end = end;
        step.before.stored_end = step.before.stored_end.max(end);
        step.rerun();
    }
}

/// A release of an operation that has only an offer leaves the offer in place.
///
/// The state does not say which holders are offers. A holder with at most one waiter lease left
/// counts as an offer here.
pub(super) fn release_misses_offer(step: &mut Step<'_>) {
    let (Command::Release(_), Some(holder)) = (&step.command, step.live_before().cloned()) else {
        return;
    };
    let left = holder.end.saturating_since(step.now());
    let waiter_lease = step.before.spec.map(|spec| spec.waiter_lease());
    if waiter_lease.is_some_and(|lease| left <= lease) {
        step.rerun_without(|_| true);
        let id = (holder.session, holder.id);
        step.after.holders.retain(|it| (it.session, it.id) != id);
        step.after.holders.push(holder);
        step.reply = Reply::Release(ReleaseReply::Left);
    }
}

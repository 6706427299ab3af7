//! Rules 1 to 5: time, leases and nested holds.

use std::time::Duration;

use super::step::{Step, holder, holder_mut};
use crate::bounds::{FIRST_WAITERS, SCAN_FREELY};
use crate::machine::{Command, Reply, StateParts};
use crate::reply::{AcquireReply, Contended, PollReply, Queued, ReleaseReply, RenewReply};
use crate::time::ServerTime;

/// The resolution of the machine's time.
const TICK: Duration = Duration::from_micros(1);

fn move_ends(parts: &mut StateParts, from: ServerTime, to: ServerTime) {
    let holders = parts.holders.iter_mut().map(|holder| &mut holder.end);
    let waiters = parts.waiters.iter_mut().map(|waiter| &mut waiter.end);
    for end in holders.chain(waiters).filter(|end| **end == from) {
        *end = to;
    }
}

/// A holder or waiter is still live at the very instant of its end.
pub(super) fn expiry_edge(step: &mut Step<'_>) {
    let (now, later) = (step.now(), step.in_time(TICK));
    move_ends(&mut step.before, now, later);
    step.rerun();
    move_ends(&mut step.after, later, now);
}

/// A renewal soon after another gets the reply of that one and extends nothing.
pub(super) fn cached_renewal(step: &mut Step<'_>) {
    let now = step.now();
    let (Command::Renew(request), Some(holder)) = (&step.command, step.live_before()) else {
        return;
    };
    let (end, asked) = (holder.end, request.lease);
    if let Reply::Renew(RenewReply::Renewed { remaining, .. }) = &mut step.reply
        && end.saturating_since(now) * 4 > asked * 3
        && let Some(holder) = holder_mut(&mut step.after, request.operation)
    {
        *remaining = asked;
        holder.end = end;
    }
}

/// The reply to a redelivered acquire reports twice the remaining time.
pub(super) fn remaining_too_long(step: &mut Step<'_>) {
    let redelivered = matches!(step.command, Command::Acquire(_)) && step.live_before().is_some();
    if let Some(acquired) = step.acquired().filter(|_| redelivered) {
        acquired.remaining *= 2;
    }
}

/// A redelivered acquire extends the holder.
pub(super) fn redelivery_extends(step: &mut Step<'_>) {
    if let Command::Acquire(request) = &step.command
        && step.live_before().is_some()
    {
        step.extend(request.lease);
    }
}

fn contention<'a>(step: &'a mut Step<'_>) -> Option<&'a mut Contended> {
    match &mut step.reply {
        Reply::Acquire(AcquireReply::Contended(contention)) => Some(contention),
        _ => None,
    }
}

/// `Contended::retry_after` is the time to the last expiry of a holder, not the first.
pub(super) fn held_for_the_longest(step: &mut Step<'_>) {
    let last = step.after.holders.iter().map(|holder| holder.end).max();
    let time = last.unwrap_or_default().saturating_since(step.now());
    if let Some(contention) = contention(step) {
        contention.retry_after = time;
    }
}

/// `Contended::holder` is the holder that expires last, not first.
pub(super) fn held_by_the_last(step: &mut Step<'_>) {
    let holders = step.after.holders.iter();
    let last = holders.max_by_key(|holder| holder.end);
    let few = step.after.holders.len() <= SCAN_FREELY;
    let label = last.filter(|_| few).map(|holder| holder.label.clone());
    if let Some(contention) = contention(step) {
        contention.holder = label;
    }
}

fn queued<'a>(step: &'a mut Step<'_>) -> Option<&'a mut Queued> {
    match &mut step.reply {
        Reply::Acquire(AcquireReply::Queued(queued)) | Reply::Poll(PollReply::Queued(queued)) => {
            Some(queued)
        }
        _ => None,
    }
}

/// The first waiters poll after the poll interval, even if a holder expires sooner.
pub(super) fn head_ignores_expiry(step: &mut Step<'_>) {
    let spec = step.after.spec;
    if let (Some(spec), Some(queued)) = (spec, queued(step))
        && queued.ahead < FIRST_WAITERS
    {
        queued.poll_after = spec.poll_interval();
    }
}

/// A waiter is told to poll only when its waiter lease ends.
pub(super) fn check_too_late(step: &mut Step<'_>) {
    if let Some(queued) = queued(step) {
        queued.poll_after = queued.waiter_remaining;
    }
}

/// When one holder expires, all holders are dropped.
pub(super) fn one_expiry_drops_all(step: &mut Step<'_>) {
    let (now, after) = (step.now(), &step.after.holders);
    let expired = step.before.holders.iter().any(|holder| {
        let id = (holder.session, holder.id);
        holder.end <= now && !after.iter().any(|it| (it.session, it.id) == id)
    });
    if expired {
        step.before.holders.retain(|holder| holder.end <= now);
        step.rerun();
    }
}

/// A renewal of one holder extends all holders.
pub(super) fn renewal_extends_all(step: &mut Step<'_>) {
    if let (Command::Renew(request), Reply::Renew(RenewReply::Renewed { .. })) =
        (&step.command, &step.reply)
        && let Some(end) = holder(&step.after, request.operation).map(|holder| holder.end)
    {
        for holder in &mut step.after.holders {
            holder.end = holder.end.max(end);
        }
    }
}

/// The reply to a release counts the released hold among the holds that are left.
pub(super) fn release_counts_itself(step: &mut Step<'_>) {
    if let Reply::Release(ReleaseReply::Released {
        holds_left,
        holder: Some(_),
    }) = &mut step.reply
    {
        *holds_left += 1;
    }
}

/// A release of one of several holds removes the holder.
pub(super) fn release_at_two_frees(step: &mut Step<'_>) {
    let Command::Release(request) = &step.command else {
        return;
    };
    let (operation, now) = (request.operation, step.now());
    if let Some(holder) = holder_mut(&mut step.before, operation).filter(|it| it.end > now) {
        let holds = holder.holds.iter().copied();
        holder.holds = holds.filter(|hold| hold.0 == operation.sequence).collect();
        step.rerun();
    }
}

/// A nested hold with a shorter lease shortens the holder's lease.
pub(super) fn inner_lease_shortens(step: &mut Step<'_>) {
    let Command::Acquire(request) = &step.command else {
        return;
    };
    let (operation, end) = (request.operation, step.in_time(request.lease));
    let inner = holder(&step.after, operation).is_some_and(|it| it.holds.len() > 1 && !it.revoked);
    if step.is_new() && inner {
        step.set_end(operation, end);
    }
}

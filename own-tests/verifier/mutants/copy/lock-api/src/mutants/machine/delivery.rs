//! Rules 12 and 13 and S3: late and duplicate commands, limits, and releases of other holders.

use super::step::{Step, full_mode, holder_mut};
use crate::machine::{Command, Reply, WaiterParts};
use crate::reply::{AcquireReply, Acquired, EndReason, Refused, ReleaseReply, RenewReply};
use crate::request::{Acquire, LockSpec, Mode};

/// The limit of the holds of one owner is ignored.
pub(super) fn hold_limit_ignored(step: &mut Step<'_>) {
    step.rerun_with_acquire(|request| request.limits.holds = u32::MAX);
}

/// A release leaves no watermark.
pub(super) fn no_watermark_after_release(step: &mut Step<'_>) {
    if let Command::Release(request) = &step.command {
        let session = request.operation.session;
        step.after.watermarks.retain(|it| it.session != session);
    }
}

/// Removes the first holder, whoever owns it.
fn free_first_holder(step: &mut Step<'_>) {
    if !step.after.holders.is_empty() {
        step.after.holders.remove(0);
    }
}

/// A duplicate release removes the next holder.
pub(super) fn release_again_frees_next(step: &mut Step<'_>) {
    if step.reply == Reply::Release(ReleaseReply::NotHeld(EndReason::Released)) {
        free_first_holder(step);
    }
}

/// A release of an operation without a hold removes another holder.
pub(super) fn release_ignores_owner(step: &mut Step<'_>) {
    if matches!(step.reply, Reply::Release(ReleaseReply::NotHeld(_))) {
        free_first_holder(step);
    }
}

/// A redelivered acquire adds a second hold.
pub(super) fn retry_counts_twice(step: &mut Step<'_>) {
    let Command::Acquire(request) = &step.command else {
        return;
    };
    let (operation, mode) = (request.operation, request.mode);
    if matches!(mode, Mode::Permits(_)) {
        // A holder of a semaphore cannot have a second hold.
        return;
    }
    let copy = (operation.sequence | 1 << 52, mode);
    if step.live_before().is_some()
        && let Some(holder) = holder_mut(&mut step.after, operation)
        && !holder.holds.contains(&copy)
    {
        holder.holds = holder.holds.iter().copied().chain([copy]).collect();
        if let Some(acquired) = step.acquired() {
            acquired.holds += 1;
        }
    }
}

/// An acquire outside its delivery window is executed.
pub(super) fn deliver_before_ignored(step: &mut Step<'_>) {
    let now = step.now();
    step.rerun_with_acquire(|request| request.deliver_before = now);
}

/// An acquire that skips a sequence is stale.
pub(super) fn stale_too_soon(step: &mut Step<'_>) {
    let (Command::Acquire(request), now) = (&step.command, step.now()) else {
        return;
    };
    let operation = request.operation;
    let mut watermarks = step.before.watermarks.iter_mut();
    if let Some(watermark) = watermarks.find(|it| it.session == operation.session && it.end > now)
        && operation.sequence > watermark.sequence + 1
    {
        (watermark.sequence, watermark.reason) = (operation.sequence, None);
        step.rerun();
    }
}

/// A nested hold that is refused extends the holder first.
///
/// Extends the holder before the check of the hold limit.
pub(super) fn write_before_refusal(step: &mut Step<'_>) {
    let Command::Acquire(request) = &step.command else {
        return;
    };
    let (lease, owner) = (request.lease, request.operation.owner);
    let id = (request.operation.session, owner.as_u64());
    if step.is_new() && step.acquired().is_some() {
        step.extend(lease);
    }
    let full = Reply::Acquire(AcquireReply::Refused(Refused::HoldLimit)) == step.reply;
    let end = step.in_time(lease);
    let mut holders = step.after.holders.iter_mut();
    if let Some(holder) = holders.find(|it| full && (it.session, it.id) == id) {
        holder.end = holder.end.max(end);
    }
}

/// A renewal revives a holder that is gone.
///
/// Acts like a renewal that sets an expiry without looking at the state.
pub(super) fn renew_revives(step: &mut Step<'_>) {
    let (Command::Renew(request), Reply::Renew(RenewReply::Lost(_))) = (&step.command, &step.reply)
    else {
        return;
    };
    let waits = |waiter: &WaiterParts| waiter.operation == request.operation;
    if !step.after.holders.is_empty() || step.after.waiters.iter().any(waits) {
        return;
    }
    let spec = step.after.spec.unwrap_or(LockSpec::mutex());
    let (key, lease) = (request.key.clone(), request.lease);
    let (mode, now) = (full_mode(spec), step.now());
    let grant = Acquire::new(key, spec, mode, request.operation, lease, now);
    let mut grant = Step {
        before: step.after.clone(),
        command: Command::Acquire(grant.expect("the lease is one of a renewal")),
        ..step.clone()
    };
    let watermarks = std::mem::take(&mut grant.before.watermarks);
    grant.rerun_without(|_| true);
    if let Reply::Acquire(AcquireReply::Acquired(acquired)) = grant.reply {
        let Acquired {
            token, remaining, ..
        } = acquired;
        step.reply = Reply::Renew(RenewReply::Renewed { token, remaining });
        step.after = grant.after;
        step.after.watermarks = watermarks;
    }
}

//! End reasons, forced releases and inspections.

use std::time::Duration;

use super::step::{Step, holder_mut};
use crate::machine::{Command, Payload, Reply};
use crate::reply::{ConvertReply, EndReason, ForceReply, PollReply, ReleaseReply, RenewReply};

/// Replaces the reason `from` in the reply by `to`.
fn replace_reason(step: &mut Step<'_>, from: EndReason, to: EndReason) {
    match &mut step.reply {
        Reply::Poll(PollReply::Gone(reason))
        | Reply::Renew(RenewReply::Lost(reason))
        | Reply::Release(ReleaseReply::NotHeld(reason))
        | Reply::Convert(ConvertReply::Lost(reason))
            if *reason == from =>
        {
            *reason = to;
        }
        _ => {}
    }
}

/// The end reason of an expired operation is `Unknown`.
pub(super) fn expiry_untold(step: &mut Step<'_>) {
    replace_reason(step, EndReason::Expired, EndReason::Unknown);
}

/// The end reason of a released operation is `Expired`.
pub(super) fn release_told_as_expiry(step: &mut Step<'_>) {
    replace_reason(step, EndReason::Released, EndReason::Expired);
}

/// A revoked holder is renewed.
pub(super) fn revoked_is_renewed(step: &mut Step<'_>) {
    let Command::Renew(request) = &step.command else {
        return;
    };
    let operation = request.operation;
    if let Some(holder) = holder_mut(&mut step.before, operation).filter(|it| it.revoked) {
        holder.revoked = false;
        step.rerun();
        if let Some(holder) = holder_mut(&mut step.after, operation) {
            holder.revoked = true;
        }
    }
}

/// No revocation is notified.
pub(super) fn revocation_untold(step: &mut Step<'_>) {
    (step.messages).retain(|it| !matches!(it.payload, Payload::Revoked { .. }));
}

/// The reply to a forced release counts all holders.
pub(super) fn force_counts_all(step: &mut Step<'_>) {
    let now = step.now();
    if let Reply::ForceRelease(ForceReply::Forced { holders }) = &mut step.reply {
        let live = step.before.holders.iter().filter(|it| it.end > now);
        *holders = u32::try_from(live.count()).unwrap_or(u32::MAX);
    }
}

/// An inspection shows expired holders.
pub(super) fn inspection_shows_expired(step: &mut Step<'_>) {
    if step.command != Command::Inspect {
        return;
    }
    let later = step.in_time(Duration::from_micros(1));
    let untouched = step.after.clone();
    for holder in &mut step.before.holders {
        holder.end = holder.end.max(later);
    }
    step.rerun();
    step.after = untouched;
}

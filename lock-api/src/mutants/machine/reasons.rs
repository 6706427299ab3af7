//! What is told of those who hold no more, forced releases, and inspections.

use std::time::Duration;

use super::{Step, holder_mut};
use crate::machine::{Command, Event, Reply};
use crate::reply::{ConvertReply, EndReply, ForceReply, PollReply, RenewReply, Why};

/// Says `to` wherever the reply says `from`.
fn tell(step: &mut Step<'_>, from: Why, to: Why) {
    match &mut step.reply {
        Reply::Poll(PollReply::Gone(why))
        | Reply::Renew(RenewReply::Lost(why))
        | Reply::End(EndReply::NotHeld(why))
        | Reply::Convert(ConvertReply::Lost(why))
            if *why == from =>
        {
            *why = to;
        }
        _ => {}
    }
}

pub(super) fn expiry_untold(step: &mut Step<'_>) {
    tell(step, Why::Expired, Why::Unknown);
}

pub(super) fn end_told_as_expiry(step: &mut Step<'_>) {
    tell(step, Why::Ended, Why::Expired);
}

pub(super) fn revoked_is_renewed(step: &mut Step<'_>) {
    let Command::Renew(request) = &step.command else {
        return;
    };
    let operation = request.operation;
    if let Some(tenure) = holder_mut(&mut step.before, operation).filter(|it| it.revoked) {
        tenure.revoked = false;
        step.again();
        if let Some(tenure) = holder_mut(&mut step.after, operation) {
            tenure.revoked = true;
        }
    }
}

pub(super) fn revocation_untold(step: &mut Step<'_>) {
    let is_revocation = |event| matches!(event, Event::Revoked { .. });
    step.messages.retain(|it| !is_revocation(it.event));
}

pub(super) fn force_counts_all(step: &mut Step<'_>) {
    let now = step.now();
    if let Reply::ForceRelease(ForceReply::Forced { tenures }) = &mut step.reply {
        let held = step.before.tenures.iter().filter(|it| it.end > now);
        *tenures = u32::try_from(held.count()).unwrap_or(u32::MAX);
    }
}

pub(super) fn inspection_shows_expired(step: &mut Step<'_>) {
    if step.command != Command::Inspect {
        return;
    }
    let later = step.in_time(Duration::from_micros(1));
    let untouched = step.after.clone();
    for tenure in &mut step.before.tenures {
        tenure.end = tenure.end.max(later);
    }
    step.again();
    step.after = untouched;
}

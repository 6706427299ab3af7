//! S3: a command changes only the holder that issued it, and an expired holder stays expired.

use std::time::Duration;

use leasehold_api::bounds::TOKEN_RETENTION;
use leasehold_api::machine::{Command, HolderParts, Reply};
use leasehold_api::{
    AcquireReply, ConvertReply, ForceMode, Mode, Operation, RenewReply, ServerTime,
};

use crate::checker::findings::Findings;
use crate::checker::step::{Name, Step, find, has, holder_of, name_of, names, waiter_of};

/// Checks how the step changed each holder. `forgets` tells whether the clock may have moved past the end
/// of a watermark, by which the key refuses late copies. Then an attempt that is repeated may be granted again.
pub(crate) fn check(step: &Step<'_>, forgets: bool, found: &mut Findings) {
    for holder in step.holders_before() {
        match find(step.after, holder) {
            // The usual case: another session's step, which left the holder unchanged.
            Some(after) if after == holder && !step.is_by(holder.session) => {}
            Some(after) if is_another(step, holder, after) => {}
            Some(after) => kept(step, holder, after, found),
            None if may_go(step, holder) => {}
            None => {
                let by = step.by();
                let text = format!("{by} removed a holder that is not its own: {holder:?}");
                found.add("S3", text);
            }
        }
    }
    for holder in step.holders_after() {
        let before = find(step.before, holder);
        let before = before.filter(|before| !is_another(step, before, holder));
        if before.is_some_and(|before| before.end > step.now) {
            continue;
        }
        let holds = before.map_or(&[][..], |before| &before.holds);
        if let Some((sequence, _)) = holds.iter().find(|(s, _)| has(holder, *s)) {
            let acquired = matches!(step.command, Command::Acquire(_))
                && step.is_of((holder.session, *sequence));
            let text = || format!("an expired hold is live again: {holder:?}");
            match (acquired, forgets) {
                (false, _) => found.add("S3", text()),
                (true, false) => found.add("rule 12", text()),
                (true, true) => {}
            }
        }
        begun(step, holder, found);
    }
    if let (Command::Convert(request), Reply::Convert(ConvertReply::Converted { .. })) =
        (step.command, step.reply)
        && let Some(own) = holder_of(step.before, name_of(request.operation))
        && own.token != request.expected
    {
        let text = format!("a conversion acted in another epoch than it names: {own:?}");
        found.add("S3", text);
    }
    stored(step, found);
}

/// Whether the step has released a holder, and granted a lock to a waiter of the same owner. Only an owner that takes its first
/// attempt for lost has a hold and a waiter, after a failover.
fn is_another(step: &Step<'_>, before: &HolderParts, after: &HolderParts) -> bool {
    may_go(step, before) && after.token != before.token
}

/// Whether the step may remove a live holder.
fn may_go(step: &Step<'_>, holder: &HolderParts) -> bool {
    match step.command {
        Command::Release(request) => {
            holder.session == request.operation.session
                && matches!(&holder.holds[..], [(only, _)] if *only == request.operation.sequence)
        }
        Command::ForceRelease(request) => {
            request.how == ForceMode::Now && request.tokens.contains(&holder.token)
        }
        _ => false,
    }
}

/// Whether the step may add this hold: by its own acquire within the delivery window, or by a grant to
/// its waiter.
fn may_come(step: &Step<'_>, name: Name) -> bool {
    let acquired = matches!(
        (step.command, step.reply),
        (Command::Acquire(request), Reply::Acquire(AcquireReply::Acquired(_)))
            if request.deliver_before >= step.now
    );
    (acquired && step.is_of(name)) || step.waiting(name).is_some()
}

fn kept(step: &Step<'_>, before: &HolderParts, after: &HolderParts, found: &mut Findings) {
    for (sequence, mode) in &before.holds {
        let own = step.is_of((before.session, *sequence));
        let released = own && matches!(step.command, Command::Release(_));
        let is = after.holds.iter().find(|(s, _)| s == sequence);
        match is {
            None if released => {}
            None => found.add("S3", format!("hold {sequence} of {before:?} is gone")),
            Some(_) if released => {
                let text = format!("hold {sequence} outlives its release: {after:?}");
                found.add("S3", text);
            }
            Some((_, now)) if now == mode || (own && converted(step, *now)) => {}
            Some(_) => found.add("S3", format!("hold {sequence} of {before:?} changed mode")),
        }
    }
    for name in names(after) {
        let sequence = name.1;
        if !has(before, sequence) && !may_come(step, name) {
            let text = format!("hold {sequence} was neither requested nor queued: {after:?}");
            found.add("reentrancy", text);
        }
    }
    if after.revoked != before.revoked && !revokes(step, before) {
        found.add("S3", format!("revoked by {}: {after:?}", step.by()));
    }
    moved(step, before, after, found);
}

fn converted(step: &Step<'_>, to: Mode) -> bool {
    matches!(
        (step.command, step.reply),
        (Command::Convert(request), Reply::Convert(ConvertReply::Converted { .. }))
            if request.to == to
    )
}

fn revokes(step: &Step<'_>, holder: &HolderParts) -> bool {
    matches!(step.command, Command::ForceRelease(request) if request.tokens.contains(&holder.token))
}

/// Checks how the expiry of a holder moved: never back, and only by its own command.
fn moved(step: &Step<'_>, before: &HolderParts, after: &HolderParts, found: &mut Findings) {
    let own = step
        .own
        .is_some_and(|own| own.session == after.session && has(after, own.sequence));
    let asked = match (step.command, step.reply) {
        (Command::Renew(request), Reply::Renew(RenewReply::Renewed { .. }))
            if own && !before.revoked =>
        {
            Some(request.lease)
        }
        (Command::Acquire(request), Reply::Acquire(AcquireReply::Acquired(_)))
            if own && !has(before, request.operation.sequence) && !before.revoked =>
        {
            Some(request.lease)
        }
        _ => None,
    };
    let offers =
        names(after).filter(|name| !has(before, name.1) && waiter_of(step.before, *name).is_some());
    let offered = offers.filter_map(|name| granted_until(step, name)).max();
    let least = asked.map_or(before.end, |lease| {
        before.end.max(step.now.saturating_add(lease))
    });
    let most = least.max(offered.unwrap_or_default());
    if after.end < least {
        let text = format!("{} shortened {before:?}", step.by());
        found.add("rule 5", text);
    } else if after.end > most {
        found.add("S3", format!("{} extended {before:?}", step.by()));
    }
}

/// Checks the expiry of a new holder: an immediate grant has its full lease, and an offer ends as
/// rule 10 says.
fn begun(step: &Step<'_>, holder: &HolderParts, found: &mut Findings) {
    let mut end = None;
    for name in names(holder) {
        if !may_come(step, name) {
            let by = step.by();
            let text =
                format!("{by} made a holder that was neither requested nor queued: {holder:?}");
            return found.add("S3", text);
        }
        end = end.max(granted_until(step, name));
    }
    if end.is_some_and(|end| end != holder.end) {
        let text = format!("a grant does not expire at {end:?}: {holder:?}");
        found.add("rule 10", text);
    }
}

/// The expiry that the rules give to a grant made in this step.
fn granted_until(step: &Step<'_>, name: Name) -> Option<ServerTime> {
    let own = step.is_of(name);
    match (step.command, step.waiting(name)) {
        (Command::Acquire(request), None) if own => Some(step.now.saturating_add(request.lease)),
        (Command::Renew(request), Some(waiter)) if own => {
            let offer = step.offer_end(waiter, waiter.end);
            Some(offer.max(step.now.saturating_add(request.lease)))
        }
        (Command::Poll(_), Some(waiter)) if own => {
            Some(step.offer_end(waiter, step.polled_end(waiter)))
        }
        (_, Some(waiter)) => Some(step.offer_end(waiter, waiter.end)),
        _ => None,
    }
}

/// Rule 14: the stored end covers every holder and waiter, and the token for its retention.
fn stored(step: &Step<'_>, found: &mut Findings) {
    let ends = step.after.holders.iter().map(|t| t.end);
    let waiters = step.after.waiters.iter().map(|p| p.end);
    let last = ends.chain(waiters).max();
    let covers =
        |by: Duration| last.is_none_or(|end| end.saturating_add(by) <= step.after.stored_end);
    if !covers(TOKEN_RETENTION) {
        let stored = step.after.stored_end;
        let text = format!("the stored end {stored:?} does not cover {last:?} and the token");
        found.add("rule 14", text);
    }
}

/// Whether an operation has a hold or a waiter after the step.
pub(crate) fn lives(step: &Step<'_>, operation: Operation) -> bool {
    step.holding(name_of(operation)).is_some()
        || step.waiters_after().any(|p| p.operation == operation)
}

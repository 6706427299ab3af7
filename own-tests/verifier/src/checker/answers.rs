//! Rules 2, 3, 5, 6: the details of a reply. These are the holds that are left, the number of
//! revoked holders, the time of the next change, the limit that was reached, and the result of an
//! inspection.

use leasehold_api::bounds::{DELIVERY_WINDOW, MAX_FLOOR, MAX_FLOOR_AHEAD};
use leasehold_api::machine::{Command, HolderParts, Reply};
use leasehold_api::{
    Acquire, AcquireReply, Contended, ConvertReply, ForceMode, ForceRelease, ForceReply,
    HolderStatus, InspectReply, Kind, Limits, Mode, Operation, PollReply, Queued, Refused,
    ReleaseReply, RenewReply, ServerTime,
};

use crate::checker::Findings;
use crate::checker::step::{Step, find, holder_of, mode, waiter_of};

pub(crate) fn check(step: &Step<'_>, found: &mut Findings) {
    match (step.command, step.reply) {
        (Command::Release(request), Reply::Release(reply)) => {
            released(step, request.operation, *reply, found);
        }
        (Command::ForceRelease(request), Reply::ForceRelease(reply)) => {
            forced(step, request, *reply, found);
        }
        (Command::Acquire(request), Reply::Acquire(reply)) => acquire(step, request, reply, found),
        (_, Reply::Poll(PollReply::Queued(queued))) => comes_back(step, queued, found),
        (_, Reply::Renew(RenewReply::Renewed { .. })) => revoked(step, found),
        (Command::Convert(request), Reply::Convert(reply)) => {
            converted(step, request.operation, request.to, *reply, found);
            if let ConvertReply::WrongEpoch(view) = reply {
                shown(step, request.operation, *view, found);
                if view.token == request.expected {
                    found.add("rule 6", "WrongEpoch names the expected epoch".into());
                }
            }
        }
        (_, Reply::Inspect(reply)) => inspected(step, reply, found),
        _ => {}
    }
}

/// The live holder of an operation before the step.
fn live_holder<'a>(step: &'a Step<'_>, operation: Operation) -> Option<&'a HolderParts> {
    holder_of(step.before, operation.session, operation.sequence).filter(|t| t.end > step.now)
}

fn was_waiting(step: &Step<'_>, operation: Operation) -> bool {
    waiter_of(step.before, operation.session, operation.sequence).is_some_and(|p| p.end > step.now)
}

/// The id of an operation's holder within its session.
fn id(step: &Step<'_>, operation: Operation) -> u64 {
    match step.spec().map(|spec| spec.kind()) {
        Some(Kind::Semaphore) => operation.sequence,
        _ => operation.owner.as_u64(),
    }
}

/// A release reports what it released, and the holds that its owner has left.
fn released(step: &Step<'_>, operation: Operation, reply: ReleaseReply, found: &mut Findings) {
    let (held, waited) = (
        live_holder(step, operation).is_some(),
        was_waiting(step, operation),
    );
    let true_to_it = match reply {
        // A waiter may have been granted in this step.
        ReleaseReply::Released { .. } => held || waited,
        ReleaseReply::Left => waited && !held,
        ReleaseReply::NotHeld(_) => !held && !waited,
    };
    if !true_to_it {
        let text = format!("{operation:?} (held: {held}, waited: {waited}) got {reply:?}");
        found.add("rule 2", text);
    }
    let ReleaseReply::Released { holds_left, holder } = reply else {
        return;
    };
    let id = id(step, operation);
    let own = |t: &&HolderParts| t.session == operation.session && t.id == id;
    let others = |t: &HolderParts| {
        let holds = t.holds.iter();
        holds.filter(|(s, _)| *s != operation.sequence).count()
    };
    let (before, after) = (
        step.holders_before().find(own),
        step.holders_after().find(own),
    );
    // Another operation of its owner may be granted in this step, before the reply or after it.
    let least = before.map_or(0, others);
    let most = after.map_or(0, |after| after.holds.len());
    let left = holds_left as usize;
    if left < least || left > most || holder.is_some() != (left > 0) {
        let text = format!("{operation:?} got {reply:?} and has {least} to {most} holds left");
        found.add("reentrancy", text);
    }
    if let (Some(view), Some(after)) = (holder, after)
        && left == most
    {
        view_of(step, view, after, found);
    }
}

/// A reported status is that of the operation's holder.
fn shown(step: &Step<'_>, operation: Operation, view: HolderStatus, found: &mut Findings) {
    if let Some(after) = holder_of(step.after, operation.session, operation.sequence) {
        view_of(step, view, after, found);
    }
}

fn view_of(step: &Step<'_>, view: HolderStatus, holder: &HolderParts, found: &mut Findings) {
    // Readers with a higher floor that are granted after the reply start another epoch.
    let raised = view.token < holder.token && step.floor() >= view.token.get();
    let same = (view.token == holder.token || raised)
        && view.mode == mode(holder)
        && step.now.saturating_add(view.remaining) == holder.end;
    if !same {
        let text = format!("{view:?} at {:?} is not {holder:?}", step.now);
        found.add("rule 2", text);
    }
}

/// A conversion that takes effect leaves its hold in the target mode.
fn converted(
    step: &Step<'_>,
    operation: Operation,
    to: Mode,
    reply: ConvertReply,
    found: &mut Findings,
) {
    let after = holder_of(step.after, operation.session, operation.sequence);
    let Some(holder) = after.filter(|_| matches!(reply, ConvertReply::Converted { .. })) else {
        return;
    };
    let own = holder.holds.iter().find(|(s, _)| *s == operation.sequence);
    if own.is_some_and(|(_, mode)| *mode != to) {
        found.add("rule 6", format!("converted to {to:?}: {holder:?}"));
    }
}

/// A revoked holder is not renewed.
fn revoked(step: &Step<'_>, found: &mut Findings) {
    let holder = step.operation().and_then(|own| live_holder(step, own));
    if let Some(holder) = holder.filter(|holder| holder.revoked) {
        found.add(
            "forced release",
            format!("renewed after its revocation: {holder:?}"),
        );
    }
}

/// A forced release reports the number of holders that it revoked, and touches no others.
fn forced(step: &Step<'_>, request: &ForceRelease, reply: ForceReply, found: &mut Findings) {
    let named = |t: &&HolderParts| request.tokens.contains(&t.token);
    let count = match request.how {
        ForceMode::Revoke => step.holders_after().filter(named).count(),
        ForceMode::Now => {
            let gone = |t: &&HolderParts| find(step.after, t).is_none();
            step.holders_before().filter(named).filter(gone).count()
        }
    };
    let reported = match reply {
        ForceReply::Forced { holders } => holders as usize,
        ForceReply::WrongEpoch => 0,
    };
    let untouched = step.holders_after().filter(named).find(|t| !t.revoked);
    if reported != count || untouched.is_some() {
        let text = format!("{reply:?} for {count} holders with {:?}", request.tokens);
        found.add("forced release", text);
    }
}

fn acquire(step: &Step<'_>, request: &Acquire, reply: &AcquireReply, found: &mut Findings) {
    let operation = request.operation;
    let live = live_holder(step, operation).is_some() || was_waiting(step, operation);
    match reply {
        AcquireReply::Acquired(acquired) if !live => {
            let Limits {
                holds,
                holders: limit,
                ..
            } = request.limits;
            let holders = step.holders_after().count();
            if acquired.holds > holds || (acquired.holds == 1 && holders > limit as usize) {
                let text = format!("granted beyond {:?}: {:?}", request.limits, step.after);
                found.add("limits", text);
            }
        }
        AcquireReply::Queued(queued) => {
            comes_back(step, queued, found);
            if !live && request.wait.is_none() {
                found.add("rule 2", format!("{operation:?} was queued by a try"));
            }
        }
        AcquireReply::Contended(held) => kept_out(step, request, held, found),
        AcquireReply::Refused(refused) => refusal(step, request, *refused, found),
        AcquireReply::Acquired(_) => {}
    }
}

/// When the first holder expires, but at least 1 ms from now (rule 3).
fn changes(step: &Step<'_>) -> Option<ServerTime> {
    let soonest = step.now.saturating_add(std::time::Duration::from_millis(1));
    step.holders_after()
        .map(|holder| holder.end.max(soonest))
        .min()
}

/// A try is told when to retry. An acquire that may wait is queued instead.
fn kept_out(step: &Step<'_>, request: &Acquire, held: &Contended, found: &mut Findings) {
    let over = |until: ServerTime| until <= step.now;
    let gives_up = |wait: leasehold_api::Wait| wait.wait_until.is_some_and(over);
    if !request.wait.is_none_or(gives_up) {
        let text = format!("{:?} may wait, and was not queued", request.operation);
        found.add("rule 2", text);
    }
    let at = step.now.saturating_add(held.retry_after);
    if let Some(end) = changes(step).filter(|end| at > *end) {
        let text = format!("{held:?} at {:?}: a holder expires at {end:?}", step.now);
        found.add("rule 3", text);
    }
}

/// Rule 3: the first waiter polls when the key may become free.
fn comes_back(step: &Step<'_>, queued: &Queued, found: &mut Findings) {
    let at = step.now.saturating_add(queued.poll_after);
    if queued.ahead == 0
        && let Some(end) = changes(step).filter(|end| at > *end)
    {
        let text = format!("{queued:?} at {:?}: a holder expires at {end:?}", step.now);
        found.add("rule 3", text);
    }
}

/// The reason of a refusal is true.
fn refusal(step: &Step<'_>, request: &Acquire, refused: Refused, found: &mut Findings) {
    let id = request.operation.owner.as_u64();
    let holders = || step.holders_after().count();
    let is = match refused {
        Refused::TooLate => outside(step, request),
        Refused::FloorTooHigh => request.floor.is_some_and(|floor| {
            let known = step.now.max(ServerTime::from_micros(step.before.token));
            let ahead = known.saturating_add(MAX_FLOOR_AHEAD).as_micros();
            floor.get() > ahead.min(MAX_FLOOR)
        }),
        Refused::Mismatch { lives_with } => {
            step.after.spec == Some(lives_with)
                && lives_with != request.spec
                && (holders() > 0 || step.waiters_after().next().is_some())
        }
        Refused::QueueFull => step.waiters_after().count() >= request.limits.waiters as usize,
        Refused::HoldersFull => holders() >= request.limits.holders as usize,
        Refused::HoldLimit => step.holders_after().any(|t| {
            let own = t.session == request.operation.session && t.id == id;
            own && t.holds.len() >= request.limits.holds as usize
        }),
        // Checked in `reasons` and in `replies`.
        Refused::Stale | Refused::WouldDeadlock => true,
    };
    if !is {
        let text = format!("{:?} was refused: {refused:?}", request.operation);
        found.add("refusal", text);
    }
    let was =
        live_holder(step, request.operation).is_some() || was_waiting(step, request.operation);
    let before_settling = matches!(refused, Refused::TooLate | Refused::FloorTooHigh);
    if was && !before_settling {
        let text = format!("{:?} is live, and was refused", request.operation);
        found.add("rule 12", text);
    }
}

/// Whether an acquire arrives outside of its delivery window.
pub(crate) fn outside(step: &Step<'_>, request: &Acquire) -> bool {
    let latest = step.now.saturating_add(DELIVERY_WINDOW);
    request.deliver_before < step.now || request.deliver_before > latest
}

/// An inspection changes nothing, and shows the live holders and waiters.
fn inspected(step: &Step<'_>, reply: &InspectReply, found: &mut Findings) {
    let forgotten = step.now >= step.before.stored_end;
    if forgotten {
        return;
    }
    if step.before != step.after {
        found.add("S3", "an inspection changed something".into());
    }
    let mut shown: Vec<_> = reply.holders.iter().collect();
    shown.sort_by_key(|view| (view.remaining, view.token));
    let mut stood: Vec<_> = step.holders_before().collect();
    stood.sort_by_key(|holder| (holder.end, holder.token));
    let same = shown.len() == stood.len()
        && reply.holder_count as usize == stood.len()
        && reply.waiter_count as usize == step.waiters_before().count()
        && shown.iter().zip(&stood).all(|(view, holder)| {
            view.token == holder.token && step.now.saturating_add(view.remaining) == holder.end
        });
    if !same {
        let text = format!("{reply:?} for {:?} at {:?}", step.before, step.now);
        found.add("inspection", text);
    }
}

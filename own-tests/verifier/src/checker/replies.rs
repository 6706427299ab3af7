//! Rules 2, 3, 12, 15: replies are true at their execution, late commands have no effect, and
//! tokens number epochs (exclusive holders, and groups of overlapping readers).

use leasehold_api::bounds::MAX_POLL_INTERVAL;
use leasehold_api::machine::{Command, HolderParts, Reply, StateParts};
use leasehold_api::{
    Acquire, AcquireReply, Acquired, ConvertReply, FencingToken, Kind, Mode, PollReply, Queued,
    Refused, ReleaseReply, RenewReply, ServerTime,
};

use crate::checker::Findings;
use crate::checker::holders::lives;
use crate::checker::step::{Step, find, has, holder_of, mode, name, waiter_of};

pub(crate) fn check(step: &Step<'_>, found: &mut Findings) {
    match (step.command, step.reply) {
        (Command::Acquire(request), Reply::Acquire(reply)) => acquire(step, request, reply, found),
        (_, Reply::Poll(PollReply::Acquired(acquired))) => holds(step, acquired, found),
        (_, Reply::Poll(PollReply::Queued(queued))) => waits(step, queued, found),
        (_, Reply::Renew(RenewReply::Renewed { token, remaining })) => {
            let reported = (Some(*token), step.now.saturating_add(*remaining));
            stands(step, reported, found);
        }
        (Command::Convert(request), Reply::Convert(reply)) => match reply {
            ConvertReply::Converted { token, remaining } => {
                stands(
                    step,
                    (Some(*token), step.now.saturating_add(*remaining)),
                    found,
                );
                let own = holder_of(
                    step.before,
                    request.operation.session,
                    request.operation.sequence,
                );
                if own.is_some_and(|own| own.token != request.expected) {
                    found.add("rule 6", "a conversion of another epoch took effect".into());
                }
                sole(step, request.to, found);
            }
            ConvertReply::WrongEpoch(view) => {
                let reported = (Some(view.token), step.now.saturating_add(view.remaining));
                stands(step, reported, found);
            }
            ConvertReply::Lost(_) => lost(step, found),
            ConvertReply::NotSoleHolder => {}
        },
        (Command::Release(_), Reply::Release(reply)) => {
            let left = matches!(reply, ReleaseReply::Released { .. } | ReleaseReply::Left);
            let operation = step.operation();
            if operation.is_some_and(|operation| lives(step, operation)) {
                found.add(
                    "rule 11",
                    format!("the operation is live after its release (released: {left})"),
                );
            }
        }
        (_, Reply::Poll(PollReply::Gone(_))) => gone(step, found),
        (_, Reply::Renew(RenewReply::Lost(_))) => lost(step, found),
        _ => {}
    }
    tokens(step, found);
}

fn acquire(step: &Step<'_>, request: &Acquire, reply: &AcquireReply, found: &mut Findings) {
    match reply {
        AcquireReply::Acquired(acquired) => holds(step, acquired, found),
        AcquireReply::Queued(queued) => waits(step, queued, found),
        AcquireReply::Contended(_) => {}
        AcquireReply::Refused(refused) => refusal(step, request, *refused, found),
    }
    let operation = request.operation;
    let was = |facts: &StateParts| {
        holder_of(facts, operation.session, operation.sequence).is_some()
            || waiter_of(facts, operation.session, operation.sequence).is_some()
    };
    if request.deliver_before < step.now && was(step.after) && !was(step.before) {
        found.add(
            "rule 12",
            format!("{operation:?} took effect after its delivery window"),
        );
    }
}

fn refusal(step: &Step<'_>, request: &Acquire, refused: Refused, found: &mut Findings) {
    // The read hold may have been granted to a waiter in this step.
    let owner = step.holders_after().find(|t| {
        t.session == request.operation.session
            && t.id == request.operation.owner.as_u64()
            && !matches!(request.mode, Mode::Permits(_))
    });
    if refused == Refused::WouldDeadlock {
        let reads = owner.is_some_and(|holder| mode(holder) == Mode::Shared);
        if !reads || request.mode != Mode::Exclusive {
            found.add("rule 5", "WouldDeadlock without a read hold".into());
        }
    }
}

/// The operation holds, with this token and this expiry.
fn stands(
    step: &Step<'_>,
    (token, until): (Option<FencingToken>, ServerTime),
    found: &mut Findings,
) {
    let Some(own) = step.operation() else {
        return;
    };
    let Some(holder) = holder_of(step.after, own.session, own.sequence) else {
        let text = format!(
            "{} reports a hold that {own:?} does not have",
            name(step.command)
        );
        found.add("rule 2", text);
        return;
    };
    if holder.end != until || until <= step.now {
        let text = format!(
            "{} reports the expiry {until:?}: {holder:?} at {:?}",
            name(step.command),
            step.now
        );
        found.add("rule 2", text);
    }
    // Readers with a higher floor that are granted after the reply start another epoch.
    let raised = |token: FencingToken| token < holder.token && step.floor() >= token.get();
    if token.is_some_and(|token| token != holder.token && !raised(token)) {
        let text = format!("{} reports {token:?}: {holder:?}", name(step.command));
        found.add("rule 15", text);
    }
}

fn holds(step: &Step<'_>, acquired: &Acquired, found: &mut Findings) {
    let until = step.now.saturating_add(acquired.remaining);
    stands(step, (Some(acquired.token), until), found);
    let own = step
        .operation()
        .and_then(|own| holder_of(step.after, own.session, own.sequence));
    if own.is_some_and(|holder| holder.holds.len() != acquired.holds as usize) {
        found.add(
            "reentrancy",
            format!("{acquired:?} reports another number of holds: {own:?}"),
        );
    }
}

fn waits(step: &Step<'_>, queued: &Queued, found: &mut Findings) {
    let Some(own) = step.operation() else {
        return;
    };
    let Some(waiter) = waiter_of(step.after, own.session, own.sequence) else {
        found.add("rule 2", format!("{own:?} has no waiter"));
        return;
    };
    if waiter.end != step.now.saturating_add(queued.waiter_remaining) || waiter.end <= step.now {
        found.add(
            "rule 2",
            format!("{queued:?} for {waiter:?} at {:?}", step.now),
        );
    }
    let poll = step.spec().map(|spec| spec.poll_interval());
    if queued.poll_after > poll.unwrap_or(MAX_POLL_INTERVAL) {
        found.add("rule 3", format!("{queued:?} polls too late"));
    }
    let ahead = step
        .after
        .waiters
        .iter()
        .filter(|p| p.ticket < waiter.ticket);
    if ahead.count() > queued.ahead as usize {
        found.add("rule 7", format!("{queued:?} has more waiters ahead"));
    }
}

/// The operation neither holds nor waits.
fn gone(step: &Step<'_>, found: &mut Findings) {
    let Some(own) = step.operation() else { return };
    if lives(step, own) {
        let text = format!("{} reports that {own:?} is gone", name(step.command));
        found.add("rule 2", text);
    }
}

/// The operation does not hold, or its holder is revoked. It may wait: a server that lost the grant
/// may still have the waiter.
fn lost(step: &Step<'_>, found: &mut Findings) {
    let Some(own) = step.operation() else { return };
    let holder = holder_of(step.after, own.session, own.sequence);
    if let Some(holder) = holder.filter(|holder| holder.end > step.now && !holder.revoked) {
        let text = format!("{} reports a loss: {holder:?}", name(step.command));
        found.add("rule 2", text);
    }
}

/// Rule 6: only the sole holder upgrades.
fn sole(step: &Step<'_>, to: Mode, found: &mut Findings) {
    if to == Mode::Exclusive && step.holders_after().count() > 1 {
        found.add(
            "rule 6",
            format!("upgraded next to other holders: {:?}", step.after),
        );
    }
}

/// Rule 15: the token of a new epoch is greater than the last, and at least the server's time.
fn tokens(step: &Step<'_>, found: &mut Findings) {
    let (before, after) = (step.before.token, step.after.token);
    let forgotten = step.now >= step.before.stored_end;
    if after < before && !forgotten {
        found.add("S4", format!("the token fell from {before} to {after}"));
    }
    let starts = starts_epoch(step);
    if starts && (after <= before && !forgotten || after < step.now.as_micros()) {
        let text = format!("an epoch began with {after}, the last token was {before}");
        found.add("rule 15", text);
    }
    if !starts && after != before && !forgotten && !may_start(step) {
        let text = format!("{} changed the token of an epoch", name(step.command));
        found.add("rule 15", text);
    }
}

/// Whether an epoch must have begun in this step.
fn starts_epoch(step: &Step<'_>) -> bool {
    let reads = |holder: &HolderParts| mode(holder) == Mode::Shared;
    // A waiter that blocked readers may have expired. The readers then join the epoch of a hold
    // that this same step removes.
    let cleared = step
        .before
        .waiters
        .iter()
        .any(|waiter| waiter.end <= step.now);
    let goes_on = step
        .holders_before()
        .filter(|holder| reads(holder))
        .any(|holder| {
            let after = find(step.after, holder);
            cleared || after.is_some_and(|after| after.end > step.now && reads(after))
        });
    step.holders_after().any(|holder| {
        let before = find(step.before, holder).filter(|before| before.end > step.now);
        match before {
            None => !reads(holder) || !goes_on,
            Some(before) => mode(before) != mode(holder),
        }
    })
}

/// Whether an epoch may have begun: by readers that were granted and released in this step, by a
/// floor above the token, or by the conversion of one hold among others.
fn may_start(step: &Step<'_>) -> bool {
    let semaphore = step.spec().is_some_and(|s| s.kind() == Kind::Semaphore);
    let converted = matches!(step.reply, Reply::Convert(ConvertReply::Converted { .. }));
    let floor = step.floor();
    let freed = step
        .before
        .holders
        .iter()
        .any(|t| find(step.after, t).is_none());
    let offers = step.before.waiters.iter().any(|p| {
        holder_of(step.after, p.operation.session, p.operation.sequence)
            .is_some_and(|t| has(t, p.operation.sequence))
    });
    // An offer that is granted and released in one step leaves its token.
    let passed = matches!(step.command, Command::Release(_))
        && step
            .waiters_before()
            .any(|p| step.is_of(p.operation.session, p.operation.sequence));
    semaphore || converted || passed || floor > step.before.token || (freed && offers)
}

//! Rules 2, 3, 12, 15: replies tell the truth of their own execution, late commands have no
//! effect, and tokens number periods.

use leasehold_api::bounds::MAX_POLL_INTERVAL;
use leasehold_api::machine::{Command, Facts, Reply, TenureFacts};
use leasehold_api::{
    Acquire, AcquireReply, Acquired, ConvertReply, EndReply, FencingToken, Kind, Mode, PollReply,
    Queued, Refused, RenewReply, ServerTime,
};

use crate::checker::Findings;
use crate::checker::holders::lives;
use crate::checker::step::{Step, find, has, mode, name, place_of, tenure_of};

pub(crate) fn check(step: &Step<'_>, found: &mut Findings) {
    match (step.command, step.reply) {
        (Command::Acquire(request), Reply::Acquire(reply)) => acquire(step, request, reply, found),
        (_, Reply::Poll(PollReply::Acquired(acquired))) => holds(step, acquired, found),
        (_, Reply::Poll(PollReply::Queued(queued))) => waits(step, queued, found),
        (_, Reply::Renew(RenewReply::Renewed { token, remaining })) => {
            let told = (Some(*token), step.now.saturating_add(*remaining));
            stands(step, told, found);
        }
        (Command::Convert(request), Reply::Convert(reply)) => match reply {
            ConvertReply::Converted { token, remaining } => {
                stands(
                    step,
                    (Some(*token), step.now.saturating_add(*remaining)),
                    found,
                );
                let own = tenure_of(
                    step.before,
                    request.operation.session,
                    request.operation.sequence,
                );
                if own.is_some_and(|own| own.token != request.expected) {
                    found.add("rule 6", "a conversion of another period acted".into());
                }
                sole(step, request.to, found);
            }
            ConvertReply::WrongPeriod(view) => {
                let told = (Some(view.token), step.now.saturating_add(view.remaining));
                stands(step, told, found);
            }
            ConvertReply::Lost(_) => lost(step, found),
            ConvertReply::NotSole => {}
        },
        (Command::End(_), Reply::End(reply)) => {
            let left = matches!(reply, EndReply::Released { .. } | EndReply::Left);
            let operation = step.operation();
            if operation.is_some_and(|operation| lives(step, operation)) {
                found.add(
                    "rule 11",
                    format!("an end left its operation, left: {left}"),
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
        AcquireReply::Held(_) => {}
        AcquireReply::Refused(refused) => refusal(step, request, *refused, found),
    }
    let operation = request.operation;
    let was = |facts: &Facts| {
        tenure_of(facts, operation.session, operation.sequence).is_some()
            || place_of(facts, operation.session, operation.sequence).is_some()
    };
    if request.deliver_before < step.now && was(step.after) && !was(step.before) {
        found.add("rule 12", format!("{operation:?} acted after its window"));
    }
}

fn refusal(step: &Step<'_>, request: &Acquire, refused: Refused, found: &mut Findings) {
    // Its read may have been granted out of the queue in this very step.
    let owner = step.stands().find(|t| {
        t.session == request.operation.session
            && t.id == request.operation.owner.as_u64()
            && !matches!(request.mode, Mode::Permits(_))
    });
    if refused == Refused::WouldDeadlock {
        let reads = owner.is_some_and(|tenure| mode(tenure) == Mode::Shared);
        if !reads || request.mode != Mode::Exclusive {
            found.add("rule 5", "WouldDeadlock without a read hold".into());
        }
    }
}

/// The operation holds, with this token and this end.
fn stands(
    step: &Step<'_>,
    (token, until): (Option<FencingToken>, ServerTime),
    found: &mut Findings,
) {
    let Some(own) = step.operation() else {
        return;
    };
    let Some(tenure) = tenure_of(step.after, own.session, own.sequence) else {
        let text = format!("{} says that {own:?} holds", name(step.command));
        found.add("rule 2", text);
        return;
    };
    if tenure.end != until || until <= step.now {
        let text = format!(
            "{} says that it lasts until {until:?}: {tenure:?} at {:?}",
            name(step.command),
            step.now
        );
        found.add("rule 2", text);
    }
    // Readers with a higher floor, let in after the reply was made, start another period.
    let raised = |token: FencingToken| token < tenure.token && step.floor() >= token.get();
    if token.is_some_and(|token| token != tenure.token && !raised(token)) {
        let text = format!("{} told {token:?} of {tenure:?}", name(step.command));
        found.add("rule 15", text);
    }
}

fn holds(step: &Step<'_>, acquired: &Acquired, found: &mut Findings) {
    let until = step.now.saturating_add(acquired.remaining);
    stands(step, (Some(acquired.token), until), found);
    let own = step
        .operation()
        .and_then(|own| tenure_of(step.after, own.session, own.sequence));
    if own.is_some_and(|tenure| tenure.holds.len() != acquired.holds as usize) {
        found.add(
            "reentrancy",
            format!("{acquired:?} counts otherwise: {own:?}"),
        );
    }
}

fn waits(step: &Step<'_>, queued: &Queued, found: &mut Findings) {
    let Some(own) = step.operation() else {
        return;
    };
    let Some(place) = place_of(step.after, own.session, own.sequence) else {
        found.add("rule 2", format!("{own:?} has no place"));
        return;
    };
    if place.end != step.now.saturating_add(queued.place_remaining) || place.end <= step.now {
        found.add(
            "rule 2",
            format!("{queued:?} of {place:?} at {:?}", step.now),
        );
    }
    let poll = step.spec().map(|spec| spec.poll_interval());
    if queued.check_in > poll.unwrap_or(MAX_POLL_INTERVAL) {
        found.add("rule 3", format!("{queued:?} comes back too late"));
    }
    let ahead = step.after.places.iter().filter(|p| p.ticket < place.ticket);
    if ahead.count() > queued.ahead as usize {
        found.add("rule 7", format!("{queued:?} has more ahead of it"));
    }
}

/// The operation neither holds nor waits.
fn gone(step: &Step<'_>, found: &mut Findings) {
    let Some(own) = step.operation() else { return };
    if lives(step, own) {
        let text = format!("{} says that {own:?} is gone", name(step.command));
        found.add("rule 2", text);
    }
}

/// The operation does not hold, or may not be renewed. It may wait: a server that lost its grant
/// may still have its place.
fn lost(step: &Step<'_>, found: &mut Findings) {
    let Some(own) = step.operation() else { return };
    let tenure = tenure_of(step.after, own.session, own.sequence);
    if let Some(tenure) = tenure.filter(|tenure| tenure.end > step.now && !tenure.revoked) {
        let text = format!("{} says that it is lost: {tenure:?}", name(step.command));
        found.add("rule 2", text);
    }
}

/// Rule 6: an upgrade is for the sole holder.
fn sole(step: &Step<'_>, to: Mode, found: &mut Findings) {
    if to == Mode::Exclusive && step.stands().count() > 1 {
        found.add(
            "rule 6",
            format!("upgraded beside others: {:?}", step.after),
        );
    }
}

/// Rule 15: a token numbers a period; the next is greater, and at least the server's time.
fn tokens(step: &Step<'_>, found: &mut Findings) {
    let (before, after) = (step.before.token, step.after.token);
    let forgotten = step.now >= step.before.stored_end;
    if after < before && !forgotten {
        found.add("S4", format!("the token fell from {before} to {after}"));
    }
    let starts = starts_period(step);
    if starts && (after <= before && !forgotten || after < step.now.as_micros()) {
        let text = format!("a period began with {after}, the last was {before}");
        found.add("rule 15", text);
    }
    if !starts && after != before && !forgotten && !may_start(step) {
        let text = format!("{} changed the token of a period", name(step.command));
        found.add("rule 15", text);
    }
}

/// Whether a period must have begun in this step.
fn starts_period(step: &Step<'_>) -> bool {
    let reads = |tenure: &TenureFacts| mode(tenure) == Mode::Shared;
    // Readers may join a period through a place that was in their way and has expired, in the very
    // step that ends the hold which they join.
    let cleared = step.before.places.iter().any(|place| place.end <= step.now);
    let goes_on = step.stood().filter(|tenure| reads(tenure)).any(|tenure| {
        let after = find(step.after, tenure);
        cleared || after.is_some_and(|after| after.end > step.now && reads(after))
    });
    step.stands().any(|tenure| {
        let before = find(step.before, tenure).filter(|before| before.end > step.now);
        match before {
            None => !reads(tenure) || !goes_on,
            Some(before) => mode(before) != mode(tenure),
        }
    })
}

/// Whether one may have begun: readers that came and went within it, a floor above the token, a
/// conversion of one hold among others.
fn may_start(step: &Step<'_>) -> bool {
    let semaphore = step.spec().is_some_and(|s| s.kind() == Kind::Semaphore);
    let converted = matches!(step.reply, Reply::Convert(ConvertReply::Converted { .. }));
    let floor = step.floor();
    let freed = step
        .before
        .tenures
        .iter()
        .any(|t| find(step.after, t).is_none());
    let claims = step.before.places.iter().any(|p| {
        tenure_of(step.after, p.operation.session, p.operation.sequence)
            .is_some_and(|t| has(t, p.operation.sequence))
    });
    // A claim that is granted and ended in one step leaves its token.
    let passed = matches!(step.command, Command::End(_))
        && step
            .waited()
            .any(|p| step.is_of(p.operation.session, p.operation.sequence));
    semaphore || converted || passed || floor > step.before.token || (freed && claims)
}

//! Rules 7 to 9: who is granted, who waits, and that nothing that is free goes unused.

use leasehold_api::bounds::MAX_AWAY_MARKS;
use leasehold_api::machine::{Command, PlaceFacts, Reply};
use leasehold_api::{AcquireReply, Mode, Policy, SessionId};

use crate::checker::Findings;
use crate::checker::step::{Step, find, has, name, tenure_of};

/// Checks the queue: what became of each place, and who was let in.
pub(crate) fn check(step: &Step<'_>, found: &mut Findings) {
    for place in step.waited() {
        kept(step, place, found);
    }
    for place in &step.after.places {
        let before = step.before.places.iter().find(|p| p.ticket == place.ticket);
        if before.is_none() {
            joined(step, place, found);
        }
    }
    grants(step, found);
    newcomer(step, found);
    if step.settles() {
        used(step, found);
    }
}

/// Whether a place is gone from the queue because its attempt holds.
fn granted(step: &Step<'_>, place: &PlaceFacts) -> bool {
    let operation = place.operation;
    let tenure = tenure_of(step.after, operation.session, operation.sequence);
    tenure.is_some_and(|tenure| tenure.end > step.now)
}

/// Checks what became of a place that had not expired.
fn kept(step: &Step<'_>, place: &PlaceFacts, found: &mut Findings) {
    let operation = place.operation;
    let own = step.is_of(operation.session, operation.sequence);
    let after = step.after.places.iter().find(|p| p.ticket == place.ticket);
    let Some(after) = after else {
        let ended = own && matches!(step.command, Command::End(_));
        if !ended && !granted(step, place) {
            let text = format!("{} took a waiter's ticket: {place:?}", name(step.command));
            found.add("rule 9", text);
        }
        return;
    };
    if own && matches!(step.command, Command::End(_)) {
        found.add("rule 11", format!("the end left the place: {place:?}"));
    }
    if after.operation != operation || after.mode != place.mode {
        found.add("S3", format!("{place:?} became {after:?}"));
    }
    let polled = own && matches!(step.command, Command::Poll(_));
    if after.end != place.end && !polled {
        let text = format!("{} moved the end of {place:?}", name(step.command));
        found.add("rule 9", text);
    }
    let marked = after.away && (!place.away || polled);
    if marked && (!after.listening || after.away_marks > MAX_AWAY_MARKS) {
        found.add("rule 9", format!("marked away: {after:?}"));
    }
}

/// Rule 9: away is only who is not listened for, as far as the server can tell.
pub(crate) fn away(step: &Step<'_>, hears: impl Fn(&SessionId) -> bool, found: &mut Findings) {
    for place in &step.after.places {
        let before = step.before.places.iter().find(|p| p.ticket == place.ticket);
        let marks = before.map_or(0, |before| before.away_marks);
        if place.away_marks > marks && hears(&place.operation.session) {
            let text = format!("marked away, though it listens: {place:?}");
            found.add("rule 9", text);
        }
    }
}

fn joined(step: &Step<'_>, place: &PlaceFacts, found: &mut Findings) {
    let operation = place.operation;
    let own = step.is_of(operation.session, operation.sequence);
    let queued = matches!(step.reply, Reply::Acquire(AcquireReply::Queued(_)));
    let last = step.before.places.iter().map(|p| p.ticket).max();
    if !own || !queued || last.is_some_and(|last| last >= place.ticket) {
        let text = format!("{} made a place: {place:?}", name(step.command));
        found.add("rule 7", text);
    }
}

/// Whether this policy lets `mode` pass a waiter of mode `waiting`.
fn passes(policy: Policy, mode: Mode, waiting: Mode) -> bool {
    match policy {
        Policy::Fair => false,
        Policy::Barging => true,
        Policy::ReaderPreference => mode == Mode::Shared && waiting == Mode::Exclusive,
        Policy::WriterPreference => mode == Mode::Exclusive && waiting == Mode::Shared,
    }
}

/// Checks the grants out of the queue: whoever was passed over was away, or may be passed.
fn grants(step: &Step<'_>, found: &mut Findings) {
    let Some(policy) = step.policy() else { return };
    for place in step.waited().filter(|place| granted(step, place)) {
        let operation = place.operation;
        if policy == Policy::Barging && !step.is_of(operation.session, operation.sequence) {
            let text = format!("a barging waiter was granted unasked: {place:?}");
            found.add("rule 7", text);
        }
        let here = |other: &&PlaceFacts| step.waited().any(|p| p.ticket == other.ticket);
        let passed = step.waits().filter(here).find(|other| {
            let earlier = other.ticket < place.ticket;
            let prefers = passes(policy, other.mode, place.mode);
            !other.away && !passes(policy, place.mode, other.mode) && (earlier || prefers)
        });
        if let Some(passed) = passed {
            found.add("rule 7", format!("{place:?} overtook {passed:?}"));
        }
    }
}

/// Checks a grant to one that had no place: it may pass nobody who waits.
fn newcomer(step: &Step<'_>, found: &mut Findings) {
    let (Command::Acquire(request), Reply::Acquire(AcquireReply::Acquired(_))) =
        (step.command, step.reply)
    else {
        return;
    };
    let operation = request.operation;
    let Some(tenure) = tenure_of(step.after, operation.session, operation.sequence) else {
        return;
    };
    let before = find(step.before, tenure).filter(|before| before.end > step.now);
    let queued = step.waited().any(|place| {
        let waiter = place.operation;
        waiter.session == tenure.session && has(tenure, waiter.sequence)
    });
    if before.is_some() || queued {
        // A hold that stood, one more of an owner that holds, or a grant out of the queue, in this
        // very step too.
        return;
    }
    let passed = step
        .waits()
        .find(|place| !place.away && !passes(request.spec.policy(), request.mode, place.mode));
    // Under a preference a newcomer of the preferred mode passes; the others wait for everybody.
    let preferred = match request.spec.policy() {
        Policy::Barging => true,
        Policy::ReaderPreference => request.mode == Mode::Shared,
        Policy::Fair | Policy::WriterPreference => false,
    };
    if let Some(passed) = passed.filter(|_| !preferred) {
        let text = format!("a newcomer {:?} overtook {passed:?}", request.operation);
        found.add("rule 7", text);
    }
}

/// Rule 8: what fits at the head is granted in the same step.
fn used(step: &Step<'_>, found: &mut Findings) {
    let (Some(spec), Some(policy)) = (step.spec(), step.policy()) else {
        return;
    };
    if policy == Policy::Barging {
        return;
    }
    let waiting = || step.waits().filter(|place| !place.away);
    let preferred = waiting().find(|place| match policy {
        Policy::ReaderPreference => place.mode == Mode::Shared,
        Policy::WriterPreference => place.mode == Mode::Exclusive,
        Policy::Fair | Policy::Barging => false,
    });
    let Some(head) = preferred.or_else(|| waiting().next()) else {
        return;
    };
    if spec.weight(head.mode) <= step.room() {
        let text = format!("the key is free for {head:?}, and nobody told it");
        found.add("rule 8", text);
    }
}

/// Rule 4 and L1: an attempt is told to wait, or to go, only because of the living.
pub(crate) fn kept_out(step: &Step<'_>, found: &mut Findings) {
    let (Command::Acquire(request), Reply::Acquire(reply)) = (step.command, step.reply) else {
        return;
    };
    let out = matches!(reply, AcquireReply::Held(_) | AcquireReply::Queued(_));
    let operation = request.operation;
    let queued = step.before.places.iter().any(|p| p.operation == operation);
    if !out || queued {
        return;
    }
    let others = step.waits().any(|p| p.operation != operation);
    if request.spec.weight(request.mode) <= step.room() && !others {
        let text = format!("{operation:?} was kept out by nobody: {:?}", step.after);
        found.add("L1", text);
    }
    let own = |t: &&leasehold_api::machine::TenureFacts| {
        t.session == operation.session
            && t.id == operation.owner.as_u64()
            && !has(t, operation.sequence)
    };
    let semaphore = matches!(request.mode, Mode::Permits(_));
    if !semaphore && let Some(tenure) = step.stood().find(own) {
        let text = format!("{operation:?} waits for its own owner: {tenure:?}");
        found.add("rule 5", text);
    }
}

//! Which rare situations a step is.

use leasehold_api::machine::{Command, Reply};
use leasehold_api::{
    AcquireReply, ConvertReply, EndReply, ForceReply, Mode, PollReply, Refused, RenewReply, Why,
};

use crate::checker::coverage::{Coverage, Situation};
use crate::checker::step::{Step, find, has, mode, place_of, tenure_of};

pub(crate) fn note(step: &Step<'_>, seen: &mut Coverage) {
    if step.together > 1 && matches!(step.command, Command::Acquire(_)) {
        seen.reached(Situation::Together);
    }
    match step.reply {
        Reply::Acquire(reply) => acquire(step, reply, seen),
        Reply::Poll(PollReply::Acquired(_))
            if step
                .operation()
                .is_some_and(|own| waited(step, own.session, own.sequence)) =>
        {
            seen.reached(Situation::GrantedByOwnPoll);
        }
        Reply::Renew(RenewReply::Lost(why)) => {
            // What was revoked stands: it only may not be renewed.
            seen.reached(match why {
                Why::Forced => Situation::RevokedRenewal,
                _ => Situation::RenewedLate,
            });
        }
        Reply::End(reply) => end(step, *reply, seen),
        Reply::Convert(reply) => convert(step, *reply, seen),
        Reply::ForceRelease(ForceReply::Forced { .. }) => seen.reached(Situation::Revoked),
        _ => {}
    }
    grants(step, seen);
    expiry(step, seen);
    queue(step, seen);
}

fn waited(step: &Step<'_>, session: leasehold_api::SessionId, sequence: u64) -> bool {
    place_of(step.before, session, sequence).is_some_and(|place| place.end > step.now)
}

fn acquire(step: &Step<'_>, reply: &AcquireReply, seen: &mut Coverage) {
    let Command::Acquire(request) = step.command else {
        return;
    };
    let (session, sequence) = (request.operation.session, request.operation.sequence);
    let held = tenure_of(step.before, session, sequence).is_some_and(|t| t.end > step.now);
    match reply {
        _ if held || waited(step, session, sequence) => seen.reached(Situation::AcquireTwice),
        AcquireReply::Acquired(acquired) => {
            seen.reached(Situation::GrantedAtOnce);
            let waits = step.waits().next().is_some();
            if acquired.holds > 1 {
                nested(step, request, waits, seen);
            } else if waits && step.waits().all(|place| place.away) {
                seen.reached(Situation::NewcomerPastTheAway);
            }
        }
        AcquireReply::Refused(Refused::Stale) => seen.reached(Situation::StaleAcquire),
        AcquireReply::Refused(Refused::TooLate) => seen.reached(Situation::LateAcquire),
        AcquireReply::Refused(Refused::WouldDeadlock) => seen.reached(Situation::WouldDeadlock),
        _ => {}
    }
}

fn nested(step: &Step<'_>, request: &leasehold_api::Acquire, waits: bool, seen: &mut Coverage) {
    seen.reached(Situation::Nested);
    if waits {
        seen.reached(Situation::NestedPastWaiter);
    }
    let operation = request.operation;
    let own = tenure_of(step.after, operation.session, operation.sequence);
    if own.is_some_and(|own| own.end > step.now.saturating_add(request.lease)) {
        seen.reached(Situation::NestedShorter);
    }
}

fn end(step: &Step<'_>, reply: EndReply, seen: &mut Coverage) {
    match reply {
        EndReply::NotHeld(Why::Ended) => seen.reached(Situation::EndTwice),
        EndReply::Released {
            tenure: Some(view), ..
        } => {
            let before = step
                .operation()
                .and_then(|own| tenure_of(step.before, own.session, own.sequence));
            if before.is_some_and(|before| mode(before) != view.mode) {
                seen.reached(Situation::Downgraded);
                lets_in(step, seen);
            }
        }
        _ => {}
    }
}

fn convert(step: &Step<'_>, reply: ConvertReply, seen: &mut Coverage) {
    let Command::Convert(request) = step.command else {
        return;
    };
    match reply {
        ConvertReply::Converted { .. } if request.to == Mode::Exclusive => {
            seen.reached(Situation::Upgraded);
            if step.waits().next().is_some() {
                seen.reached(Situation::UpgradedPastWaiter);
            }
        }
        ConvertReply::Converted { .. } => {
            seen.reached(Situation::Downgraded);
            lets_in(step, seen);
        }
        ConvertReply::NotSole => seen.reached(Situation::UpgradeRefused),
        ConvertReply::WrongPeriod(_) => seen.reached(Situation::ConversionTwice),
        ConvertReply::Lost(_) => {}
    }
}

fn lets_in(step: &Step<'_>, seen: &mut Coverage) {
    if step
        .stands()
        .any(|tenure| find(step.before, tenure).is_none())
    {
        seen.reached(Situation::DowngradeLetsIn);
    }
}

fn grants(step: &Step<'_>, seen: &mut Coverage) {
    let floor = step.floor();
    if floor > step.before.token && step.after.token == floor + 1 {
        seen.reached(Situation::FloorRaised);
    }
    let granted = step.waited().filter(|place| {
        let operation = place.operation;
        let own = step.is_of(operation.session, operation.sequence);
        !own && tenure_of(step.after, operation.session, operation.sequence).is_some()
    });
    match granted.count() {
        0 => {}
        1 => seen.reached(Situation::GrantedByAnother),
        _ => {
            seen.reached(Situation::GrantedByAnother);
            seen.reached(Situation::GroupGranted);
        }
    }
    let marked = |place: &&leasehold_api::machine::PlaceFacts| {
        let before = step.before.places.iter().find(|p| p.ticket == place.ticket);
        before.is_some_and(|before| place.away_marks > before.away_marks)
    };
    if step.after.places.iter().any(|place| marked(&place)) {
        seen.reached(Situation::AwayPassedOver);
    }
}

fn expiry(step: &Step<'_>, seen: &mut Coverage) {
    let now = step.now;
    let gone = |end| end <= now;
    if step.before.places.iter().any(|place| gone(place.end)) {
        seen.reached(Situation::PlaceExpired);
    }
    if step.before.tenures.iter().any(|tenure| gone(tenure.end)) {
        seen.reached(Situation::LeaseExpired);
    }
    let places = step.before.places.iter().map(|place| place.end);
    let tenures = step.before.tenures.iter().map(|tenure| tenure.end);
    if places.chain(tenures).any(|end| end == now) {
        seen.reached(Situation::AtTheVeryEnd);
    }
}

fn queue(step: &Step<'_>, seen: &mut Coverage) {
    let Some(spec) = step.spec() else { return };
    let mut waits = step.waits().filter(|place| !place.away);
    let Some(head) = waits.next() else { return };
    let readers = step.stands().filter(|t| mode(t) == Mode::Shared).count();
    if head.mode == Mode::Exclusive && readers > 1 {
        seen.reached(Situation::WriterWaits);
    }
    let room = step.room();
    let fits = waits.find(|place| spec.weight(place.mode) <= room);
    match fits.map(|place| place.mode) {
        Some(Mode::Shared) if readers > 0 => seen.reached(Situation::ReaderBehindWriter),
        Some(Mode::Permits(_)) => seen.reached(Situation::BigHeadBlocks),
        _ => {}
    }
    if let Some(own) = step.operation()
        && matches!(step.command, Command::End(_))
        && tenure_of(step.before, own.session, own.sequence)
            .is_some_and(|tenure| tenure.end > step.now && has(tenure, own.sequence))
        && step.again
    {
        seen.reached(Situation::EndTwice);
    }
}

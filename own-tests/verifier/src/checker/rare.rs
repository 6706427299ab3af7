//! Records the rare situations that a step reaches.

use leasehold_api::machine::{Command, Reply, WaiterParts};
use leasehold_api::{
    Acquire, AcquireReply, ConvertReply, EndReason, ForceReply, Mode, NoteReply, PollReply,
    Refused, ReleaseReply, RenewReply,
};

use crate::checker::coverage::{Coverage, Situation};
use crate::checker::step::{Step, find, holder_of, mode, name_of, same_waiter};

pub(crate) fn note(step: &Step<'_>, seen: &mut Coverage) {
    if step.batch_size > 1 && matches!(step.command, Command::Acquire(_)) {
        seen.reached(Situation::Batched);
    }
    match step.reply {
        Reply::Acquire(reply) => acquire(step, reply, seen),
        Reply::Poll(PollReply::Acquired(_)) if own_waiter(step).is_some() => {
            seen.reached(Situation::GrantedByOwnPoll);
        }
        Reply::Renew(RenewReply::Lost(reason)) => {
            // A revoked holder is still live. It only cannot be renewed.
            seen.reached(match reason {
                EndReason::Forced => Situation::RevokedRenewal,
                EndReason::Expired | EndReason::Released | EndReason::Unknown => {
                    Situation::RenewedLate
                }
            });
        }
        Reply::Release(reply) => release(step, *reply, seen),
        Reply::Convert(reply) => convert(step, *reply, seen),
        Reply::ForceRelease(ForceReply::Forced { .. }) => seen.reached(Situation::Revoked),
        Reply::Note(reply) => written(step, reply, seen),
        _ => {}
    }
    epoch_with_note(step, seen);
    grants(step, seen);
    expiry(step, seen);
    queue(step, seen);
}

fn written(step: &Step<'_>, reply: &NoteReply, seen: &mut Coverage) {
    seen.reached(match reply {
        NoteReply::Lost { .. } => Situation::NoteLate,
        NoteReply::Noted(_) if step.before.note == step.after.note => Situation::NoteStands,
        NoteReply::Noted(_) => Situation::NoteWritten,
    });
}

/// A step that begins an epoch while there is a note.
fn epoch_with_note(step: &Step<'_>, seen: &mut Coverage) {
    let (before, after) = (step.before, step.after);
    if before.note.is_some() && before.token != after.token {
        seen.reached(match after.note {
            Some(_) => Situation::NoteOutlivesItsEpoch,
            None => Situation::NoteEnds,
        });
    }
}

/// The live waiter of the operation that the command names.
fn own_waiter<'a>(step: &'a Step<'_>) -> Option<&'a WaiterParts> {
    step.waiting(name_of(step.own?))
}

fn acquire(step: &Step<'_>, reply: &AcquireReply, seen: &mut Coverage) {
    let Command::Acquire(request) = step.command else {
        return;
    };
    let own = holder_of(step.before, name_of(request.operation));
    let held = own.is_some_and(|t| t.end > step.now);
    match reply {
        _ if held || own_waiter(step).is_some() => seen.reached(Situation::AcquireTwice),
        AcquireReply::Acquired(acquired) => {
            seen.reached(Situation::GrantedAtOnce);
            let waits = step.waiters_after().next().is_some();
            if acquired.holds > 1 {
                nested(step, request, waits, seen);
            } else if waits && step.waiters_after().all(|waiter| waiter.unreachable) {
                seen.reached(Situation::NewcomerPastTheUnreachable);
            }
        }
        AcquireReply::Stale => seen.reached(Situation::StaleAcquire),
        AcquireReply::TooLate => seen.reached(Situation::LateAcquire),
        AcquireReply::Refused(Refused::WouldDeadlock) => seen.reached(Situation::WouldDeadlock),
        _ => {}
    }
}

fn nested(step: &Step<'_>, request: &Acquire, waits: bool, seen: &mut Coverage) {
    seen.reached(Situation::Nested);
    if waits {
        seen.reached(Situation::NestedPastWaiter);
    }
    let own = holder_of(step.after, name_of(request.operation));
    if own.is_some_and(|own| own.end > step.now.saturating_add(request.lease)) {
        seen.reached(Situation::NestedShorter);
    }
}

fn release(step: &Step<'_>, reply: ReleaseReply, seen: &mut Coverage) {
    if let ReleaseReply::Released {
        holder: Some(view), ..
    } = reply
    {
        let before = step
            .own
            .and_then(|own| holder_of(step.before, name_of(own)));
        if before.is_some_and(|before| mode(before) != view.mode) {
            seen.reached(Situation::Downgraded);
            lets_in(step, seen);
        }
    }
}

fn convert(step: &Step<'_>, reply: ConvertReply, seen: &mut Coverage) {
    let Command::Convert(request) = step.command else {
        return;
    };
    match reply {
        ConvertReply::Converted { .. } if request.to == Mode::Exclusive => {
            seen.reached(Situation::Upgraded);
            if step.waiters_after().next().is_some() {
                seen.reached(Situation::UpgradedPastWaiter);
            }
        }
        ConvertReply::Converted { .. } => {
            seen.reached(Situation::Downgraded);
            lets_in(step, seen);
        }
        ConvertReply::NotSoleHolder => seen.reached(Situation::UpgradeRefused),
        ConvertReply::WrongEpoch(_) => seen.reached(Situation::ConversionTwice),
        ConvertReply::Lost(_) => {}
    }
}

fn lets_in(step: &Step<'_>, seen: &mut Coverage) {
    if step
        .holders_after()
        .any(|holder| find(step.before, holder).is_none())
    {
        seen.reached(Situation::DowngradeLetsIn);
    }
}

fn grants(step: &Step<'_>, seen: &mut Coverage) {
    let floor = step.floor();
    if floor > step.before.token && step.after.token == floor + 1 {
        seen.reached(Situation::FloorRaised);
    }
    let granted = step.waiters_before().filter(|waiter| {
        let name = name_of(waiter.operation);
        !step.is_of(name) && holder_of(step.after, name).is_some()
    });
    let granted = granted.count();
    if granted > 0 {
        seen.reached(Situation::GrantedByAnother);
    }
    if granted > 1 {
        seen.reached(Situation::GroupGranted);
    }
    let marked = |waiter: &WaiterParts| {
        let before = same_waiter(step.before, waiter);
        before.is_some_and(|before| waiter.unreachable_marks > before.unreachable_marks)
    };
    if step.after.waiters.iter().any(marked) {
        seen.reached(Situation::UnreachablePassedOver);
    }
}

fn expiry(step: &Step<'_>, seen: &mut Coverage) {
    let now = step.now;
    let gone = |end| end <= now;
    if step.before.waiters.iter().any(|waiter| gone(waiter.end)) {
        seen.reached(Situation::WaiterExpired);
    }
    if step.before.holders.iter().any(|holder| gone(holder.end)) {
        seen.reached(Situation::LeaseExpired);
    }
    let waiters = step.before.waiters.iter().map(|waiter| waiter.end);
    let holders = step.before.holders.iter().map(|holder| holder.end);
    if waiters.chain(holders).any(|end| end == now) {
        seen.reached(Situation::AtExpiry);
    }
}

fn queue(step: &Step<'_>, seen: &mut Coverage) {
    let Some(spec) = step.spec() else { return };
    let mut waits = step.waiters_after().filter(|waiter| !waiter.unreachable);
    let Some(head) = waits.next() else { return };
    let readers = step
        .holders_after()
        .filter(|t| mode(t) == Mode::Shared)
        .count();
    if head.mode == Mode::Exclusive && readers > 1 {
        seen.reached(Situation::WriterWaits);
    }
    let room = step.room();
    let fits = waits.find(|waiter| spec.weight(waiter.mode) <= room);
    match fits.map(|waiter| waiter.mode) {
        Some(Mode::Shared) if readers > 0 => seen.reached(Situation::ReaderBehindWriter),
        Some(Mode::Permits(_)) => seen.reached(Situation::BigHeadBlocks),
        _ => {}
    }
}

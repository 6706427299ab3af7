//! Rules 5 and 6: readers that ask to write, and conversions.

use super::step::{Step, holder_mut};
use crate::id::{FencingToken, OwnerId};
use crate::machine::{Command, Reply};
use crate::reply::{AcquireReply, ConvertReply, Refused, ReleaseReply};
use crate::request::{Convert, Kind, Mode};

/// A reader that asks to write is queued behind itself.
pub(super) fn upgrade_self_deadlock(step: &mut Step<'_>) {
    let (Command::Acquire(request), Reply::Acquire(AcquireReply::Refused(Refused::WouldDeadlock))) =
        (&step.command, &step.reply)
    else {
        return;
    };
    let own = request.operation;
    // Treats the acquire as one of another owner.
    let stranger = OwnerId::from_u64(!own.owner.as_u64());
    step.rerun_with_acquire(|request| request.operation.owner = stranger);
    for waiter in &mut step.after.waiters {
        if waiter.operation.owner == stranger {
            waiter.operation = own;
        }
    }
}

/// The request, if the command is a conversion.
fn convert<'a>(step: &'a mut Step<'_>) -> Option<&'a mut Convert> {
    match &mut step.command {
        Command::Convert(request) => Some(request),
        _ => None,
    }
}

/// A conversion acts whatever epoch it names.
pub(super) fn duplicate_conversion_acts(step: &mut Step<'_>) {
    if let Reply::Convert(ConvertReply::WrongEpoch(view)) = step.reply
        && let Some(request) = convert(step)
    {
        request.expected = view.token;
        step.rerun();
    }
}

/// Whether the step refuses an upgrade of a reader/writer lock.
fn is_refused(step: &Step<'_>) -> bool {
    let rw_lock = step.after.spec.is_some_and(|it| it.kind() == Kind::RwLock);
    rw_lock && step.reply == Reply::Convert(ConvertReply::NotSoleHolder)
}

/// An upgrade succeeds next to other holders.
pub(super) fn upgrade_not_sole(step: &mut Step<'_>) {
    let Some(own) = step.live_before().cloned() else {
        return;
    };
    if is_refused(step) && step.after.holders.len() > 1 {
        // Drops the other holders: the capacity does not allow a writer next to them.
        step.before.holders = vec![own];
        step.rerun_without(|_| true);
    }
}

/// An upgrade is refused even to the sole holder.
pub(super) fn upgrade_always_refused(step: &mut Step<'_>) {
    let reads = step.live_before().is_some_and(|holder| {
        let mut modes = holder.holds.iter().map(|hold| hold.1);
        modes.all(|mode| mode == Mode::Shared)
    });
    let done = matches!(step.reply, Reply::Convert(ConvertReply::Converted { .. }));
    if let Some(request) = convert(step).filter(|it| it.to == Mode::Exclusive && reads && done) {
        // Another epoch refuses the conversion. The step only settles.
        request.expected = FencingToken::new(u64::MAX);
        step.rerun();
        step.reply = Reply::Convert(ConvertReply::NotSoleHolder);
    }
}

/// A holder upgrades more than once while others wait.
pub(super) fn upgrades_again(step: &mut Step<'_>) {
    if let Command::Convert(request) = &step.command
        && is_refused(step)
        && let Some(holder) = holder_mut(&mut step.before, request.operation)
    {
        holder.upgraded = false;
        step.rerun();
    }
}

/// The reply to a release of a write hold has the token of the previous epoch.
pub(super) fn release_tells_old_token(step: &mut Step<'_>) {
    if let Reply::Release(ReleaseReply::Released {
        holder: Some(view), ..
    }) = &mut step.reply
    {
        view.token = FencingToken::new(step.before.token);
    }
}

/// A downgrade grants to readers behind a writer at the head of the queue.
pub(super) fn downgrade_overtakes(step: &mut Step<'_>) {
    let done = matches!(step.reply, Reply::Convert(ConvertReply::Converted { .. }));
    if convert(step).is_some_and(|request| request.to == Mode::Shared && done) {
        step.rerun_without(|waiter| waiter.mode == Mode::Exclusive);
    }
}

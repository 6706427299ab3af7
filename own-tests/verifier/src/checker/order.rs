//! Rules 7 to 9: who is granted, who waits, and that a free key is granted.

use leasehold_api::bounds::MAX_UNREACHABLE_MARKS;
use leasehold_api::machine::{Command, HolderParts, Reply, StateParts, WaiterParts};
use leasehold_api::{AcquireReply, ConvertReply, Key, Mode, Operation, SessionId};

use crate::checker::findings::Findings;
use crate::checker::step::{Set, Step, find, has, holder_of, name_of, names, same_waiter};

/// Checks the queue: what happened to each waiter, and who was granted.
pub(crate) fn check(step: &Step<'_>, found: &mut Findings) {
    for waiter in step.waiters_before() {
        kept(step, waiter, found);
    }
    for waiter in &step.after.waiters {
        let before = same_waiter(step.before, waiter);
        if before.is_none() {
            joined(step, waiter, found);
        }
    }
    grants(step, found);
    newcomer(step, found);
    if step.settles() {
        used(step, found);
    }
}

/// Whether the operation of a waiter holds after the step.
fn granted(step: &Step<'_>, waiter: &WaiterParts) -> bool {
    step.holding(name_of(waiter.operation)).is_some()
}

/// Checks what happened to a live waiter.
fn kept(step: &Step<'_>, waiter: &WaiterParts, found: &mut Findings) {
    let own = step.is_of(name_of(waiter.operation));
    let Some(after) = same_waiter(step.after, waiter) else {
        let released = own && matches!(step.command, Command::Release(_));
        if !released && !granted(step, waiter) {
            let text = format!("{} removed a waiter: {waiter:?}", step.by());
            found.add("rule 9", text);
        }
        return;
    };
    if own && matches!(step.command, Command::Release(_)) {
        found.add("rule 11", format!("a release left its waiter: {waiter:?}"));
    }
    if after.operation != waiter.operation || after.mode != waiter.mode {
        found.add("S3", format!("{waiter:?} became {after:?}"));
    }
    let polled = own && matches!(step.command, Command::Poll(_));
    let end = match polled {
        true => step.polled_end(waiter),
        false => waiter.end,
    };
    if after.end != end {
        let text = format!("{} moved the expiry of {waiter:?}", step.by());
        found.add("rule 9", text);
    }
    let marked = after.unreachable && (!waiter.unreachable || polled);
    if marked && (!after.listening || after.unreachable_marks > MAX_UNREACHABLE_MARKS) {
        found.add("rule 9", format!("marked unreachable: {after:?}"));
    }
}

/// Rule 9: a waiter is marked unreachable only if the server can tell that nobody listens.
pub(crate) fn unreachable(
    step: &Step<'_>,
    hears: impl Fn(&SessionId) -> bool,
    found: &mut Findings,
) {
    for waiter in &step.after.waiters {
        let before = same_waiter(step.before, waiter);
        let marks = before.map_or(0, |before| before.unreachable_marks);
        if waiter.unreachable_marks > marks && hears(&waiter.operation.session) {
            let text = format!("marked unreachable, though it listens: {waiter:?}");
            found.add("rule 9", text);
        }
    }
}

fn joined(step: &Step<'_>, waiter: &WaiterParts, found: &mut Findings) {
    let own = step.is_of(name_of(waiter.operation));
    let queued = matches!(step.reply, Reply::Acquire(AcquireReply::Queued(_)));
    let last = step.before.waiters.iter().map(|p| p.ticket).max();
    if !own || !queued || last.is_some_and(|last| last >= waiter.ticket) {
        let text = format!("{} queued a waiter: {waiter:?}", step.by());
        found.add("rule 7", text);
    }
}

/// Checks the grants to waiters: an overtaken waiter is unreachable.
fn grants(step: &Step<'_>, found: &mut Findings) {
    for waiter in step.waiters_before().filter(|waiter| granted(step, waiter)) {
        let here = |other: &&WaiterParts| step.waiters_before().any(|p| p.ticket == other.ticket);
        let mut left = step.waiters_after().filter(here);
        let passed = left.find(|other| !other.unreachable && other.ticket < waiter.ticket);
        if let Some(passed) = passed {
            found.add("rule 7", format!("{waiter:?} overtook {passed:?}"));
        }
    }
}

/// Checks a grant to an operation that had no waiter: it overtakes nobody.
fn newcomer(step: &Step<'_>, found: &mut Findings) {
    let (Command::Acquire(request), Reply::Acquire(AcquireReply::Acquired(_))) =
        (step.command, step.reply)
    else {
        return;
    };
    let Some(holder) = holder_of(step.after, name_of(request.operation)) else {
        return;
    };
    let before = find(step.before, holder).filter(|before| before.end > step.now);
    let queued = names(holder).any(|name| step.waiting(name).is_some());
    if before.is_some() || queued {
        // The holder existed before, or one of its holds was granted to a waiter in this step.
        return;
    }
    let passed = step.waiters_after().find(|waiter| !waiter.unreachable);
    if let Some(passed) = passed {
        let text = format!("a newcomer {:?} overtook {passed:?}", request.operation);
        found.add("rule 7", text);
    }
}

/// Rule 8: if the head of the queue fits, it is granted in the same step.
fn used(step: &Step<'_>, found: &mut Findings) {
    let head = step.waiters_after().find(|waiter| !waiter.unreachable);
    let (Some(spec), Some(head)) = (step.spec(), head) else {
        return;
    };
    if spec.weight(head.mode) <= step.room() {
        let text = format!("the key is free for {head:?}, which was not granted");
        found.add("rule 8", text);
    }
}

/// Rule 4 and L1: only live holders and waiters keep an acquire from its grant.
pub(crate) fn blocked(step: &Step<'_>, found: &mut Findings) {
    let (Command::Acquire(request), Reply::Acquire(reply)) = (step.command, step.reply) else {
        return;
    };
    let out = matches!(reply, AcquireReply::Contended(_) | AcquireReply::Queued(_));
    let operation = request.operation;
    let queued = step.before.waiters.iter().any(|p| p.operation == operation);
    if !out || queued {
        return;
    }
    let others = step.waiters_after().any(|p| p.operation != operation);
    if request.spec.weight(request.mode) <= step.room() && !others {
        let text = format!("{operation:?} was not granted a free key: {:?}", step.after);
        found.add("L1", text);
    }
    let own = |t: &&HolderParts| {
        t.session == operation.session
            && t.id == operation.owner.as_u64()
            && !has(t, operation.sequence)
    };
    let semaphore = matches!(request.mode, Mode::Permits(_));
    if !semaphore && let Some(holder) = step.holders_before().find(own) {
        let text = format!("{operation:?} waits for its own owner: {holder:?}");
        found.add("rule 5", text);
    }
}

/// Rule 6: the holders that have upgraded while others waited. Each may do so once, which bounds how
/// often a waiter is overtaken (rule 7).
#[derive(Debug, Default)]
pub(crate) struct Upgrades(Set<(Key, SessionId, u64)>);

impl Upgrades {
    pub(crate) fn step(&mut self, step: &Step<'_>, found: &mut Findings) {
        // A holder lives as long as one of its holds does.
        let goes_on = |before: &HolderParts| {
            let after = find(step.after, before);
            after.is_some_and(|after| before.holds.iter().any(|(s, _)| has(after, *s)))
        };
        self.0.retain(|(key, session, id), ()| {
            let mut before = step.before.holders.iter();
            let before = before.find(|it| it.session == *session && it.id == *id);
            key != step.key || before.is_none_or(goes_on)
        });
        let Reply::Convert(ConvertReply::Converted { .. }) = step.reply else {
            return;
        };
        let Some(own) = step.own.filter(|_| !step.after.waiters.is_empty()) else {
            return;
        };
        let (before, after) = (writes(step.before, own), writes(step.after, own));
        if let (None, Some(holder)) = (before, after) {
            let name = (step.key.clone(), holder.session, holder.id);
            if self.0.insert(name, ()).is_none() {
                return;
            }
            let text = format!("upgraded twice while others wait: {holder:?}");
            found.add("rule 6", text);
        }
    }
}

/// The holder that has the hold of an operation, if that hold is exclusive.
fn writes(state: &StateParts, own: Operation) -> Option<&HolderParts> {
    let holder = holder_of(state, name_of(own))?;
    let hold = (own.sequence, Mode::Exclusive);
    holder.holds.contains(&hold).then_some(holder)
}

//! Acquires whose future was dropped: nothing may be held by them afterwards, nor a place in the queue. Each client drops
//! some for a lock of its own, so that the next one shows it: nobody else can have that lock.

use super::{Promise, Violation, is_disturbed, seconds};
use crate::history::{Answer, Call, Form, History, Operation};
use crate::workload::PROBE;

/// A waiter polls once a second, so it gets a lock that nobody has within this time, even if each notification is lost.
/// An offer to nobody lasts longer.
const VAIN_US: u64 = 1_800_000;
/// How long a client may be busy with a fault, and what it has sent in the background.
const RECOVERY_US: u64 = 2_000_000;
/// How long the lock may be a dead process's: that of a waiter (5 s), its offer (2 s), and a poll.
const DEAD_US: u64 = 9_000_000;

pub(super) fn check(history: &History) -> Vec<Violation> {
    let of_own = |it: &&Operation| it.key.starts_with(PROBE) && it.key != PROBE;
    let own: Vec<&Operation> = history.operations().filter(of_own).collect();
    let violation = |waiter: &&Operation| {
        let end = waits_in_vain(waiter)?;
        let is_before = |it: &&&Operation| it.key == waiter.key && it.invoked < waiter.invoked;
        let before = || own.iter().filter(is_before).copied();
        let dropped =
            before().filter(|it| it.form() == Some(Form::Dropped) && it.answer == Answer::Free);
        let dropped = dropped.max_by_key(|it| it.invoked)?;
        let is_held = |it: &Operation| matches!(it.answer, Answer::Held { .. });
        let is_released = |it: &Operation| {
            let mut of_hold = before().filter(|other| other.hold == it.hold);
            of_hold.any(|other| other.call == Call::Release && is_held(other))
        };
        let mut recent = before().filter(|it| it.ended() + DEAD_US > end);
        let is_over = recent.all(|it| it.answer == Answer::Free || is_released(it));
        if !is_over || is_disturbed(history.faults(), dropped, RECOVERY_US, end) {
            return None;
        }
        let text = format!(
            "client {} dropped its acquire of {} at {}, and then waited in vain for it until {}, although nobody else takes it",
            waiter.client,
            waiter.key,
            seconds(dropped.ended()),
            seconds(end),
        );
        Some(Violation::new(Promise::Cleanup, text, [dropped, waiter]))
    };
    own.iter().filter_map(violation).collect()
}

/// Until when an acquire waited for so long that it should have got the lock.
fn waits_in_vain(operation: &Operation) -> Option<u64> {
    let (Call::Acquire { wait_ms, .. }, Some(Form::Plain)) = (operation.call, operation.form())
    else {
        return None;
    };
    let limit = operation.invoked + wait_ms * 1_000;
    let end = operation.completed?.min(limit);
    let is_answer = matches!(operation.answer, Answer::Held { .. } | Answer::Free);
    (is_answer && end >= operation.invoked + VAIN_US).then_some(end)
}

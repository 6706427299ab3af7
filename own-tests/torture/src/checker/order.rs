//! First come, first served.
//!
//! From outside, nobody sees when a server puts a client into the queue. So a client only certainly waits once
//! it asked a good while ago, without any fault of its own, of the servers or of the machine since then. Nor does
//! anybody see for which of several keys it waits, and a reentry overtakes all.

use super::{Hold, Promise, Violation, is_disturbed, seconds};
use crate::history::{Call, Fault, Form, History, Operation};
use crate::protocol::Mode;

/// After this time, a request has reached the server even on a busy machine.
const CERTAIN_US: u64 = 1_000_000;
/// After a fault, a client may need this long to reach the server again.
const RECOVERY_US: u64 = 2_000_000;
/// How much longer the overtaken client must wait, because answers are late.
const LATE_US: u64 = 200_000;

/// Finds mutexes that went to a client although another one had waited for longer. Also returns how many went to a client
/// while another one certainly waited.
pub(super) fn check(history: &History, holds: &[Hold<'_>]) -> (Vec<Violation>, usize) {
    let mut waiting: Vec<&Operation> = history.operations().filter(|it| waits(it)).collect();
    waiting.sort_by_key(|it| it.invoked);
    // No wait is longer, so those that began earlier are over. A run of an hour has too many waits to look at all of
    // them for each hold.
    let longest = waiting.iter().map(|it| ends(it).saturating_sub(it.invoked));
    let longest = longest.max().unwrap_or(0);
    let faults: Vec<&Fault> = history.faults().collect();
    let mut judged = 0;
    // The one that has certainly waited for the longest time.
    let mut first_waiter = |hold: &Hold<'_>| {
        let first = waiting.partition_point(|it| it.invoked + longest < hold.from);
        let recent = waiting[first..].iter().copied();
        let mut before = recent.take_while(|it| it.invoked + CERTAIN_US <= hold.from);
        let waiter = before.find(|waiter| {
            waiter.key == hold.key
                && waiter.client != hold.client
                && ends(waiter) > hold.from + LATE_US
                && !is_disturbed(faults.iter().copied(), waiter, RECOVERY_US, hold.from)
        });
        judged += usize::from(waiter.is_some());
        waiter
    };
    let violation = |hold: &Hold<'_>| {
        let waiter = first_waiter(hold).filter(|it| it.invoked + CERTAIN_US <= hold.asked)?;
        let text = format!(
            "client {} asked for {} at {} and got it at {}, while client {} waited for it since {}",
            hold.client,
            hold.key,
            seconds(hold.asked),
            seconds(hold.from),
            waiter.client,
            seconds(waiter.invoked),
        );
        let evidence = hold.evidence().chain([waiter]);
        Some(Violation::new(Promise::Order, text, evidence))
    };
    let mutexes = holds
        .iter()
        .filter(|it| it.mode == Mode::Mutex && !it.shares_handle(it));
    let found = mutexes.filter_map(violation).collect();
    (found, judged)
}

fn waits(operation: &Operation) -> bool {
    matches!(
        operation.call,
        Call::Acquire {
            mode: Mode::Mutex,
            wait_ms: 1..,
            form: Form::Plain | Form::Beside,
        }
    )
}

/// Until when it certainly waited: its answer, or its own limit. A client that was killed has a fault.
fn ends(waiter: &Operation) -> u64 {
    let Call::Acquire { wait_ms, .. } = waiter.call else {
        return 0;
    };
    let limit = waiter.invoked + wait_ms * 1_000;
    waiter.completed.map_or(0, |at| at.min(limit))
}

//! What the register that a lock protects went through.

use std::collections::{BTreeMap, BTreeSet};

use super::tokens::lost_and_stepped;
use super::{Hold, Promise, Violation, seconds};
use crate::history::{Answer, Call, History, Operation};

/// Finds stale writes that the fence let pass, and additions that were lost behind it.
pub(super) fn check(history: &History, holds: &[Hold<'_>]) -> Vec<Violation> {
    let mut of_id: BTreeMap<(u64, &str), Vec<&Hold<'_>>> = BTreeMap::new();
    for hold in holds {
        of_id.entry((hold.id, hold.key)).or_default().push(hold);
    }
    let mut found = Vec::new();
    for (_, accepted) in accepted(history) {
        // The accepted operation of the latest hold so far, and the first write of each value.
        let mut latest: Option<(&Operation, &Hold<'_>)> = None;
        let mut first: BTreeMap<u64, (&Operation, &Hold<'_>)> = BTreeMap::new();
        for operation in accepted {
            let parts = of_id.get(&(operation.hold, operation.key.as_str()));
            let Some(hold) = parts.and_then(|it| part_at(it, operation.invoked)) else {
                continue;
            };
            let is_later = |by: &Hold<'_>| hold.is_before(by) && !hold.shares_handle(by);
            if let Some((newer, by)) = latest.filter(|(_, by)| is_later(by)) {
                let pair = [(newer, by), (operation, hold)];
                found.push(violation(history, Promise::Fencing, pair, "after"));
            }
            if latest.is_none_or(|(_, by)| by.asked < hold.asked) {
                latest = Some((operation, hold));
            }
            if let Call::Write { value, .. } = operation.call
                && let Some(other) = first.insert(value, (operation, hold))
            {
                let pair = [other, (operation, hold)];
                found.push(violation(history, Promise::Counter, pair, "as well as"));
            }
        }
    }
    found
}

/// What a hold was at this time. A conversion gives it another token.
fn part_at<'a, 'b>(parts: &[&'b Hold<'a>], at: u64) -> Option<&'b Hold<'a>> {
    let granted = parts.iter().filter(|part| part.granted <= at);
    granted.max_by_key(|part| part.granted).copied()
}

/// The accepted operations of each fenced register, in order.
fn accepted(history: &History) -> BTreeMap<&str, Vec<&Operation>> {
    let mut keys: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in history.operations() {
        let is_fenced = matches!(operation.call, Call::Claim { .. } | Call::Write { .. });
        if is_fenced && matches!(operation.answer, Answer::Accepted { .. }) {
            keys.entry(&operation.key).or_default().push(operation);
        }
    }
    for operations in keys.values_mut() {
        operations.sort_by_key(|it| it.completed);
    }
    keys
}

fn violation<'a>(
    history: &History,
    promise: Promise,
    [one, other]: [(&'a Operation, &Hold<'a>); 2],
    order: &str,
) -> Violation {
    let at = other.0.ended();
    let shown = |(operation, hold): (_, &Hold<'a>)| hold.evidence().chain([operation]);
    let evidence = [one, other].into_iter().flat_map(shown);
    let wrote = |hold: &Hold<'_>| (hold.client, hold.token.unwrap_or_default());
    let ((earlier, its), (later, token)) = (wrote(one.1), wrote(other.1));
    let text = format!(
        "{}: client {later} wrote with token {token} at {}, {order} client {earlier} with token {its}",
        other.1.key,
        seconds(at),
    );
    let faults = lost_and_stepped(history, at);
    Violation::new(promise, text, evidence).excused_by(faults.into_iter().flatten())
}

/// Counts the additions to counters without a fence, and the lost ones.
pub(super) fn plain(history: &History) -> (usize, usize) {
    let mut written = 0;
    let mut values = BTreeSet::new();
    for operation in history.operations() {
        if let Call::PlainWrite { value } = operation.call {
            written += 1;
            values.insert((&operation.key, value));
        }
    }
    (written, written - values.len())
}

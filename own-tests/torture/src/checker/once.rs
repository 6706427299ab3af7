//! Jobs: occurrences that ran again after they were done, or too often. The key of an occurrence is `NAME@FIRE`.

use std::collections::BTreeMap;

use super::{Hold, Promise, Violation, broken, seconds};
use crate::history::{Answer, Call, Entry, History, Operation};

/// How often an occurrence may be tried.
const ATTEMPTS: usize = 3;

/// The name and the fire time of an occurrence.
fn occurrence(key: &str) -> Option<(&str, u64)> {
    let (name, fire) = key.split_once('@')?;
    Some((name, fire.parse().ok()?))
}

/// The holds, with the name of the lock as their key: all occurrences of a job have one lock.
pub(super) fn by_lock<'a>(holds: &[Hold<'a>]) -> Vec<Hold<'a>> {
    let name = |hold: &Hold<'a>| Hold {
        key: occurrence(hold.key).map_or(hold.key, |(name, _)| name),
        ..*hold
    };
    holds.iter().map(name).collect()
}

/// Finds them.
pub(super) fn check(history: &History, holds: &[Hold<'_>]) -> Vec<Violation> {
    let mut found = done_again(history, holds);
    let mut attempts: BTreeMap<&str, Vec<&Hold<'_>>> = BTreeMap::new();
    for hold in holds.iter().filter(|hold| occurrence(hold.key).is_some()) {
        attempts.entry(hold.key).or_default().push(hold);
    }
    for (key, holds) in attempts.iter().filter(|(_, all)| all.len() > ATTEMPTS) {
        let shown = holds.iter().flat_map(|hold| hold.evidence()).collect();
        let (first, last) = (holds[0], holds[ATTEMPTS]);
        let text = format!("{key} was started {} times", holds.len());
        found.push(violation(history, (first.asked, last.from), text, shown));
    }
    found
}

/// Starts that were asked for after the occurrence, or a later one, was certainly done.
fn done_again(history: &History, holds: &[Hold<'_>]) -> Vec<Violation> {
    let recorded = |it: &&Operation| {
        it.call == Call::Release
            && matches!(it.answer, Answer::Held { .. })
            && it.completed.is_some()
            && occurrence(&it.key).is_some()
    };
    let done: Vec<&Operation> = history.operations().filter(recorded).collect();
    let mut found = Vec::new();
    for hold in holds {
        let Some((name, fire)) = occurrence(hold.key) else {
            continue;
        };
        let before = done.iter().find(|done| {
            occurrence(&done.key).is_some_and(|(other, up_to)| other == name && up_to >= fire)
                && done.completed.is_some_and(|at| at < hold.asked)
        });
        let Some(done) = before else { continue };
        let text = format!(
            "client {} started {} at {}, although client {} had recorded {} as done at {}",
            hold.client,
            hold.key,
            seconds(hold.from),
            done.client,
            done.key,
            done.completed.map_or_else(String::new, seconds),
        );
        let mut evidence = hold.evidence();
        evidence.push(Entry::Operation((*done).clone()));
        found.push(violation(
            history,
            (done.invoked, hold.from),
            text,
            evidence,
        ));
    }
    found
}

fn violation(
    history: &History,
    (from, until): (u64, u64),
    text: String,
    mut evidence: Vec<Entry>,
) -> Violation {
    let fault = broken(history, from, until);
    evidence.extend(fault.cloned().map(Entry::Fault));
    Violation {
        promise: Promise::Once,
        outside: fault.and_then(|fault| fault.breaks),
        text,
        evidence,
    }
}

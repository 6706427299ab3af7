//! Jobs: occurrences that ran again after they were done, or too often, or that nobody tries any more. The key of an
//! occurrence is `NAME@FIRE`.

use std::collections::BTreeMap;

use super::{Hold, Promise, Violation, broken, is_disturbed, seconds};
use crate::history::{Answer, Call, History, Operation};

/// How often an occurrence may be tried.
const ATTEMPTS: usize = 3;
/// The pause before the second attempt, and the third.
const PAUSES_US: [u64; ATTEMPTS - 1] = [30_000_000, 60_000_000];
/// How long a machine that waits may take to notice that a pause is over, and to try again if it failed.
const NOTICED_US: u64 = 3_000_000;
/// So many calls that nothing disturbed, and none of them has started it: nobody ever will.
const IN_VAIN: usize = 4;
/// How long after a fault a client may still be busy with it.
const SETTLED_US: u64 = 1_000_000;

/// The name and the fire time of an occurrence.
fn occurrence(key: &str) -> Option<(&str, u64)> {
    let (name, fire) = key.split_once('@')?;
    Some((name, fire.parse().ok()?))
}

/// The holds, with the name of the lock as their key: all occurrences of a job have one lock.
pub(super) fn by_lock<'a>(holds: &[Hold<'a>]) -> Vec<Hold<'a>> {
    let name = |hold: &Hold<'a>| Hold {
        key: occurrence(hold.key).map_or(hold.key, |(name, _)| name),
        ..hold.clone()
    };
    holds.iter().map(name).collect()
}

pub(super) fn check(history: &History, holds: &[Hold<'_>]) -> Vec<Violation> {
    let mut found = done_again(history, holds);
    let mut attempts: BTreeMap<&str, Vec<&Hold<'_>>> = BTreeMap::new();
    for hold in holds.iter().filter(|hold| occurrence(hold.key).is_some()) {
        attempts.entry(hold.key).or_default().push(hold);
    }
    for (key, holds) in attempts.iter().filter(|(_, all)| all.len() > ATTEMPTS) {
        let shown = holds.iter().flat_map(|hold| hold.evidence());
        let (first, last) = (holds[0], holds[ATTEMPTS]);
        let text = format!("{key} was started {} times", holds.len());
        found.push(violation(history, (first.asked, last.from), text, shown));
    }
    found.extend(attempts.values().filter_map(|it| forgotten(history, it)));
    found
}

/// An occurrence whose last attempt has died, although there are attempts left, and which machines that live and reach
/// the servers then ask for in vain.
fn forgotten(history: &History, attempts: &[&Hold<'_>]) -> Option<Violation> {
    let last = attempts.last()?;
    let pause = PAUSES_US.get(attempts.len() - 1)?;
    let operations = || history.operations().filter(|it| it.key == last.key);
    // The answer to the note "done" may be lost, and the note made.
    if operations().any(|it| it.call == Call::Release) {
        return None;
    }
    let of_last = operations().filter(|it| it.hold == last.id);
    let died = of_last.map(Operation::ended).max()?;
    let due = died + pause + history.about.lasts_asleep_ms * 1_000 + NOTICED_US;
    let in_vain = |it: &&Operation| {
        matches!(it.call, Call::Acquire { wait_ms: 1.., .. })
            && it.invoked > due
            && it.answer == Answer::Free
    };
    let in_vain = operations()
        .filter(in_vain)
        .filter(|it| !is_disturbed(history.faults(), it, SETTLED_US, it.ended()));
    let shown: Vec<&Operation> = in_vain.take(IN_VAIN).collect();
    let until = shown.get(IN_VAIN - 1)?.ended();
    let text = format!(
        "{} was not started again after its attempt {} had died at {}, although {IN_VAIN} calls waited for it",
        last.key,
        attempts.len(),
        seconds(died),
    );
    let evidence = last.evidence().chain(shown);
    Some(violation(history, (last.asked, until), text, evidence))
}

/// The releases that recorded an occurrence as done.
fn done(history: &History) -> impl Iterator<Item = &Operation> {
    history.operations().filter(|it| {
        it.call == Call::Release
            && matches!(it.answer, Answer::Held { .. })
            && it.completed.is_some()
            && occurrence(&it.key).is_some()
    })
}

/// How many asked for an occurrence that was certainly done.
pub(super) fn asked_again(history: &History) -> usize {
    let mut done_at: BTreeMap<&str, u64> = BTreeMap::new();
    for it in done(history) {
        let at = done_at.entry(&it.key).or_insert(u64::MAX);
        *at = (*at).min(it.ended());
    }
    let again = |it: &&Operation| {
        let is_acquire = matches!(it.call, Call::Acquire { .. });
        let done = done_at.get(it.key.as_str());
        is_acquire && done.is_some_and(|at| *at < it.invoked)
    };
    history.operations().filter(again).count()
}

/// Starts that were asked for after the occurrence, or a later one, was certainly done.
fn done_again(history: &History, holds: &[Hold<'_>]) -> Vec<Violation> {
    let done: Vec<&Operation> = done(history).collect();
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
        let evidence = hold.evidence().chain([*done]);
        found.push(violation(
            history,
            (done.invoked, hold.from),
            text,
            evidence,
        ));
    }
    found
}

fn violation<'a>(
    history: &History,
    (from, until): (u64, u64),
    text: String,
    evidence: impl IntoIterator<Item = &'a Operation>,
) -> Violation {
    let fault = broken(history, from, until);
    Violation::new(Promise::Once, text, evidence).excused_by(fault)
}

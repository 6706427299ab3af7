//! Tokens that repeat, or go back.

use std::collections::BTreeMap;

use super::{Hold, Promise, Violation, by_key, seconds};
use crate::history::{Assumption, Entry, Fault, History};
use crate::protocol::Mode;

/// Compares each token with the highest one of the holds that were granted before it was asked for, and
/// looks for tokens that two holds share.
pub(super) fn check(history: &History, holds: &[Hold<'_>]) -> Vec<Violation> {
    let mut found = Vec::new();
    for holds in by_key(holds).values() {
        let mut by_token = BTreeMap::new();
        let mut asked: Vec<_> = holds.iter().filter(|hold| hold.token.is_some()).collect();
        asked.sort_by_key(|hold| hold.asked);
        let mut granted = holds.iter().filter(|hold| hold.token.is_some()).peekable();
        let mut highest: Option<&Hold<'_>> = None;
        for hold in asked {
            while let Some(before) = granted.next_if(|before| before.is_before(hold)) {
                if highest.is_none_or(|highest| highest.token <= before.token) {
                    highest = Some(before);
                }
            }
            let twin = by_token.insert(hold.token, hold);
            if let Some(highest) = highest.filter(|highest| highest.token > hold.token) {
                found.push(violation(history, highest, hold, "is lower"));
            } else if let Some(twin) = twin.filter(|twin| !may_share(twin, hold)) {
                found.push(violation(history, twin, hold, "was given twice"));
            }
        }
    }
    found
}

/// Readers that overlap share a token.
fn may_share(one: &Hold<'_>, other: &Hold<'_>) -> bool {
    one.mode == Mode::Read && other.mode == Mode::Read
}

fn violation(history: &History, before: &Hold<'_>, hold: &Hold<'_>, what: &str) -> Violation {
    let faults = lost_and_stepped(history, hold.from);
    let token = |hold: &Hold<'_>| hold.token.unwrap_or_default();
    let mut evidence = [before.evidence(), hold.evidence()].concat();
    evidence.extend(faults.iter().flatten().cloned().cloned().map(Entry::Fault));
    Violation {
        promise: Promise::Tokens,
        outside: faults.and_then(|[fault, _]| fault.breaks),
        text: format!(
            "{}: client {} got {} at {}, and client {} got {} at {}, which {what}",
            hold.key,
            before.client,
            token(before),
            seconds(before.from),
            hold.client,
            token(hold),
            seconds(hold.from),
        ),
        evidence,
    }
}

/// A fault that may have lost the stored token, and one that stepped a clock, if there were both before
/// this time. Either alone doesn't stop tokens from growing (S4).
pub(super) fn lost_and_stepped(history: &History, at: u64) -> Option<[&Fault; 2]> {
    let first = |is: fn(Assumption) -> bool| {
        let mut faults = history.faults();
        faults.find(|fault| fault.from <= at && fault.breaks.is_some_and(is))
    };
    let lost = first(|it| it != Assumption::A3)?;
    let stepped = first(|it| it == Assumption::A3)?;
    Some([lost, stepped])
}

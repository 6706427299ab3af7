//! Tokens that repeat, or go back.

use std::collections::BTreeMap;

use super::{Hold, Promise, Violation, by_key, seconds};
use crate::history::{Assumption, Fault, History};
use crate::protocol::Mode;

/// Compares each token with the highest one of the holds that were granted before it was asked for, and
/// looks for tokens that two holds share.
pub(super) fn check(history: &History, holds: &[Hold<'_>]) -> Vec<Violation> {
    let mut found = Vec::new();
    for holds in by_key(holds).values() {
        let mut first_of = BTreeMap::new();
        let with_tokens = || holds.iter().filter(|hold| hold.token.is_some());
        let mut asked: Vec<_> = with_tokens().collect();
        asked.sort_by_key(|hold| hold.asked);
        let mut granted: Vec<_> = with_tokens().collect();
        granted.sort_by_key(|hold| hold.granted);
        let mut granted = granted.into_iter().peekable();
        let mut highest: Option<&Hold<'_>> = None;
        for hold in asked {
            while let Some(before) = granted.next_if(|before| before.is_before(hold)) {
                if highest.is_none_or(|highest| highest.token <= before.token) {
                    highest = Some(before);
                }
            }
            let twin = first_of.get(&hold.token).copied();
            first_of.entry(hold.token).or_insert(hold);
            if let Some(highest) = highest.filter(|highest| highest.token > hold.token) {
                found.push(match twin {
                    Some(other) if may_share(other, hold) && other.asked < highest.granted => {
                        joined(history, highest, [other, hold])
                    }
                    _ => went_back(history, highest, hold, "is lower"),
                });
            } else if let Some(twin) = twin.filter(|twin| !may_share(twin, hold)) {
                found.push(went_back(history, twin, hold, "was given twice"));
            }
        }
    }
    found
}

/// Readers that overlap share a token, and so do the holds of a reentrant handle.
fn may_share(one: &Hold<'_>, other: &Hold<'_>) -> bool {
    one.mode == Mode::Read && other.mode == Mode::Read || one.shares_handle(other)
}

/// Either of two faults alone doesn't stop tokens from growing (S4).
fn went_back(history: &History, before: &Hold<'_>, hold: &Hold<'_>, what: &str) -> Violation {
    let faults = lost_and_stepped(history, hold.granted);
    violation([before, hold], what, None).excused_by(faults.into_iter().flatten())
}

/// A reader joined other readers and shares their token (their epoch), which began before the higher token was
/// granted. That grant must have been lost.
fn joined(history: &History, before: &Hold<'_>, [other, hold]: [&Hold<'_>; 2]) -> Violation {
    let lost = first(history, hold.granted, |it| it != Assumption::A3);
    violation([before, hold], "is lower: an earlier reader's", Some(other)).excused_by(lost)
}

fn violation([before, hold]: [&Hold<'_>; 2], what: &str, other: Option<&Hold<'_>>) -> Violation {
    let got = |hold: &Hold<'_>| {
        let token = hold.token.unwrap_or_default();
        format!(
            "client {} got {token} at {}",
            hold.client,
            seconds(hold.granted)
        )
    };
    let (earlier, later) = (got(before), got(hold));
    let text = format!("{}: {earlier}, and {later}, which {what}", hold.key);
    let holds = [before, hold].into_iter().chain(other);
    Violation::new(Promise::Tokens, text, holds.flat_map(Hold::evidence))
}

/// A fault that may have lost the stored token, and one that stepped a clock, if there were both before
/// this time. Either alone doesn't stop tokens from growing (S4).
pub(super) fn lost_and_stepped(history: &History, at: u64) -> Option<[&Fault; 2]> {
    let lost = first(history, at, |it| it != Assumption::A3)?;
    let stepped = first(history, at, |it| it == Assumption::A3)?;
    Some([lost, stepped])
}

/// The first fault that began until then and broke such an assumption.
fn first(history: &History, at: u64, is: fn(Assumption) -> bool) -> Option<&Fault> {
    let mut faults = history.faults();
    faults.find(|fault| fault.from <= at && fault.breaks.is_some_and(is))
}

//! Holders that overlap.

use super::{Hold, Promise, Violation, broken, by_key, seconds};
use crate::history::{Entry, History};

/// Finds each grant that came while others certainly held too much of the key.
pub(super) fn check(history: &History, holds: &[Hold<'_>]) -> Vec<Violation> {
    let mut found = Vec::new();
    for (key, holds) in by_key(holds) {
        let mut active: Vec<Hold<'_>> = Vec::new();
        for hold in holds.into_iter().filter(|hold| hold.from < hold.until) {
            active.retain(|other| other.until > hold.from);
            let held: u64 = active.iter().map(|other| other.mode.weight()).sum();
            if held + hold.mode.weight() > hold.mode.capacity() {
                found.push(overlap(history, key, &active, &hold));
            }
            active.push(hold);
        }
    }
    found
}

fn overlap(history: &History, key: &str, active: &[Hold<'_>], new: &Hold<'_>) -> Violation {
    let first_asked = active.iter().map(|it| it.asked).min().unwrap_or(new.asked);
    let fault = broken(history, first_asked.min(new.asked), new.from);
    let names: Vec<String> = active
        .iter()
        .map(|it| format!("client {} until {}", it.client, seconds(it.until)))
        .collect();
    let all = active.iter().chain([new]);
    let mut evidence: Vec<Entry> = all.flat_map(Hold::evidence).collect();
    evidence.extend(fault.cloned().map(Entry::Fault));
    Violation {
        promise: Promise::Exclusion,
        outside: fault.and_then(|fault| fault.breaks),
        text: format!(
            "client {} got {key} at {}, which {} still held",
            new.client,
            seconds(new.from),
            names.join(" and ")
        ),
        evidence,
    }
}

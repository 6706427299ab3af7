//! Holders that overlap.

use super::{Hold, Promise, Violation, broken, by_key, seconds};
use crate::history::History;

/// Finds each grant that came while others certainly held too much of the key.
pub(super) fn check(history: &History, holds: &[Hold<'_>]) -> Vec<Violation> {
    let mut found = Vec::new();
    for (key, holds) in by_key(holds) {
        let mut active: Vec<Hold<'_>> = Vec::new();
        for hold in holds.into_iter().filter(|hold| hold.from < hold.until) {
            active.retain(|other| other.until > hold.from);
            let others: Vec<_> = active
                .iter()
                .filter(|other| !other.shares_handle(&hold))
                .collect();
            let held: u64 = others.iter().map(|other| other.mode.weight()).sum();
            if held + hold.mode.weight() > hold.mode.capacity() {
                found.push(overlap(history, key, &others, &hold));
            }
            active.push(hold);
        }
    }
    found
}

fn overlap(history: &History, key: &str, active: &[&Hold<'_>], new: &Hold<'_>) -> Violation {
    let first_asked = active.iter().map(|it| it.asked).min().unwrap_or(new.asked);
    let fault = broken(history, first_asked.min(new.asked), new.from);
    let name = |it: &&Hold<'_>| format!("client {} until {}", it.client, seconds(it.until));
    let names = active.iter().map(name).collect::<Vec<_>>().join(" and ");
    let (client, from) = (new.client, seconds(new.from));
    let text = format!("client {client} got {key} at {from}, which {names} still held");
    let evidence = active.iter().copied().chain([new]).flat_map(Hold::evidence);
    Violation::new(Promise::Exclusion, text, evidence).excused_by(fault)
}

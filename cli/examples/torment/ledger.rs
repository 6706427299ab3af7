//! Judges a run by what was written down.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::LEASE;
use crate::command::Fate;

/// How much longer than its lease a lock may be seen: the clocks' drift, and a server that was stopped meanwhile.
const ALLOWANCE: Duration = Duration::from_secs(1);
/// A stall delays what happens so long after it.
const AFTER: Duration = Duration::from_secs(2);

/// When each holder was seen first and last, by its label.
pub(crate) type Seen = HashMap<String, (Duration, Duration)>;

/// A thread had to wait for a processor.
pub(crate) struct Stall {
    pub(crate) end: Duration,
    pub(crate) by: Duration,
}

/// When one CMD was alive.
#[derive(Clone, Copy, Debug)]
struct Life {
    token: u64,
    first: Duration,
    last: Duration,
}

/// The lives of each key, in the order of their beginnings.
fn lives(text: &str) -> BTreeMap<&str, Vec<Life>> {
    let mut lives: HashMap<(&str, &str, u64), Life> = HashMap::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [key, number, token, nanos] = fields[..] else {
            panic!("{line:?}");
        };
        let parsed = |text: &str| text.parse().expect("a number");
        let at = Duration::from_nanos(parsed(nanos));
        let (token, first, last) = (parsed(token), at, at);
        // A command that stands for election again runs CMD again.
        let life = lives.entry((key, number, token));
        life.or_insert(Life { token, first, last }).last = at;
    }
    let mut by_key = BTreeMap::<&str, Vec<Life>>::new();
    for ((key, _, _), life) in lives {
        by_key.entry(key).or_default().push(life);
    }
    for lives in by_key.values_mut() {
        lives.sort_by_key(|life| life.first);
    }
    by_key
}

/// Prints what was found. Returns whether the promises were kept.
///
/// The command kills CMD half a second before the lease ends, and the keeper a quarter of a second before. So an overlap
/// counts only if it is longer than this machine kept a thread waiting just before.
pub(crate) fn check(text: &str, fates: &[Fate], seen: &Seen, stalls: &[Stall]) -> bool {
    let stalled = |at: Duration| {
        let before = stalls.iter().filter(|it| it.end.abs_diff(at) < AFTER);
        before.map(|it| it.by).max().unwrap_or_default()
    };
    let (mut broken, mut excused, mut ran) = (Vec::new(), 0, 0);
    for (key, lives) in &lives(text) {
        ran += lives.len();
        // The one that lived longest so far.
        let mut longest: Option<Life> = None;
        for life in lives {
            if let Some(before) = longest {
                let overlap = before.last.saturating_sub(life.first);
                if overlap > stalled(before.last) {
                    broken.push(format!("{key}: {before:?} beside {life:?} for {overlap:?}"));
                } else if !overlap.is_zero() {
                    excused += 1;
                }
                if life.token <= before.token {
                    broken.push(format!("{key}: the tokens of {before:?} and {life:?}"));
                }
            }
            longest = longest.filter(|it| it.last > life.last).or(Some(*life));
        }
    }
    let mut watched = 0;
    for (label, (first, last)) in seen {
        // The host, and the process of the keeper.
        let process = label.rsplit_once(':').and_then(|it| it.1.parse().ok());
        let is_of = |fate: &&Fate| process.is_some_and(|it| fate.keepers.contains(&it));
        let Some(fate) = fates.iter().find(is_of) else {
            broken.push(format!("nobody's keeper is {label}"));
            continue;
        };
        watched += 1;
        // A dead waiter may be granted the lock.
        let over = last.saturating_sub(fate.dead.max(*first));
        if over > LEASE + ALLOWANCE + stalled(*last) {
            broken.push(format!(
                "{label} held a lock {over:?} after its death: {fate:?}"
            ));
        }
    }
    let mut counts = BTreeMap::new();
    for fate in fates {
        *counts.entry(fate.ended.as_str()).or_insert(0) += 1;
    }
    for (ended, count) in counts {
        println!("{count:5}  {ended}");
    }
    let longest = stalls.iter().map(|it| it.by).max().unwrap_or_default();
    println!(
        "{ran} CMDs, {watched} holders watched, {excused} overlaps shorter than a stall (up to {longest:?})"
    );
    for what in &broken {
        println!("BROKEN {what}");
    }
    broken.is_empty() && ran > 0 && watched > 0
}

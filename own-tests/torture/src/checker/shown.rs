//! What a run must have seen before it may say that promises were kept. A lock that nobody asked for, or that nothing
//! happened to, keeps them all.

use std::collections::BTreeMap;

use super::{
    BESIDE, DOWNGRADE, DROPPED, Figures, Hold, NO_UPGRADE, Promise, REENTRY, SEVERAL, UPGRADE,
};
use crate::history::{Answer, Call, Fault, Form, History, Operation};
use crate::protocol::Mode;
use crate::workload::PROBE;

/// At least this many of a hundred acquires must have ended without an error.
const LEAST_RATE: usize = 25;
/// How often a client must have done each thing that it does beside plain locks, while another one wanted or had the lock.
const LEAST_MORE: usize = 3;
/// When the controller notices that a process has ended.
const NOTICED_US: u64 = 500_000;
const SEEN: [&str; 4] = [
    "locks taken",
    "taken while others wanted them",
    "kept for longer than a lease",
    "times in danger",
];

/// How often a promise needs each of `SEEN`.
const fn least(promise: Promise) -> [usize; 4] {
    match promise {
        Promise::Exclusion => [20, 10, 3, 10],
        Promise::Once => [10, 5, 1, 3],
        Promise::Tokens | Promise::Fencing | Promise::Counter => [20, 10, 1, 10],
        Promise::Loss => [20, 5, 3, 1],
        Promise::Order => [20, 10, 1, 0],
        Promise::Limit => [20, 5, 1, 20],
        Promise::Progress | Promise::Cleanup => [20, 5, 1, 1],
    }
}

/// The time in which a client wanted or had a lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use<'a> {
    client: usize,
    key: &'a str,
    from: u64,
    until: u64,
}

impl<'a> Use<'a> {
    /// Those of the clients that waited for locks or got them. An acquisition ends with its last operation.
    pub(super) fn all(history: &'a History) -> Vec<Self> {
        let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
        for operation in history.operations() {
            let end = ends.entry(operation.hold).or_default();
            *end = (*end).max(ended(operation));
        }
        let is_use = |it: &&Operation| match it.call {
            Call::Acquire { wait_ms, .. } => {
                wait_ms > 0 || matches!(it.answer, Answer::Held { .. })
            }
            _ => false,
        };
        let acquires = history.operations().filter(|it| it.key != PROBE);
        let of = |acquire: &'a Operation| Self {
            client: acquire.client,
            key: &acquire.key,
            from: acquire.invoked,
            until: ends[&acquire.hold],
        };
        acquires.filter(is_use).map(of).collect()
    }

    fn overlaps(&self, from: u64, until: u64) -> bool {
        self.from <= until && self.until >= from
    }
}

/// When an operation was over. What the process did not answer was over by its limit, or when the controller noticed.
fn ended(operation: &Operation) -> u64 {
    let wait_ms = match operation.call {
        Call::Acquire { wait_ms, .. } => wait_ms,
        _ => 0,
    };
    let limit = operation.invoked + wait_ms * 1_000 + NOTICED_US;
    operation.completed.unwrap_or(limit)
}

/// Whether another client wanted or had the lock during an operation.
fn is_contended<'a>(uses: &[Use<'a>]) -> impl Fn(&Operation) -> bool + use<'a> {
    let mut of_key: BTreeMap<&str, Vec<Use<'a>>> = BTreeMap::new();
    for it in uses {
        of_key.entry(it.key).or_default().push(*it);
    }
    move |operation| {
        let mut others = of_key.get(operation.key.as_str()).into_iter().flatten();
        others.any(|it| {
            it.client != operation.client && it.overlaps(operation.invoked, operation.ended())
        })
    }
}

/// How many locks were granted while another client wanted or had them.
pub(super) fn contended(uses: &[Use<'_>], holds: &[Hold<'_>]) -> usize {
    let is_contended = is_contended(uses);
    let holds = holds.iter();
    holds.filter(|hold| is_contended(hold.acquire)).count()
}

/// What clients did beside plain locks, while another one wanted or had the lock.
pub(super) fn more(history: &History, uses: &[Use<'_>]) -> BTreeMap<&'static str, usize> {
    let is_contended = is_contended(uses);
    let mut seen = BTreeMap::new();
    for operation in history.operations() {
        if let Some(what) = beside_plain(operation).filter(|_| is_contended(operation)) {
            *seen.entry(what).or_default() += 1;
        }
    }
    seen
}

fn beside_plain(operation: &Operation) -> Option<&'static str> {
    let held = match operation.answer {
        Answer::Held { .. } => true,
        Answer::Free => false,
        _ => return None,
    };
    match operation.call {
        Call::Acquire { form, .. } => match form {
            Form::Several => held.then_some(SEVERAL),
            Form::Beside => held.then_some(BESIDE),
            Form::Reentry => held.then_some(REENTRY),
            Form::Dropped => (!held).then_some(DROPPED),
            Form::Plain | Form::Reentrant => None,
        },
        Call::Convert { to: Mode::Read } => held.then_some(DOWNGRADE),
        Call::Convert { .. } => Some(if held { UPGRADE } else { NO_UPGRADE }),
        _ => None,
    }
}

/// How many holders were still there more than a lease after the grant, whatever they believed by then.
pub(super) fn outlasted(history: &History, holds: &[Hold<'_>]) -> usize {
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    for it in history.operations() {
        let at = last.entry(it.hold).or_default();
        *at = (*at).max(it.invoked);
    }
    let lease = history.about.lease_ms * 1_000;
    let outlasts = |hold: &&Hold<'_>| last.get(&hold.id).is_some_and(|at| *at > hold.from + lease);
    holds.iter().filter(outlasts).count()
}

/// What is missing before the subject's promises may count as kept.
pub(super) fn missing(history: &History, uses: &[Use<'_>], figures: &Figures) -> Vec<String> {
    let mut missing = Vec::new();
    for promise in &history.about.promises {
        let in_danger = figures.in_danger.get(promise).copied().unwrap_or(0);
        let seen = [
            figures.holds,
            figures.contended,
            figures.outlasted,
            in_danger,
        ];
        for ((seen, least), what) in seen.into_iter().zip(least(*promise)).zip(SEEN) {
            if seen < least {
                missing.push(format!("{}: {seen} {what}, not {least}", promise.name()));
            }
        }
    }
    let (answered, asked) = (figures.answered, figures.asked);
    if answered * 100 < asked * LEAST_RATE {
        missing.push(format!(
            "only {answered} of {asked} acquires ended without an error"
        ));
    }
    for more in &history.about.more {
        let seen = figures.more.get(more.as_str()).copied().unwrap_or(0);
        if seen < LEAST_MORE {
            missing.push(format!(
                "{more}: {seen} while others wanted the lock, not {LEAST_MORE}"
            ));
        }
    }
    let met = |fault: &Fault| {
        let concerns = |it: &Use<'_>| fault.client.is_none_or(|client| client == it.client);
        let mut uses = uses.iter().filter(|it| concerns(it));
        uses.any(|it| it.overlaps(fault.from, fault.until))
    };
    for kind in &history.about.deck {
        let mut dealt = history.faults().filter(|it| it.kind == *kind).peekable();
        if dealt.peek().is_none() {
            missing.push(format!("`{kind}` did not happen"));
        } else if !dealt.any(met) {
            missing.push(format!("`{kind}` met nobody who had or wanted a lock"));
        }
    }
    missing
}

//! What a lock owes its users in time: to notice losses, to answer, to go on, to leave nothing behind.

use std::collections::BTreeMap;

use super::{Hold, Promise, STALL, STOPPED, SUSPENDED, Violation, broken, seconds};
use crate::history::{Answer, Call, Entry, Fault, History, Operation};
use crate::workload::PROBE;

/// How long it may take until a signal reaches all threads of a process.
const SIGNAL_US: u64 = 100_000;
/// How late an answer may be on a busy machine.
const LATE_US: u64 = 1_000_000;
/// A call without a limit of its own ends within seconds.
const SECONDS_US: u64 = 6_000_000;
/// Enough to show that nobody gets a lock.
const SHOWN_ATTEMPTS: usize = 5;

/// Finds clients that slept for longer than their lock can last, and still believe in it. Also returns how many slept for
/// that long while they held one, and were asked for it afterwards.
pub(super) fn loss(history: &History, holds: &[Hold<'_>]) -> (Vec<Violation>, usize) {
    let longest = history.about.lasts_asleep_ms * 1_000;
    let slept = |fault: &&Fault| is_sleep(fault) && fault.until - fault.from > longest + SIGNAL_US;
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    for it in history.operations() {
        let at = last.entry(it.hold).or_default();
        *at = (*at).max(it.ended());
    }
    let (mut found, mut judged) = (Vec::new(), 0);
    for fault in history.faults().filter(slept) {
        // A renewal that another fault holds up may extend the lease in the meantime. One that a link holds up comes up to as
        // long again after the fault as it has waited.
        let arrives = |other: &Fault| {
            let again = other.client.map_or(0, |_| other.until - other.from);
            other.until + again + SIGNAL_US
        };
        let concerns = |other: &Fault| {
            other.delays && (other.client.is_none() || other.client == fault.client)
        };
        let mut others = history.faults();
        if others.any(|it| concerns(it) && it.from <= fault.until && arrives(it) >= fault.from) {
            continue;
        }
        let sleeps = |hold: &&Hold<'_>| {
            let is_own = Some(hold.client) == fault.client && hold.from <= fault.from;
            is_own && last.get(&hold.id).is_some_and(|at| *at > fault.until)
        };
        let is_promised = |hold: &&Hold<'_>| broken(history, hold.asked, fault.until).is_none();
        judged += holds.iter().filter(sleeps).filter(is_promised).count();
        let believes = |hold: &&Hold<'_>| {
            let is_own = Some(hold.client) == fault.client;
            is_own && hold.from <= fault.from && hold.until > fault.until
        };
        for hold in holds.iter().filter(believes) {
            let text = format!(
                "client {} slept from {} to {}, and then still believed that it held {}, which lasts for {} ms at most",
                hold.client,
                seconds(fault.from),
                seconds(fault.until),
                hold.key,
                history.about.lasts_asleep_ms,
            );
            let violation = Violation::new(Promise::Loss, text, hold.evidence());
            let violation = violation.with(Entry::Fault(fault.clone()));
            found.push(violation.excused_by(broken(history, hold.asked, fault.until)));
        }
    }
    (found, judged)
}

fn is_sleep(fault: &Fault) -> bool {
    fault.kind == STOPPED || fault.kind == SUSPENDED
}

/// Finds calls that took too long.
pub(super) fn limits(history: &History) -> Vec<Violation> {
    let late = |operation: &&Operation| {
        let limit = match operation.call {
            Call::Acquire { wait_ms: 0, .. } | Call::Release | Call::Convert { .. } => SECONDS_US,
            Call::Acquire { wait_ms, .. } => wait_ms * 1_000 + LATE_US,
            _ => return operation.answer == Answer::Silence,
        };
        let took = operation.completed.map(|at| at - operation.invoked);
        // Few took long, and each look at the faults goes through the whole history.
        let is_late = |took| took > limit && took > limit + asleep(history, operation);
        operation.answer == Answer::Silence || took.is_some_and(is_late)
    };
    let violation = |operation: &Operation| {
        let ended = operation.completed;
        let text = format!(
            "client {}: {:?} of {} at {} ended {}",
            operation.client,
            operation.call,
            operation.key,
            seconds(operation.invoked),
            ended.map_or("never".into(), |at| format!("at {}", seconds(at))),
        );
        Violation::new(Promise::Limit, text, [operation])
    };
    history.operations().filter(late).map(violation).collect()
}

/// How long the process, or the machine, slept during an operation.
fn asleep(history: &History, operation: &Operation) -> u64 {
    let Some(completed) = operation.completed else {
        return 0;
    };
    let concerns = |fault: &&Fault| {
        fault.kind == STALL || is_sleep(fault) && fault.client == Some(operation.client)
    };
    let overlap = |fault: &Fault| {
        let until = fault.until.min(completed);
        until.saturating_sub(fault.from.max(operation.invoked))
    };
    history.faults().filter(concerns).map(overlap).sum()
}

/// The faults of the servers, in the order of their ends, each with the time when the next one began.
fn faults_of_servers(history: &History) -> Vec<(&Fault, u64)> {
    let is_server = |fault: &&Fault| fault.client.is_none() && fault.kind != STALL;
    let mut faults: Vec<&Fault> = history.faults().filter(is_server).collect();
    faults.sort_by_key(|fault| fault.until);
    let next = faults.iter().skip(1).map(|next| next.from);
    let ends: Vec<u64> = next.chain([history.about.lasted_us]).collect();
    faults.into_iter().zip(ends).collect()
}

/// How long it took after each fault of the servers until the probe got its lock, in ms. Others may wait for a holder
/// that is still at work.
pub(super) fn first_successes(history: &History) -> Vec<u64> {
    let is_success = |it: &&Operation| {
        let acquires = matches!(it.call, Call::Acquire { .. });
        it.key == PROBE && acquires && matches!(it.answer, Answer::Held { .. })
    };
    let operations = history.operations().filter(is_success);
    let mut answers: Vec<u64> = operations.filter_map(|it| it.completed).collect();
    answers.sort_unstable();
    let mut took = Vec::new();
    for (fault, end) in faults_of_servers(history) {
        let first = answers.partition_point(|at| *at < fault.until);
        let first = answers.get(first).filter(|at| **at <= end);
        took.extend(first.map(|at| (at - fault.until) / 1_000));
    }
    took.sort_unstable();
    took
}

/// Finds times without any success after the servers were healed. Also returns how long each recovery
/// took, in ms.
pub(super) fn progress(history: &History, holds: &[Hold<'_>]) -> (Vec<Violation>, Vec<u64>) {
    let limit = history.about.progress_within_ms * 1_000;
    let (mut found, mut recoveries) = (Vec::new(), Vec::new());
    for (fault, end) in faults_of_servers(history) {
        let mut later = holds.iter().filter(|hold| hold.from >= fault.until);
        let took = later.next().map(|hold| hold.from - fault.until);
        match took.filter(|took| fault.until + took <= end) {
            Some(took) if took <= limit => recoveries.push(took / 1_000),
            _ if end >= fault.until + limit => found.push(stuck(history, fault, limit)),
            // The next fault came too soon to tell.
            _ => {}
        }
    }
    recoveries.sort_unstable();
    (found, recoveries)
}

fn stuck(history: &History, fault: &Fault, limit: u64) -> Violation {
    let tried = |it: &&Operation| {
        matches!(it.call, Call::Acquire { .. })
            && it.invoked >= fault.until
            && it.invoked < fault.until + limit
    };
    let attempts = history.operations().filter(tried).take(SHOWN_ATTEMPTS);
    let (limit, kind, until) = (seconds(limit), &fault.kind, seconds(fault.until));
    let text = format!("nobody got a lock within {limit} after `{kind}` was over at {until}");
    Violation::new(Promise::Progress, text, attempts).with(Entry::Fault(fault.clone()))
}

pub(super) fn left(history: &History) -> Vec<Violation> {
    let left = |entry: &Entry| match entry {
        Entry::Left { what } => {
            Some(Violation::new(Promise::Cleanup, what.clone(), []).with(entry.clone()))
        }
        Entry::Operation(_) | Entry::Fault(_) => None,
    };
    history.entries.iter().filter_map(left).collect()
}

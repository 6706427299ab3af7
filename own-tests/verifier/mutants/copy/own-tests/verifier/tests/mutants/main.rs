//! Each mutant fails a test: first a case of the conformance suite, otherwise a directed scenario, otherwise an
//! exploration of jobs, which is a test of its own.
#![expect(
    clippy::disallowed_methods,
    reason = "a scenario that hangs must not hang the test"
)]

mod directed;
#[path = "../../../../backend-sim/tests/harness/mod.rs"]
mod harness;

use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold_api::mutants;
use leasehold_api::mutants::failpoints::{OF_LOCKS, reached};
use leasehold_conformance::{Harness, cases, run_case};
use leasehold_sim::SimOptions;
use leasehold_sim::tools::Scheduling;
use leasehold_verifier::{MutantInfo, Stress};

use crate::directed::SCENARIOS;

/// Returns the first case of the suite that fails, or else the first directed scenario.
fn first_failure(harness: &Arc<dyn Harness>) -> Option<String> {
    let case = cases().find(|case| run_case(harness, case).is_err());
    let scenario = || SCENARIOS.iter().find(|scenario| !scenario.passes());
    case.map(|case| case.name())
        .or_else(|| scenario().map(|scenario| format!("directed::{}", scenario.name)))
}

/// Mutants, and cases that must fail under them.
const NOTICED_BY: &[(&str, &str)] = &[
    (
        "light-waiters-pass-heavy-ones",
        "starvation::writer_against_endless_readers",
    ),
    (
        "re-subscribe-without-a-re-check",
        "client_push::lost_subscription_makes_everyone_poll",
    ),
    (
        "duplicate-push-ends-a-live-hold",
        "client_push::doubled_push_changes_nothing",
    ),
    (
        "duplicate-push-ends-a-live-hold",
        "client_push::push_may_come_after_a_poll",
    ),
    (
        "subscribes-for-each-waiter",
        "client_push::one_subscription_carries_all_waiters",
    ),
    (
        "cancelled-acquire-leaks",
        "client_cancel::dropped_wait_leaves_nothing",
    ),
    (
        "cancelled-acquire-leaks",
        "client_many::dropped_midway_gives_back",
    ),
    ("keys-as-named", "client_many::keys_are_taken_in_order"),
    (
        "keys-as-named",
        "client_many::opposite_order_does_not_deadlock",
    ),
    (
        "loss-while-gathering",
        "client_many::loss_while_waiting_takes_all_anew",
    ),
    (
        "batch-mixes-answers",
        "client_batching::each_gets_its_own_outcome",
    ),
    (
        "batch-mixes-answers",
        "client_batching::failed_call_harms_no_other",
    ),
    (
        "batch-shares-failure",
        "client_batching::failed_call_harms_no_other",
    ),
    ("repeated-key-is-taken-twice", "client_many::bad_sets_of_keys"),
];

/// Returns the entries of [`NOTICED_BY`] whose case passes under the mutant.
fn unnoticed(harness: &Arc<dyn Harness>) -> Vec<String> {
    let passes = |(mutant, name): &&(&str, &str)| {
        assert!(mutants::plant(mutant), "no mutant {mutant:?}");
        let case = cases().find(|case| case.name() == *name);
        case.is_none_or(|case| run_case(harness, case).is_ok())
    };
    let passed = NOTICED_BY.iter().filter(passes);
    passed
        .map(|(mutant, name)| format!("{mutant} by {name}"))
        .collect()
}

#[test]
fn every_mutant_fails_a_case() {
    let harness: Arc<dyn Harness> = Arc::new(harness::Simulated);
    // A case that fails without a mutant would seem to find every mutant.
    let failing = first_failure(&harness);
    assert_eq!(failing, None, "without a mutant");
    // Under a mutant, the code under test may panic. Its backtraces would hide the table. But the
    // state machine's own consistency check must not fail under a mutant.
    let own_check_failed = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&own_check_failed);
    panic::set_hook(Box::new(move |panic| {
        let inconsistent = panic.to_string().contains("Inconsistent");
        seen.fetch_or(inconsistent, Ordering::Relaxed);
    }));
    let (mut missed, mut inconsistent) = (Vec::new(), Vec::new());
    println!("{:<50} {:<8} first case that fails", "mutant", "breaks");
    for (mutant, rule) in mutants::all().filter(|(it, _)| !mutants::NEED_THREADS.contains(it)) {
        mutants::plant(mutant);
        match first_failure(&harness) {
            Some(case) => println!("{mutant:<50} {rule:<8} {case}"),
            None if MutantInfo::has_own_exploration(rule) => {
                println!("{mutant:<50} {rule:<8} (explored)");
            }
            None => missed.push(mutant),
        }
        if own_check_failed.swap(false, Ordering::Relaxed) {
            inconsistent.push(mutant);
        }
    }
    let unnoticed = unnoticed(&harness);
    let _ = panic::take_hook();
    assert!(unnoticed.is_empty(), "not found: {unnoticed:?}");
    assert!(missed.is_empty(), "no case found {missed:?}");
    assert!(inconsistent.is_empty(), "inconsistent: {inconsistent:?}");
}

/// How many seeds may need to stop a task at each failpoint of locks.
const SEEDS: u64 = 1_500;

#[test]
fn tasks_stop_at_every_failpoint() {
    // Another test may have left one, and with it explorations have no failpoints.
    mutants::clear();
    let mut left = OF_LOCKS.to_vec();
    for seed in 0..SEEDS {
        let options = SimOptions::new(seed).log_limit(0).recording(false);
        let run = Stress::new().run(options, Scheduling::Random);
        assert!(run.violations.is_empty(), "seed {seed}: {:?}", run.violations);
        left.retain(|place| !reached().contains(place));
        if left.is_empty() {
            return println!("a task has stopped at each failpoint after {} seeds", seed + 1);
        }
    }
    panic!("no task has stopped at {left:?}");
}

#[test]
fn every_listed_mutant_exists() {
    for listed in MutantInfo::listed() {
        assert!(mutants::all().any(|(name, _)| name == listed), "{listed}");
    }
    for (n, (name, _)) in mutants::all().enumerate() {
        assert!(mutants::all().skip(n + 1).all(|(other, _)| other != name), "{name} twice");
    }
}

//! Each mutant fails a test: first a case of the conformance suite, otherwise a directed scenario.
//!
//! Needs `--cfg leasehold_mutants`. `./test` builds and runs these tests in a separate target folder.
#![cfg(leasehold_mutants)]

mod directed;
#[path = "../../../../backend-sim/tests/harness/mod.rs"]
mod harness;

use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold_api::mutants::Mutant;
use leasehold_conformance::{Harness, cases, run_case};

use crate::directed::SCENARIOS;

/// Returns the first case of the suite that fails, or else the first directed scenario.
fn first_failure(harness: &Arc<dyn Harness>) -> Option<String> {
    let case = cases().find(|case| run_case(harness, case).is_err());
    let scenario = || SCENARIOS.iter().find(|scenario| !scenario.passes());
    case.map(|case| case.name())
        .or_else(|| scenario().map(|scenario| format!("directed::{}", scenario.name)))
}

/// Mutants of the client, and cases that must fail under them.
const NOTICED_BY: &[(Mutant, &str)] = &[
    (
        Mutant::ResubscribeWithoutRecheck,
        "client_push::lost_subscription_makes_everyone_poll",
    ),
    (
        Mutant::DuplicatePushEndsHold,
        "client_push::doubled_push_changes_nothing",
    ),
    (
        Mutant::DuplicatePushEndsHold,
        "client_push::push_may_come_after_a_poll",
    ),
    (
        Mutant::SubscribesForEachWaiter,
        "client_push::one_subscription_carries_all_waiters",
    ),
    (
        Mutant::DroppedAttemptLeaks,
        "client_cancel::dropped_wait_leaves_nothing",
    ),
    (
        Mutant::DroppedAttemptLeaks,
        "client_many::dropped_midway_gives_back",
    ),
    (Mutant::KeysAsNamed, "client_many::keys_are_taken_in_order"),
    (
        Mutant::KeysAsNamed,
        "client_many::opposite_order_does_not_deadlock",
    ),
    (
        Mutant::LossWhileGathering,
        "client_many::loss_while_waiting_takes_all_anew",
    ),
    (
        Mutant::HandoffAdoptedTwice,
        "client_handoff::copied_text_is_adopted_once",
    ),
    (
        Mutant::SenderEndsHandoff,
        "client_handoff::sender_releases_nothing",
    ),
    (
        Mutant::BatchMixesAnswers,
        "client_batching::each_gets_its_own_outcome",
    ),
    (
        Mutant::BatchMixesAnswers,
        "client_batching::failed_call_harms_no_other",
    ),
    (
        Mutant::BatchSharesFailure,
        "client_batching::failed_call_harms_no_other",
    ),
    (Mutant::RepeatedKey, "client_many::bad_sets_of_keys"),
    (
        Mutant::HandoffOfAnyKind,
        "client_handoff::other_kind_is_refused_before_any_io",
    ),
    (Mutant::HandoffShown, "client_handoff::secret_is_not_shown"),
    (
        Mutant::ReentrantHandoff,
        "client_handoff::guard_that_cannot_be_handed_off_is_returned",
    ),
];

/// Returns the entries of [`NOTICED_BY`] whose case passes under the mutant.
fn unnoticed(harness: &Arc<dyn Harness>) -> Vec<String> {
    let passes = |(mutant, name): &&(Mutant, &str)| {
        mutant.plant();
        let case = cases().find(|case| case.name() == *name);
        case.is_none_or(|case| run_case(harness, case).is_ok())
    };
    let passed = NOTICED_BY.iter().filter(passes);
    passed
        .map(|(mutant, name)| format!("{} by {name}", mutant.name()))
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
    for mutant in Mutant::ALL.iter().filter(|it| !it.needs_threads()) {
        mutant.plant();
        match first_failure(&harness) {
            Some(case) => println!("{:<50} {:<8} {case}", mutant.name(), mutant.rule()),
            None => missed.push(mutant.name()),
        }
        if own_check_failed.swap(false, Ordering::Relaxed) {
            inconsistent.push(mutant.name());
        }
    }
    let unnoticed = unnoticed(&harness);
    let _ = panic::take_hook();
    assert!(unnoticed.is_empty(), "not found: {unnoticed:?}");
    assert!(missed.is_empty(), "no case found {missed:?}");
    assert!(inconsistent.is_empty(), "inconsistent: {inconsistent:?}");
}

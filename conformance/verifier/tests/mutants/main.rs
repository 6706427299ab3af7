//! The tests notification each fault that can be planted: they would be worth little if they did not.
//! The conformance suite is asked first, then what was made for one fault each.
//!
//! Needs `--cfg leasehold_mutants`; `./test` builds and runs it in a target folder of its own.
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

/// The first case, in the order of the suite, that fails under the mutant that is planted.
fn first_failure(harness: &Arc<dyn Harness>) -> Option<String> {
    let case = cases().find(|case| run_case(harness, case).is_err());
    let scenario = || SCENARIOS.iter().find(|scenario| !scenario.passes());
    case.map(|case| case.name())
        .or_else(|| scenario().map(|scenario| format!("directed::{}", scenario.name)))
}

/// Faults of the client, and cases that were made to notice them.
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

/// Those of [`NOTICED_BY`] that are not noticed.
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
    // What fails by itself would seem to notice everything.
    let failing = first_failure(&harness);
    assert_eq!(failing, None, "with nothing planted");
    // Under a mutant, panics of the code under test are one way to be noticed; their traces
    // would only hide the table. But the state machine must not notice a mutant by itself.
    let by_itself = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&by_itself);
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
        if by_itself.swap(false, Ordering::Relaxed) {
            inconsistent.push(mutant.name());
        }
    }
    let unnoticed = unnoticed(&harness);
    let _ = panic::take_hook();
    assert!(unnoticed.is_empty(), "not noticed: {unnoticed:?}");
    assert!(missed.is_empty(), "no case noticed {missed:?}");
    assert!(inconsistent.is_empty(), "inconsistent: {inconsistent:?}");
}

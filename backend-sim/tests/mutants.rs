//! The tests notice each fault that can be planted: they would be worth little if they did not.
//! The conformance suite is asked first, then what was made for one fault each.
//!
//! Needs `--cfg leasehold_mutants`; `./test` builds and runs it in a target folder of its own.
#![cfg(leasehold_mutants)]

mod directed;
mod harness;

use std::panic;
use std::sync::Arc;

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

#[test]
fn every_mutant_fails_a_case() {
    for scenario in SCENARIOS {
        assert!(scenario.passes(), "{} fails by itself", scenario.name);
    }
    let harness: Arc<dyn Harness> = Arc::new(harness::Simulated);
    // Under a mutant, panics of the code under test are one way to be noticed; their traces
    // would only hide the table.
    panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    println!("{:<50} {:<8} first case that fails", "mutant", "breaks");
    for mutant in Mutant::ALL.iter().filter(|it| !it.needs_threads()) {
        mutant.plant();
        match first_failure(&harness) {
            Some(case) => println!("{:<50} {:<8} {case}", mutant.name(), mutant.rule()),
            None => missed.push(mutant.name()),
        }
    }
    let _ = panic::take_hook();
    assert!(missed.is_empty(), "no case noticed {missed:?}");
}

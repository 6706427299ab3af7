//! The suite notices each fault that can be planted: it would be worth little if it did not.
//!
//! Needs `--cfg leasehold_mutants`; `./test` builds and runs it in a target folder of its own.
#![cfg(leasehold_mutants)]

mod harness;

use std::panic;
use std::sync::Arc;

use leasehold_api::mutants::Mutant;
use leasehold_conformance::{Case, Harness, cases, run_case};

/// The first case, in the order of the suite, that fails under the mutant that is planted.
fn first_failure(harness: &Arc<dyn Harness>) -> Option<(&'static Case, String)> {
    cases().find_map(|case| {
        let failure = run_case(harness, case).err()?;
        Some((case, failure.to_string()))
    })
}

#[test]
fn every_mutant_fails_a_case() {
    let harness: Arc<dyn Harness> = Arc::new(harness::Simulated);
    // Under a mutant, panics of the code under test are one way to be noticed; their traces
    // would only hide the table.
    panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    println!("{:<30} {:<8} first case that fails", "mutant", "breaks");
    for mutant in Mutant::ALL {
        mutant.plant();
        match first_failure(&harness) {
            Some((case, _)) => {
                println!("{:<30} {:<8} {}", mutant.name(), mutant.rule(), case.name());
            }
            None => missed.push(mutant.name()),
        }
    }
    let _ = panic::take_hook();
    assert!(missed.is_empty(), "no case noticed {missed:?}");
}

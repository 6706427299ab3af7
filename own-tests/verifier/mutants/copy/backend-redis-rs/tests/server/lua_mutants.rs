//! The conformance suite detects every mutant of the scripts.

use std::sync::Arc;

use leasehold_conformance::{Case, Harness, cases, run_case};
use leasehold_redis_common::script::mutants::{ALL, LuaMutant};

use crate::harness::Redis;

/// The cases that this backend runs. Those for the broken rule come first.
fn cases_for(harness: &dyn Harness, mutant: &LuaMutant) -> Vec<&'static Case> {
    let mut cases: Vec<_> = cases()
        .filter(|case| case.ignored_because(harness).is_none())
        .collect();
    cases.sort_by_key(|case| !case.rules().contains(&mutant.rule));
    cases
}

#[test]
fn every_mutant_of_the_scripts_fails_a_case() {
    let mut missed = Vec::new();
    println!("{:<36} {:<8} first case that fails", "mutant", "breaks");
    for mutant in ALL {
        // A new server for each mutant: one must not affect the next.
        let harness: Arc<dyn Harness> =
            Arc::new(Redis::start("redis-rs", include_str!("../../src/lib.rs")));
        mutant.plant();
        let detected_by = cases_for(&*harness, mutant)
            .into_iter()
            .find(|case| run_case(&harness, case).is_err());
        match detected_by {
            Some(case) => println!("{:<36} {:<8} {}", mutant.name, mutant.rule, case.name()),
            None => missed.push(mutant.name),
        }
    }
    assert!(missed.is_empty(), "no case detected {missed:?}");
}

//! The suite rejects stores that break the contract.

use std::sync::Arc;

use leasehold_conformance::{Harness, cases, run_case};

use crate::support::Faults;
use crate::support::harness::Memory;

/// Runs the case on a store with these faults.
fn passes(name: &str, faults: Faults) -> bool {
    let harness: Arc<dyn Harness> = Arc::new(Memory(faults));
    let case = cases().find(|case| case.name() == name);
    run_case(&harness, case.expect("a case of this name")).is_ok()
}

#[test]
fn store_that_ignores_deadlines_is_rejected() {
    let case = "stalls::stalled_acquire_takes_nothing_after_its_window";
    assert!(passes(case, Faults::default()));
    let broken = Faults {
        late_is_fine: true,
        ..Faults::default()
    };
    assert!(!passes(case, broken));
}

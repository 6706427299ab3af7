//! The check of a store by itself.

use std::time::Duration;

use leasehold_store::check_writes;

use crate::steps::key;
use crate::support::{Faults, Server, block_on};

/// The problem of a store with these faults.
fn problem(faults: Faults) -> Option<String> {
    block_on(async {
        let server = Server::new(1, Duration::from_millis(1));
        server.set_faults(faults);
        let checked = check_writes(&server.store(), &key()).await;
        checked.err().map(|problem| problem.to_string())
    })
}

#[test]
fn store_that_breaks_the_contract_of_writes_is_found() {
    assert_eq!(problem(Faults::default()), None);
    for (faults, expected) in [
        (
            Faults {
                late_is_fine: true,
                ..Faults::default()
            },
            "creates a row after its deadline must not be applied",
        ),
        (
            Faults {
                conflict: 100,
                ..Faults::default()
            },
            "creates a row in time must be applied",
        ),
    ] {
        let problem = problem(faults).expect("it breaks the contract");
        assert!(problem.contains(expected), "{problem}");
    }
}

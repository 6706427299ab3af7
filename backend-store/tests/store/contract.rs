//! The check of a store by its backend.

use std::time::Duration;

use leasehold_api::{BackendError, Key, LockBackend};

use crate::steps::key;
use crate::support::{Faults, Server, block_on};

/// What the backend finds in a store with these faults.
fn problem(faults: Faults) -> Option<BackendError> {
    block_on(async {
        let server = Server::new(1, Duration::from_millis(1));
        server.set_faults(faults);
        server.compare_reach();
        server.send_rows();
        server.client().self_check(&key()).await.err()
    })
}

#[test]
fn store_that_breaks_the_contract_of_writes_is_found() {
    let fine = Faults {
        conflict: 30,
        copied: 30,
        ..Faults::default()
    };
    assert!(problem(fine).is_none(), "{:?}", problem(fine));
    let none = Faults::default();
    for (faults, expected) in [
        (
            Faults {
                late_is_fine: true,
                ..none
            },
            "creates a row after its deadline must not be applied",
        ),
        (
            Faults {
                late_replacement_is_fine: true,
                ..none
            },
            "replaces a row after its deadline must not be applied",
        ),
        (
            Faults {
                future_is_fine: true,
                ..none
            },
            "is before the time of its step must not be applied",
        ),
        (
            Faults {
                echoes: true,
                ..none
            },
            "creates a row in time must be applied",
        ),
        (
            Faults {
                messages_are_fine: true,
                ..none
            },
            "replaces a row after its deadline must not be applied",
        ),
        (
            Faults {
                silence_is_fine: true,
                ..none
            },
            "for a session that doesn't listen must not be applied",
        ),
        (
            Faults {
                created_without_time: true,
                ..none
            },
            "answers `AppliedAt` to some writes",
        ),
        (
            Faults {
                old_clock: true,
                ..none
            },
            "must bring the row and the clock, or nothing",
        ),
        (
            Faults {
                conflict: 100,
                ..none
            },
            "creates a row in time must be applied",
        ),
        (
            Faults {
                forgets: true,
                ..none
            },
            "`remove_expired` removed a row before its `keep_until`",
        ),
    ] {
        let problem = problem(faults).expect("it breaks the contract");
        assert!(
            matches!(problem, BackendError::Rejected { .. }),
            "{problem}"
        );
        assert!(problem.to_string().contains(expected), "{problem}");
    }
}

/// The connection for renewals is another store.
#[test]
fn both_connections_are_checked() {
    block_on(async {
        let [good, bad] = [1, 2].map(|seed| Server::new(seed, Duration::from_millis(1)));
        bad.set_faults(Faults {
            late_is_fine: true,
            ..Faults::default()
        });
        let backend = good.client().renewals(good.store());
        backend
            .self_check(&key())
            .await
            .expect("two good connections");
        let other = Key::new("another").expect("valid");
        let backend = good.client().renewals(bad.store());
        assert!(backend.self_check(&other).await.is_err(), "not noticed");
    });
}

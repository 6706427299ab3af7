//! The check of a store by its backend.

use std::time::Duration;

use leasehold_api::{BackendError, Key, LockBackend};

use crate::steps::key;
use crate::support::{Fault, Faults, Flaw, Server};

/// What the backend finds in a store with these faults.
async fn problem(faults: Faults) -> Option<BackendError> {
    let server = Server::new(1, Duration::from_millis(1));
    server.set_faults(faults);
    server.compare_reach();
    server.send_rows();
    server.client().self_check(&key()).await.err()
}

/// What the backend says about a store with this flaw.
const fn finding(flaw: Flaw) -> &'static str {
    match flaw {
        Flaw::LateIsFine => "creates a row after its deadline must not be applied",
        Flaw::LateReplacementIsFine | Flaw::MessagesAreFine => {
            "replaces a row after its deadline must not be applied"
        }
        Flaw::FutureIsFine => "is before the time of its step must not be applied",
        Flaw::Echoes => "creates a row in time must be applied",
        Flaw::SilenceIsFine => "for a session that doesn't listen must not be applied",
        Flaw::CreatedWithoutTime => "answers `AppliedAt` to some writes",
        Flaw::OldClock => "must bring the row and the clock, or nothing",
        Flaw::Forgets => "`remove_expired` removed a row before its `keep_until`",
    }
}

#[tokio::test(start_paused = true)]
async fn store_that_breaks_the_contract_of_writes_is_found() {
    let fine = Faults::default()
        .share(Fault::Conflict, 30)
        .share(Fault::Copied, 30);
    assert_matches!(problem(fine).await, None);
    let flaws = Flaw::ALL.map(|flaw| (Faults::flawed(flaw), finding(flaw)));
    let refuses = Faults::always(Fault::Conflict);
    let refuses = (refuses, "creates a row in time must be applied");
    for (faults, expected) in flaws.into_iter().chain([refuses]) {
        let problem = problem(faults).await.expect("it breaks the contract");
        assert_matches!(problem, BackendError::Rejected { .. });
        let text = problem.to_string();
        assert!(text.contains(expected), "{faults:?}: {text}");
    }
}

/// The connection for renewals is another store.
#[tokio::test(start_paused = true)]
async fn both_connections_are_checked() {
    let [good, bad] = [1, 2].map(|seed| Server::new(seed, Duration::from_millis(1)));
    bad.set_faults(Faults::flawed(Flaw::LateIsFine));
    let backend = good.client().renewals(good.store());
    let checked = backend.self_check(&key()).await;
    checked.expect("two good connections");
    let other = Key::new("another").expect("valid");
    let backend = good.client().renewals(bad.store());
    assert!(backend.self_check(&other).await.is_err(), "not noticed");
}

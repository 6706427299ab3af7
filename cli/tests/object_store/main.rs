//! The command `leasehold` on an S3 server.

#[path = "../scenarios/mod.rs"]
#[allow(dead_code, reason = "each test target uses a part")]
mod scenarios;

use leasehold_test_servers::SeaweedFs;
use scenarios::support::{Place, STUBBORN};
use scenarios::{ALL, NEED_A_CLOCK, Scenario, operators, run_all, statuses};

/// Nobody tells a holder that its lock is revoked. It learns that when it renews.
const NEED_PUSH: [&str; 3] = [
    "revoked",
    "revoked_while_the_command_is_stopped",
    "terms_that_end_at_once_are_paused",
];

#[test]
fn object_store() {
    let server = SeaweedFs::start();
    let cannot = |name: &str| NEED_PUSH.contains(&name) || NEED_A_CLOCK.contains(&name);
    let others: Vec<Scenario> = ALL
        .iter()
        .filter(|(name, _)| !cannot(name))
        .copied()
        .collect();
    assert_eq!(
        others.len() + NEED_PUSH.len() + NEED_A_CLOCK.len(),
        ALL.len()
    );
    run_all(&server.url("a folder"), &others);
}

#[test]
fn doctor() {
    let server = SeaweedFs::start();
    let place = Place::new(&server.url(""), "doctor");
    // Waiters poll, which is reported as a problem.
    let (_, text) = operators::run(&place, &["doctor"]);
    for good in ["settings: bucket", "clock: not used"] {
        assert!(text.contains(&format!("ok      {good}")), "{text}");
    }
}

#[test]
fn killed() {
    let mut server = SeaweedFs::start();
    let place = Place::new(&server.url(""), "killed");
    let mut started = place.start(&[], STUBBORN);
    server.stop();
    started.expect_dead_before_the_lease_ends();
    started.expect_status(70);
    server.restart();
    place.client().expect_free(started.group());
}

#[test]
fn jobs_and_shared_locks_are_refused() {
    let server = SeaweedFs::start();
    statuses::refused_without_a_clock(&Place::new(&server.url(""), "refused"));
}

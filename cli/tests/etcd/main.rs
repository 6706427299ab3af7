//! The command `leasehold` on etcd.

#[path = "../scenarios/mod.rs"]
#[allow(dead_code, reason = "each test target uses a part")]
mod scenarios;

use leasehold_test_servers::EtcdServer;
use scenarios::support::{Place, STUBBORN};
use scenarios::{ALL, NEED_A_CLOCK, Scenario, operators, run_all, statuses};

#[test]
fn etcd() {
    let server = EtcdServer::start();
    let cannot = |name: &str| NEED_A_CLOCK.contains(&name);
    let others = ALL.iter().filter(|(name, _)| !cannot(name));
    let others: Vec<Scenario> = others.copied().collect();
    assert_eq!(others.len() + NEED_A_CLOCK.len(), ALL.len());
    run_all(&server.url(), &others);
}

#[test]
fn doctor() {
    let server = EtcdServer::start();
    let (status, text) = operators::run(&Place::new(&server.url(), "doctor"), &["doctor"]);
    assert_eq!(status, Some(0), "{text}");
    for good in ["settings: a leader", "clock: not used"] {
        assert!(text.contains(&format!("ok      {good}")), "{text}");
    }
}

#[test]
fn killed() {
    let mut server = EtcdServer::start();
    let place = Place::new(&server.url(), "killed");
    let mut started = place.start(&[], STUBBORN);
    server.stop();
    started.expect_dead_before_the_lease_ends();
    started.expect_status(70);
    server.restart();
    place.client().expect_free(started.group());
}

#[test]
fn jobs_and_shared_locks_are_refused() {
    let server = EtcdServer::start();
    statuses::refused_without_a_clock(&Place::new(&server.url(), "refused"));
}

//! The command `leasehold` on NATS.

#[path = "../scenarios/mod.rs"]
#[allow(dead_code, reason = "each test target uses a part")]
mod scenarios;

use leasehold_test_servers::NatsServers;
use scenarios::support::Place;
use scenarios::{ALL, operators, run_all};

#[test]
fn nats() {
    let server = NatsServers::start("");
    run_all(&server.url(), ALL);
}

#[test]
fn doctor() {
    let server = NatsServers::start("");
    let (status, text) = operators::run(&Place::new(&server.url(), "doctor"), &["doctor"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("ok      settings: bucket"), "{text}");
}

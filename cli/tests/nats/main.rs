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
    let url = server.url().replace("nats://", "tls://");
    let refused = Place::new(&url, "doctor")
        .leasehold()
        .arg("doctor")
        .output();
    let refused = refused.expect("the command runs");
    let text = String::from_utf8_lossy(&refused.stderr);
    let is_named = text.contains("no TLS with the server");
    assert!(is_named && !refused.status.success(), "{text}");
}

//! The command `leasehold` on Redis.

mod replicas;
#[path = "../scenarios/mod.rs"]
#[allow(dead_code, reason = "each test target uses a part")]
mod scenarios;
mod servers;
mod steps;
mod texts;

use leasehold_test_servers::{RedisServer, ServerOptions};
use scenarios::support::{Place, Started};
use scenarios::{ALL, operators, run_all, statuses};

#[test]
fn redis() {
    let server = RedisServer::start();
    run_all(&server.url(), ALL);
}

#[test]
fn usage() {
    // Nothing listens there.
    statuses::usage(&Place::new("redis://127.0.0.1:1", "usage"));
}

#[test]
fn a_server_that_refuses() {
    let server = ServerOptions::default()
        .with_config("requirepass", ["secret"])
        .start();
    let place = Place::new(&server.url(), "refused");
    let mut refused = Started::new(place.run(&[], "true"));
    let text = refused.expect_status(77);
    assert!(!text.contains("secret"), "{text}");

    // The password comes from a file.
    let url = format!("redis://:secret@127.0.0.1:{}\n", server.port());
    std::fs::write(place.file("url"), url).expect("written");
    let mut accepted = Started::new(place.run(&["--url-file", "url"], "exit 2"));
    accepted.expect_status(2);
}

/// It ends, and says why nothing works.
#[test]
fn doctor_of_a_server_without_scripts() {
    let options = ServerOptions::default().with_config("rename-command", ["EVALSHA", ""]);
    let server = options.start();
    let place = Place::new(&server.url(), "doctor without scripts");
    let output = place.leasehold().arg("doctor").output();
    let output = output.expect("the command runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(77), "{text}");
    assert!(text.contains("locks need EVALSHA"), "{text}");
}

/// Without persistence, a restart would lose locks.
#[test]
fn doctor() {
    let (forgetful, persistent) = (ServerOptions::default(), ServerOptions::default());
    for (options, status, line) in [
        (forgetful, 1, "problem settings: "),
        (persistent.with_append_only(), 0, "ok      settings: "),
    ] {
        let server = options.start();
        let place = Place::new(&server.url(), "doctor");
        let (found, text) = operators::run(&place, &["doctor"]);
        assert_eq!(found, Some(status), "{text}");
        assert!(text.contains(line), "{text}");
    }
}

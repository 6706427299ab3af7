//! The command `leasehold` on MariaDB.

#[path = "../scenarios/mod.rs"]
#[allow(dead_code, reason = "each test target uses a part")]
mod scenarios;

use leasehold_test_servers::MariaDb;
use scenarios::support::{Place, STUBBORN};
use scenarios::{ALL, Scenario, operators, run_all};

/// Nobody tells a holder that its lock is revoked. It learns that when it renews.
const NEED_PUSH: [&str; 3] = [
    "revoked",
    "revoked_while_the_command_is_stopped",
    "terms_that_end_at_once_are_paused",
];

/// A server with the schema, and its URL.
fn server() -> (MariaDb, String) {
    let server = MariaDb::start(&[]);
    let place = Place::new("mysql://nobody@127.0.0.1:1/none", "schema");
    let (status, schema) = operators::run(&place, &["schema", "mysql"]);
    assert_eq!(status, Some(0), "{schema}");
    server.execute("shop", &schema);
    let url = server.url("root");
    (server, url)
}

#[test]
fn mysql() {
    let (_server, url) = server();
    let others = ALL.iter().filter(|(name, _)| !NEED_PUSH.contains(name));
    let others: Vec<Scenario> = others.copied().collect();
    assert_eq!(others.len() + NEED_PUSH.len(), ALL.len());
    run_all(&url, &others);
}

#[test]
fn doctor() {
    let (_server, url) = server();
    let url = url.replacen("mysql:", "mariadb:", 1);
    let (status, text) = operators::run(&Place::new(&url, "doctor"), &["doctor"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("ok      settings: schema"), "{text}");
}

#[test]
fn killed() {
    let (mut server, url) = server();
    let place = Place::new(&url, "killed");
    let mut started = place.start(&[], STUBBORN);
    server.stop();
    started.expect_dead_before_the_lease_ends();
    started.expect_status(70);
    server.restart();
    place.client().expect_free(started.group());
}

//! The command `leasehold` on MariaDB.

#[path = "../scenarios/mod.rs"]
#[allow(dead_code, reason = "each test target uses a part")]
mod scenarios;

use std::process::Command;

use leasehold_test_servers::{Authority, MariaDb};
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
    prepared(MariaDb::start(&[]))
}

fn prepared(server: MariaDb) -> (MariaDb, String) {
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

/// With the authorities of the machine.
#[test]
fn tls() {
    let authority = Authority::new();
    let server = MariaDb::start_with_tls(&authority.issue("127.0.0.1"), &authority);
    let (_server, url) = prepared(server);
    let place = Place::new(&(url + "?require_ssl=true"), "tls");
    let file = place.file("authority.pem");
    std::fs::write(&file, authority.certificate()).expect("a file");
    let run = |command: &mut Command| {
        let output = command.output().expect("the command runs");
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).into_owned()
    };
    assert_eq!(
        run(place.run(&[], "echo ran").env("SSL_CERT_FILE", file)),
        "ran\n"
    );
    let refused = run(&mut place.run(&[], "echo ran"));
    assert!(
        refused.contains("not issued by a known authority"),
        "{refused}"
    );
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

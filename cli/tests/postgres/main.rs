//! The command `leasehold` on Postgres.

#[path = "../scenarios/mod.rs"]
#[allow(dead_code, reason = "each test target uses a part")]
mod scenarios;

use leasehold_test_servers::{PgBouncer, PostgresOptions, PostgresServer, SteppedClock};
use scenarios::support::{Place, STUBBORN};
use scenarios::{ALL, Scenario, elections, operators, pauses, run_all};

/// A server with the schema, and its URL for a user who may use it.
fn server() -> (PostgresServer, String) {
    with_schema(PostgresOptions::default())
}

fn with_schema(options: PostgresOptions) -> (PostgresServer, String) {
    // Other tests don't sync, because that takes time, and `doctor` notices.
    let server = options.with_setting("fsync=on").start();
    server.execute("postgres", leasehold::postgres::SCHEMA);
    let folder = server.folder().display().to_string().replace('/', "%2F");
    let url = format!("postgres://owner@{folder}:{}/postgres", server.port());
    (server, url)
}

#[test]
fn postgres() {
    let (_server, url) = server();
    run_all(&url, ALL);
}

/// Nobody tells a holder behind a pooler that its lock is revoked. It learns that when it renews.
const NEED_PUSH: [&str; 3] = [
    "revoked",
    "revoked_while_the_command_is_stopped",
    "terms_that_end_at_once_are_paused",
];

/// The URL says that it leads to a pooler.
#[test]
fn pooled() {
    let (server, _) = server();
    let settings = "pool_mode = transaction\nmax_client_conn = 500";
    let pooler = PgBouncer::start(&server, "owner", settings);
    let url = pooler.scheme_url("owner", "postgres");
    let others = ALL.iter().filter(|(name, _)| !NEED_PUSH.contains(name));
    let others: Vec<Scenario> = others.copied().collect();
    assert_eq!(others.len() + NEED_PUSH.len(), ALL.len());
    run_all(&format!("{url}?pgbouncer=true"), &others);
    let refused = Place::new(&url, "refused")
        .leasehold()
        .arg("doctor")
        .output();
    let refused = refused.expect("the command runs");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{text}");
    assert!(text.contains("add pgbouncer=true to the URL"), "{text}");
}

#[test]
fn clock_set_back() {
    let clock = SteppedClock::new();
    let (_server, url) = with_schema(PostgresOptions::default().with_clock(&clock));
    pauses::clock_set_back(&Place::new(&url, "clock"), &clock);
    clock.set(0);
    pauses::clock_set_back_under_a_leader(&Place::new(&url, "leader"), &clock);
}

#[test]
fn killed_and_back() {
    let (server, url) = server();
    let server = std::cell::RefCell::new(server);
    elections::service_away(
        &Place::new(&url, "away"),
        || server.borrow_mut().stop(),
        || server.borrow_mut().restart(),
    );
}

#[test]
fn doctor_sees_settings() {
    let (server, url) = server();
    let place = Place::new(&url, "doctor");
    let doctor = || operators::run(&place, &["doctor"]);
    let (status, text) = doctor();
    assert_eq!(status, Some(0), "{text}");
    server.execute("postgres", "ALTER TABLE leasehold.locks SET UNLOGGED");
    let (status, text) = doctor();
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("problem settings: the table"), "{text}");
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

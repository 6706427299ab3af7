//! The command `leasehold` during failovers.

#[path = "../scenarios/mod.rs"]
#[allow(dead_code, reason = "each test target uses a part")]
mod scenarios;

use std::time::Duration;

use leasehold_test_servers::SentinelServers;
use scenarios::support::Place;

const DOWN_AFTER: Duration = Duration::from_millis(500);
/// Longer than a failover takes.
const TIMES: [&str; 4] = ["--lease", "15s", "--kill-after", "1s"];

/// The lock outlasts the primary, and so does CMD.
fn outlasts(key: &str, fail: impl FnOnce(&mut SentinelServers)) {
    let mut servers = SentinelServers::start(DOWN_AFTER);
    let place = Place::new(&servers.url(), key);
    servers.wait_until_in_sync();
    let mut started = place.start_with(&TIMES, "sleep 12; exit 5");
    servers.wait_until_in_sync();
    fail(&mut servers);
    started.expect_status(5);
    place.client().expect_free(started.group());
}

#[test]
fn primary_killed() {
    outlasts("killed", |servers| {
        let primary = servers.primary();
        servers.server_mut(primary).kill();
        servers.wait_for_another_primary(primary);
    });
}

#[test]
fn failed_over() {
    outlasts("failed over", |servers| {
        servers.fail_over();
    });
}

//! The command `leasehold` during failovers.

#[path = "../scenarios/mod.rs"]
#[allow(dead_code, reason = "each test target uses a part")]
mod scenarios;

use std::time::Duration;

use leasehold_test_servers::SentinelServers;
use scenarios::support::{Place, SLACK, Started};

const DOWN_AFTER: Duration = Duration::from_millis(500);
/// Longer than a failover takes.
const TIMES: [&str; 4] = ["--lease", "15s", "--kill-after", "1s"];

fn start(servers: &SentinelServers, key: &str) -> (Place, Started) {
    let place = Place::new(&servers.url(), key);
    servers.wait_until_in_sync();
    let started = place.start_with(&TIMES, "sleep 12; exit 5");
    servers.wait_until_in_sync();
    (place, started)
}

/// The lock outlasts the primary, and so does CMD.
#[test]
fn primary_killed() {
    let mut servers = SentinelServers::start(DOWN_AFTER);
    let (place, mut started) = start(&servers, "killed");
    let primary = servers.primary();
    servers.server_mut(primary).kill();
    servers.wait_for_another_primary(primary);
    started.expect_status(5, Duration::from_secs(12) + SLACK);
    place.client().expect_free(started.group(), SLACK);
}

#[test]
fn failed_over() {
    let servers = SentinelServers::start(DOWN_AFTER);
    let (place, mut started) = start(&servers, "failed over");
    servers.fail_over();
    started.expect_status(5, Duration::from_secs(12) + SLACK);
    place.client().expect_free(started.group(), SLACK);
}

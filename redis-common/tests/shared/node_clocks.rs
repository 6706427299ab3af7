//! Nodes of a cluster whose clocks differ, which assumption A3 excludes.

use std::time::Duration;

use leasehold_api::{LockClient, MutexGuard, Outcome};
use leasehold_test_servers::{RedisCluster, ServerOptions, SteppedClock};

use super::cluster::{client, lock, stored};
use super::events;

/// How far the clock of one node is ahead, longer than the lease.
const AHEAD: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(30);

/// Three primaries. The clock of the last one is ahead.
fn cluster(clock: &SteppedClock) -> RedisCluster {
    clock.set(i64::try_from(AHEAD.as_micros()).expect("a minute"));
    RedisCluster::start_with(3, |node| match node {
        2 => ServerOptions::default().with_program(clock.program()),
        _ => ServerOptions::default(),
    })
}

async fn try_lock(locks: &LockClient, name: &str) -> Outcome<MutexGuard> {
    let tried = lock(locks, name, LEASE).try_lock().await;
    tried.expect("an answer")
}

/// The counter-example of decision 0044.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_that_moves_to_a_node_whose_clock_is_ahead_is_free_too_early() {
    events::record();
    let clock = SteppedClock::new();
    let cluster = cluster(&clock);
    let (a, b) = (client(&cluster).await, client(&cluster).await);
    let names = (0..).map(|number| format!("lock {number}"));
    let mut on_first = names.filter(|name| cluster.primary_of(&stored(name)) == 0);
    let [name, other] = [(); 2].map(|()| on_first.next().expect("one of many"));

    let first = try_lock(&a, &name).await.into_guard().expect("free");
    let _seen = try_lock(&b, &other).await.into_guard().expect("free");
    assert!(!try_lock(&b, &name).await.is_acquired());
    cluster.migrate(&stored(&name), 2);
    let second = try_lock(&b, &name).await.into_guard().expect("it expired");
    assert!(first.is_valid() && second.is_valid(), "two holders");
    assert!(
        first.fencing_token() < second.fencing_token(),
        "fencing refuses the first"
    );

    let [behind, ahead] = [0, 2].map(|node: usize| cluster.nodes()[node].address().to_string());
    let warned = events::lines("WARN server clocks differ", &format!("ahead={ahead:?}"));
    assert_eq!(warned.len(), 1, "{warned:?}");
    let (servers, difference) = warned[0].split_once(" difference_ms=").expect("a field");
    assert!(
        servers.ends_with(&format!("behind={behind:?}")),
        "{servers}"
    );
    let difference: f64 = difference.parse().expect("a number");
    assert!((difference - 60_000.0).abs() < 1_000.0, "{difference}");
}

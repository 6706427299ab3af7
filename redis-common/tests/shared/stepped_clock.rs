//! The server's clock steps while locks are held.

use std::time::Duration;

use leasehold_api::{Loss, bounds};
use leasehold_test_servers::{
    FaultProxy, RedisServer, ServerOptions, SteppedClock, Stopwatch, throughout,
};

use super::support::{client, connected, hold};

/// Far above the allowed clock difference, but too short for a lease to expire.
const STEP_US: i64 = 2_000_000;
const LEASE: Duration = Duration::from_secs(9);
/// An allowance.
const MARGIN: Duration = Duration::from_millis(1_500);

/// The connection may lead to another server, so a step looks like one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn step_without_run_id_is_a_new_clock() {
    let (server, clock) = server_with_a_clock();
    let proxy = FaultProxy::start(server.address()).await;
    proxy.rename_in_replies("\nrun_id:", "\nxxx_id:");
    let backend = connected(&proxy.url()).await;
    let clock_id = async || backend.hello().await.expect("an answer").clock;
    let mut seen = vec![clock_id().await];
    for offset in [STEP_US, 0] {
        assert_eq!(clock_id().await, seen[seen.len() - 1]);
        clock.set(offset);
        let stepped = clock_id().await;
        assert!(!seen.contains(&stepped), "{stepped:?} in {seen:?}");
        seen.push(stepped);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stepped_server_clock_ends_validity() {
    let (server, clock) = server_with_a_clock();
    let mut offset = 0;
    for step in [STEP_US, -STEP_US] {
        let locks = client(&server.url()).await;
        let guard = hold(&locks, "stepped", LEASE).await;
        offset += step;
        clock.set(offset);
        let began = Stopwatch::start();
        let loss = locks.runtime().timeout(LEASE, guard.lost()).await;
        let noticed = began.elapsed();
        println!("{step} µs, noticed after {noticed:?}");
        assert_eq!(loss, Some(Loss::ClockStepped), "{step} µs");
        // The next renewal notices it, long before the deadline.
        assert!(
            noticed <= LEASE / bounds::RENEWALS_PER_LEASE + MARGIN,
            "{noticed:?}"
        );
        assert!(!guard.is_valid(), "a loss is final");
        guard.release().await.expect("an answer");

        let next = hold(&locks, "stepped", LEASE).await;
        let is_held = async || next.is_valid();
        throughout(LEASE / 2, "a later guard is not affected", is_held).await;
        next.release().await.expect("released");
        locks.shutdown().await.expect("shut down");
    }
}

/// A server whose wall clock differs from the machine's.
fn server_with_a_clock() -> (RedisServer, SteppedClock) {
    let clock = SteppedClock::new();
    let options = ServerOptions::default().with_program(clock.program());
    (options.start(), clock)
}

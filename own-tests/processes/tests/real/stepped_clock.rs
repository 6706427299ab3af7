//! The server's clock steps while locks are held.

use std::time::Duration;

use leasehold_api::{LockBackend, Loss, MutexGuard, bounds};
use leasehold_processes::Library;
use leasehold_test_servers::{
    FaultProxy, RedisServer, ServerOptions, SteppedClock, Stopwatch, throughout,
};

use crate::support::{client, connect};

/// Far above the allowed clock difference, but too short for a lease to expire.
const STEP_US: i64 = 2_000_000;
const LEASE: Duration = Duration::from_secs(9);
/// An allowance.
const MARGIN: Duration = Duration::from_millis(1_500);

through_both_libraries!(
    stepped_server_clock_ends_validity,
    step_without_run_id_is_a_new_clock
);

/// The connection may lead to another server, so a step looks like one.
async fn step_without_run_id_is_a_new_clock(library: Library) {
    let (server, clock) = server_with_a_clock();
    let proxy = FaultProxy::start(server.address()).await;
    proxy.rename_in_replies("\nrun_id:", "\nxxx_id:");
    let backend = library.connect(&proxy.url()).await.expect("connected");
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

async fn stepped_server_clock_ends_validity(library: Library) {
    let (server, clock) = server_with_a_clock();
    let mut offset = 0;
    for step in [STEP_US, -STEP_US] {
        let locks = client(connect(library, &server).await, "test");
        let mutex = |key| locks.mutex(key).expect("a good key").lease(LEASE);
        let guard = mutex("stepped").lock().await.expect("acquired");
        offset += step;
        clock.set(offset);
        let began = Stopwatch::start();
        let loss = tokio::time::timeout(LEASE, guard.lost()).await;
        let noticed = began.elapsed();
        println!("{}: {step} µs, noticed after {noticed:?}", library.name());
        assert_eq!(loss, Ok(Loss::ClockStepped), "{step} µs");
        // The next renewal notices it, long before the deadline.
        assert!(
            noticed <= LEASE / bounds::RENEWALS_PER_LEASE + MARGIN,
            "{noticed:?}"
        );
        assert!(!guard.is_valid(), "a loss is final");
        guard.release().await.expect("an answer");

        let next: MutexGuard = mutex("stepped").lock().await.expect("acquired");
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

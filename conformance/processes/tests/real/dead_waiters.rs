//! Waiters that die in the queue delay the others by one waiter lease together, whatever their
//! number.

use std::time::{Duration, Instant};

use leasehold_api::LockClient;
use leasehold_processes::Library;
use leasehold_test_servers::RedisServer;
use rustix::process::Signal;

use crate::support::{Behavior, Processes, client, queue, run, until};

const PROCESSES: usize = 32;
/// The queue positions of the waiters that die. They are not adjacent, so that a cost for each
/// one would add up to five waiter leases.
const VICTIMS: [usize; 5] = [1, 7, 13, 19, 25];
const WAITER_LEASE: Duration = Duration::from_secs(3);
/// The maximum time between two polls.
const POLL: Duration = Duration::from_secs(1);
/// An allowance for a busy machine: less than another waiter lease.
const MARGIN: Duration = Duration::from_millis(1_500);
const KEY: &str = "dead";

#[test]
fn dead_waiters_cost_one_waiter_lease_killed_through_redis_rs() {
    run(dead_waiters_cost_one_waiter_lease(
        Library::RedisRs,
        Signal::KILL,
    ));
}

#[test]
fn dead_waiters_cost_one_waiter_lease_killed_through_fred() {
    run(dead_waiters_cost_one_waiter_lease(
        Library::Fred,
        Signal::KILL,
    ));
}

#[test]
fn dead_waiters_cost_one_waiter_lease_stopped_through_redis_rs() {
    run(dead_waiters_cost_one_waiter_lease(
        Library::RedisRs,
        Signal::STOP,
    ));
}

#[test]
fn dead_waiters_cost_one_waiter_lease_stopped_through_fred() {
    run(dead_waiters_cost_one_waiter_lease(
        Library::Fred,
        Signal::STOP,
    ));
}

async fn dead_waiters_cost_one_waiter_lease(library: Library, signal: Signal) {
    let server = RedisServer::start();
    let locks = client(
        library.connect(&server.url()).await.expect("connected"),
        "test",
    );
    let mutex = locks
        .mutex(KEY)
        .expect("a good key")
        .waiter_lease(WAITER_LEASE);
    let gate = mutex.lock().await.expect("acquired");
    let behavior = Behavior {
        rounds: 1,
        waiter_lease: WAITER_LEASE,
    };
    let mut processes = Processes::start(library, &server.url(), KEY, PROCESSES, &behavior).await;
    processes.go().await;
    let waiting = all_wait(&locks).await;
    let victims = VICTIMS.map(|at| waiting[at].clone());
    for victim in &victims {
        processes.signal(victim, signal);
    }
    let died = Instant::now();
    gate.release().await.expect("released");

    let mut grants = processes.grants(PROCESSES - VICTIMS.len()).await;
    let last = grants.iter().map(|grant| grant.seen).max();
    let delay = last.expect("at least one grant").duration_since(died);
    println!(
        "{} {signal:?}: all others were served after {delay:?}",
        library.name()
    );
    assert!(delay <= WAITER_LEASE + POLL + MARGIN, "{delay:?}");
    // Tokens increase in the order in which the server granted the lock.
    grants.sort_by_key(|grant| grant.token);
    let served: Vec<_> = grants.iter().map(|grant| grant.label.clone()).collect();
    let mut expected = waiting;
    expected.retain(|label| !victims.contains(label));
    assert_eq!(served, expected, "in the order of the queue");

    let mut succeeded = PROCESSES - VICTIMS.len();
    if signal == Signal::STOP {
        // A resumed process queues again.
        for victim in &victims {
            processes.signal(victim, Signal::CONT);
        }
        processes.grants(VICTIMS.len()).await;
        succeeded = PROCESSES;
    }
    until(&locks, KEY, "the key is free", |seen| {
        seen.holder_count() == 0 && seen.waiter_count() == 0
    })
    .await;
    assert_eq!(
        processes.end().await,
        succeeded,
        "every process that was not killed succeeds"
    );
}

async fn all_wait(locks: &LockClient) -> Vec<String> {
    let seen = until(locks, KEY, "all processes wait", |seen| {
        seen.waiter_count() as usize == PROCESSES
    });
    queue(&seen.await)
}

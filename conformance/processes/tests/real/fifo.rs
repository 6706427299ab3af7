//! Waiters are served in order, across processes.

use std::time::Duration;

use leasehold_processes::Library;
use leasehold_test_servers::RedisServer;

use crate::support::{Behavior, Grant, Processes, client, queue, run, until};

const PROCESSES: usize = 32;
const ROUNDS: u32 = 4;
/// Long enough that no waiter expires, even on a busy machine.
const WAITER_LEASE: Duration = Duration::from_secs(60);
const KEY: &str = "fifo";

#[test]
fn fifo_across_processes_through_redis_rs() {
    run(fifo_across_processes(Library::RedisRs));
}

#[test]
fn fifo_across_processes_through_fred() {
    run(fifo_across_processes(Library::Fred));
}

async fn fifo_across_processes(library: Library) {
    let server = RedisServer::start();
    let locks = client(
        library.connect(&server.url()).await.expect("connected"),
        "test",
    );
    let mutex = locks.mutex(KEY).expect("a good key");
    let mutex = mutex.waiter_lease(WAITER_LEASE);
    let gate = mutex.lock().await.expect("acquired");
    let behavior = Behavior {
        rounds: ROUNDS,
        waiter_lease: WAITER_LEASE,
    };
    let mut processes = Processes::start(library, &server.url(), KEY, PROCESSES, &behavior).await;
    processes.go().await;
    let all_wait = until(&locks, KEY, "all processes wait", |seen| {
        seen.waiter_count() as usize == PROCESSES
    });
    let first_round = queue(&all_wait.await);
    gate.release().await.expect("released");

    let mut grants = processes.grants(PROCESSES * ROUNDS as usize).await;
    // Tokens increase in the order in which the server granted the lock.
    grants.sort_by_key(|grant| grant.token);
    let labels = grants.iter().map(|grant| grant.label.clone());
    assert_eq!(labels.take(PROCESSES).collect::<Vec<_>>(), first_round);
    assert_eq!(inversions(&grants), 0, "{grants:#?}");
    assert_eq!(processes.end().await, PROCESSES, "every process succeeds");
}

/// Counts pairs of grants that are not in the order of their tickets.
fn inversions(grants: &[Grant]) -> usize {
    let later = |(at, grant): (usize, &Grant)| {
        let rest = grants[at..].iter();
        rest.filter(|other| other.ticket < grant.ticket).count()
    };
    grants.iter().enumerate().map(later).sum()
}

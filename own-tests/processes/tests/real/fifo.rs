//! Waiters are served in order, across processes.

use std::sync::Arc;
use std::time::Duration;

use leasehold_processes::{Library, RecordingBackend};
use leasehold_test_servers::RedisServer;

use crate::support::{
    Behavior, Grant, PROCESSES, Processes, assert_order, client, connect, waiters,
};

const ROUNDS: u32 = 4;
/// Long enough that no waiter expires, even on a busy machine.
const WAITER_LEASE: Duration = Duration::from_secs(60);
const KEY: &str = "fifo";

through_both_libraries!(fifo_across_processes);

async fn fifo_across_processes(library: Library) {
    let server = RedisServer::start();
    let backend = RecordingBackend::new(connect(library, &server).await);
    let backend = backend.waiter_lease(WAITER_LEASE);
    let locks = client(Arc::new(backend), "test");
    let mutex = locks.mutex(KEY).expect("a good key");
    let gate = mutex.lock().await.expect("acquired");
    let behavior = Behavior {
        waiters: waiters(PROCESSES),
        rounds: ROUNDS,
        waiter_lease: WAITER_LEASE,
    };
    let mut processes = Processes::start(library, &server.url(), KEY, &behavior).await;
    let first_round = processes.queue_up(&locks, KEY).await;
    gate.release().await.expect("released");

    let grants = processes.grants(behavior.waiters * ROUNDS as usize).await;
    let first_grants = grants.iter().take(behavior.waiters);
    assert_order(
        first_grants.map(|grant| &grant.label),
        &first_round,
        "in the order of the queue",
    );
    let overtakes = |pair: &&[Grant]| pair[1].ticket < pair[0].ticket;
    let overtaker = grants.windows(2).find(overtakes);
    assert!(overtaker.is_none(), "{overtaker:#?}");
    assert_eq!(processes.end().await, PROCESSES, "every process succeeds");
}

//! Renewal goes on while the user's program blocks every thread that it has.

mod common;

use std::time::Duration;

use common::{WAYS, connect, key};
use leasehold_api::{LockClient, Outcome};
use leasehold_test_servers::{FaultProxy, RedisServer};

const LEASE: Duration = Duration::from_secs(2);

/// Blocks the one thread of the test's runtime, as a careless program does.
fn block(duration: Duration) {
    std::thread::sleep(duration);
}

#[tokio::test]
async fn a_blocked_program_keeps_its_lock() {
    let server = RedisServer::start();
    for way in WAYS.iter().filter(|way| way.push) {
        let locks = LockClient::new(way.open(&server.url()).await);
        let mutex = locks.mutex("blocked").expect("a good key").lease(LEASE);
        let guard = mutex.lock().await.expect("acquired");
        block(LEASE * 3);
        assert!(guard.is_valid(), "{}", way.name);
        let direct = connect(&server.url()).await.expect("connected");
        let seen = direct.inspect(&key("blocked")).await.expect("an answer");
        assert_eq!(seen.reply.holder_count, 1, "{}", way.name);
        assert_eq!(seen.reply.holders[0].token, guard.fencing_token());
        guard.release().await.expect("released");
        locks.shutdown().await.expect("shut down");
    }
}

/// Each renewal of so short a lease may take less time than it takes to see that the connection
/// is dead: what they saw together must suffice.
#[tokio::test]
async fn a_lock_outlives_the_death_of_the_connection_that_renews_it() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address()).await;
    for way in WAYS.iter().filter(|way| way.push) {
        let locks = LockClient::new(way.open(&proxy.url()).await);
        let mutex = locks.mutex("stranded").expect("a good key").lease(LEASE);
        let Outcome::Acquired(guard) = mutex.try_lock().await.expect("an answer") else {
            panic!("{}: not acquired", way.name);
        };
        tokio::time::sleep(LEASE).await;
        proxy.strand_connections();
        tokio::time::sleep(LEASE * 2).await;
        assert!(guard.is_valid(), "{}", way.name);
        guard.release().await.expect("released");
        locks.shutdown().await.expect("shut down");
    }
}

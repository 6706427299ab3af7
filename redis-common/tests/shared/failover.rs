//! Two servers behind one address that sends new connections to the current primary and leaves old
//! ones alone, as a load balancer does. After a graceful failover, waiters still listen at the old
//! primary, which relays the messages of the new one.

use std::time::{Duration, Instant};

use leasehold_api::{LockClient, MutexGuard};
use leasehold_test_servers::{FaultProxy, RedisServer};
use tokio::task::JoinHandle;

use super::replicas::{fail_over, replicate};
use super::support::{Claim, assert_exclusive, client, eventually};

const KEY: &str = "failed over";
/// The variable with the number of failovers.
const ROUNDS: &str = "LEASEHOLD_FAILOVERS";
/// How long each client works under the lock, if it stays valid. Much longer than it takes until two
/// guards meet.
const WORK: Duration = Duration::from_millis(100);
/// The time limit of a round on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn graceful_failover_gives_no_token_twice() {
    let rounds = std::env::var(ROUNDS).map_or(3, |rounds| rounds.parse().expect("a number"));
    let (first, second) = (RedisServer::start(), RedisServer::start());
    let proxy = FaultProxy::start(first.address()).await;
    let (mut primary, mut replica) = (&first, &second);
    replicate(primary, replica).await;
    let url = proxy.url();
    let clients = [client(&url).await, client(&url).await, client(&url).await];
    let mut all = Vec::new();
    for round in 1..=rounds {
        let held = fail_over_while_they_wait(&clients, &proxy, primary, replica).await;
        println!("failover {round}: {held:?}");
        all.extend(held);
        (primary, replica) = (replica, primary);
    }
    assert_exclusive(all);
}

/// One client holds the lock while the others wait, and releases it right after a failover. Returns
/// what each of them held.
async fn fail_over_while_they_wait(
    clients: &[LockClient],
    proxy: &FaultProxy,
    primary: &RedisServer,
    replica: &RedisServer,
) -> Vec<Claim> {
    let (holder, waiters) = clients.split_first().expect("clients");
    let guard = lock(holder).await;
    let (from, token) = (Instant::now(), guard.fencing_token());
    let mut waiting = Vec::new();
    for (waiter, position) in waiters.iter().zip(1..) {
        waiting.push(wait(waiter.clone()));
        eventually("the waiter is in the queue", async || {
            let inspection = holder.inspect(KEY).await.expect("an answer");
            inspection.waiter_count() == position
        })
        .await;
    }
    eventually("the waiters listen at the primary", async || {
        let channels = primary.run(&["PUBSUB", "CHANNELS", "*"]);
        channels.matches("leasehold:").count() >= waiters.len()
    })
    .await;
    #[expect(
        clippy::disallowed_methods,
        reason = "the next poll says so, and nothing shows that it has come"
    )]
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    fail_over(primary, replica).await;
    proxy.lead_to(replica.address());
    let until = Instant::now();
    assert!(guard.is_valid());
    guard.release().await.expect("released");
    let mut all = vec![Claim { from, until, token }];
    for waiter in waiting {
        let held = tokio::time::timeout(LIMIT, waiter).await;
        all.push(held.expect("everybody gets the lock").expect("no panic"));
    }
    eventually("the old primary follows the new one", async || {
        let answer = replica.run(&["INFO", "replication"]);
        answer.contains("state=online")
    })
    .await;
    all
}

async fn lock(client: &LockClient) -> MutexGuard {
    let mutex = client.mutex(KEY).expect("a good key");
    let guard = tokio::time::timeout(LIMIT, mutex.lock()).await;
    guard.expect("a lock in time").expect("a lock")
}

/// Works under the lock once the client gets it.
fn wait(client: LockClient) -> JoinHandle<Claim> {
    tokio::spawn(async move {
        let guard = lock(&client).await;
        let (from, token) = (Instant::now(), guard.fencing_token());
        let _ = tokio::time::timeout(WORK, guard.lost()).await;
        let until = Instant::now();
        let _ = guard.release().await;
        Claim { from, until, token }
    })
}

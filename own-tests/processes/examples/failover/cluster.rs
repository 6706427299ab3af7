//! A primary of a cluster is killed, and its replica takes over.

use std::time::{Duration, Instant};

use leasehold_processes::{Failure, Library};
use leasehold_test_servers::RedisCluster;

use crate::{AFTER, BEFORE, LEASE, connect, first_write};

/// What a run has shown.
pub(crate) struct Run {
    /// When the replica first took a write.
    pub(crate) raw: Duration,
    /// When it first granted a lock.
    pub(crate) granted: Duration,
    /// Whether the lock that was held during the failover was still held after its lease.
    pub(crate) kept: bool,
    /// Whether the waiter for that lock got a greater token.
    pub(crate) token_grew: bool,
}

pub(crate) async fn measure(library: Library) -> Result<Run, Failure> {
    let mut cluster = RedisCluster::start();
    let url = cluster.url();
    let [holder, waiter, taker] = [(); 3].map(|()| connect(library, &url));
    let (holder, waiter, taker) = (holder.await?, waiter.await?, taker.await?);
    let held = holder.mutex("held")?.lease(LEASE).lock().await?;
    let mutex = waiter.mutex("held")?;
    let waiting = tokio::spawn(async move { mutex.lock().await });
    let old = cluster.primary_of(&stored("held"));
    let name = name_at(&cluster, old);
    // Now the taker is connected there.
    let taken = taker.mutex(&name)?;
    taken.lock().await?.release().await?;
    tokio::time::sleep(BEFORE).await;

    let replica = cluster.nodes()[cluster.replica_of(old)].url();
    let began = Instant::now();
    cluster.kill(old);
    let raw = tokio::spawn(first_write(replica, format!("{{{name}}}")));
    let taken = taken.lock().await?;
    let granted = began.elapsed();
    let raw = raw.await? - began;
    taken.release().await?;
    tokio::time::sleep(AFTER).await;

    let kept = held.is_valid();
    let token = held.fencing_token();
    held.release().await?;
    let token_grew = waiting.await??.fencing_token() > token;
    Ok(Run {
        raw,
        granted,
        kept,
        token_grew,
    })
}

/// The Redis key of a lock.
fn stored(name: &str) -> String {
    format!("leasehold:{{{name}}}")
}

/// The name of another lock on a node.
fn name_at(cluster: &RedisCluster, node: usize) -> String {
    let mut names = (0..).map(|number| format!("taken {number}"));
    let found = names.find(|name| cluster.primary_of(&stored(name)) == node);
    found.expect("some name")
}

//! The functions in docs/redis.md that connect to a cluster and to Sentinel work.

use std::time::Duration;

use leasehold::LockClient;
use leasehold_test_servers::{RedisCluster, SentinelServers};

use page::{through_cluster, through_sentinels};

mod page {
    use leasehold::LockClient;
    use leasehold::redis_rs::{ConnectError, RedisBackend};

    pub(super) async fn through_cluster(nodes: [&str; 2]) -> Result<LockClient, ConnectError> {
        let [first, second] = nodes; // each is host:port; the default port is 6379
        let url = format!("redis-cluster://{first}?node={second}");
        Ok(LockClient::new(RedisBackend::connect(&url).await?))
    }

    pub(super) async fn through_sentinels(
        sentinels: [&str; 3],
        service: &str,
    ) -> Result<LockClient, ConnectError> {
        let [first, second, third] = sentinels; // each is host:port; the default port is 26379
        let url = format!(
            "redis-sentinel://{first}/?sentinelServiceName={service}&node={second}&node={third}"
        );
        Ok(LockClient::new(RedisBackend::connect(&url).await?))
    }
}

/// Checks that the body of the function that begins so is on the page as it is above.
fn is_on_the_page(first: &str, lines: usize) {
    let body = |text: &'static str| -> Vec<&str> {
        let all = text.lines().map(str::trim);
        let from = all.skip_while(|line| !line.starts_with(first));
        from.take_while(|line| *line != "}").collect()
    };
    let tested = body(include_str!("deployment.rs"));
    assert_eq!(body(include_str!("../../docs/redis.md")), tested);
    assert_eq!(tested.len(), lines);
}

async fn lock(locks: &LockClient, key: &str) {
    let guard = locks.mutex(key).expect("a good key").lock().await;
    let released = guard.expect("acquired").release().await;
    released.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_connects_to_a_cluster() {
    is_on_the_page("let [first, second] =", 3);
    let cluster = tokio::task::block_in_place(RedisCluster::start_without_replicas);
    let nodes = [1, 2].map(|node: usize| cluster.nodes()[node].address().to_string());
    let locks = through_cluster([&nodes[0], &nodes[1]]).await;
    let locks = locks.expect("connected");
    for key in ["a", "b", "c", "d", "e"] {
        lock(&locks, key).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_connects_to_sentinel() {
    is_on_the_page("let [first, second, third] =", 5);
    let down_after = Duration::from_secs(60);
    let servers = tokio::task::block_in_place(|| SentinelServers::start(down_after));
    let addresses = [0, 1, 2].map(|number| servers.sentinel(number).address().to_string());
    let addresses = addresses.each_ref().map(String::as_str);
    let locks = through_sentinels(addresses, SentinelServers::SERVICE).await;
    lock(&locks.expect("connected"), "k").await;
}

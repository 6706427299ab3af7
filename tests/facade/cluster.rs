//! The function in docs/deployment.md that connects to a cluster works.

use leasehold_test_servers::RedisCluster;

use page::through_cluster;

mod page {
    use leasehold::LockClient;
    use leasehold::redis_rs::{ConnectError, RedisBackend};

    pub(super) async fn through_cluster(nodes: [&str; 2]) -> Result<LockClient, ConnectError> {
        let [first, second] = nodes; // each is host:port; the default port is 6379
        let url = format!("redis-cluster://{first}?node={second}");
        Ok(LockClient::new(RedisBackend::connect(&url).await?))
    }
}

/// The lines of the function's body, as on the page and above.
fn body(text: &str) -> Vec<&str> {
    let lines = text.lines().map(str::trim);
    let from = lines.skip_while(|line| !line.starts_with("let [first, second] ="));
    from.take_while(|line| *line != "}").collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_connects_to_a_cluster() {
    let written = body(include_str!("../../docs/deployment.md"));
    assert_eq!(written, body(include_str!("cluster.rs")));
    assert_eq!(written.len(), 3);
    let cluster = tokio::task::block_in_place(RedisCluster::start_without_replicas);
    let nodes = [1, 2].map(|node: usize| cluster.nodes()[node].address().to_string());
    let locks = through_cluster([&nodes[0], &nodes[1]])
        .await
        .expect("connected");
    for name in ["a", "b", "c", "d", "e"] {
        let guard = locks.mutex(name).expect("a good key").lock().await;
        let released = guard.expect("acquired").release().await;
        released.expect("released");
    }
}

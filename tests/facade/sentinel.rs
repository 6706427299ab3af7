//! The function in docs/deployment.md that connects to Sentinel works.

use leasehold_test_servers::SentinelServers;

use page::through_sentinels;

mod page {
    use leasehold::LockClient;
    use leasehold::redis_rs::{ConnectError, RedisBackend};

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

/// The lines of the function's body, as on the page and above.
fn body(text: &str) -> Vec<&str> {
    let lines = text.lines().map(str::trim);
    let from = lines.skip_while(|line| !line.starts_with("let [first, second, third]"));
    from.take_while(|line| *line != "}").collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_connects_to_sentinel() {
    let written = body(include_str!("../../docs/deployment.md"));
    assert_eq!(written, body(include_str!("sentinel.rs")));
    assert_eq!(written.len(), 5);
    let down_after = std::time::Duration::from_secs(60);
    let servers = tokio::task::block_in_place(|| SentinelServers::start(down_after));
    let addresses = [0, 1, 2].map(|number| servers.sentinel(number).address().to_string());
    let addresses = addresses.each_ref().map(String::as_str);
    let locks = through_sentinels(addresses, SentinelServers::SERVICE).await;
    let mutex = locks.expect("connected").mutex("k").expect("a good key");
    let guard = mutex.lock().await.expect("acquired");
    guard.release().await.expect("released");
}

//! Connections with TLS, and readable errors for each way in which they can fail.

use std::time::{Duration, SystemTime};

use leasehold_api::{BackendError, ConnectError, LockClient, bounds};
use leasehold_redis_common::{Options, RespVersion};
use leasehold_test_servers::{
    Authority, Identity, RedisCluster, RedisServer, SentinelServers, ServerOptions, Stopwatch,
    eventually, throughout,
};

use super::connecting::{LONG, failure_with};
use super::support::{connected_with, hold, wait_in_line};

/// The host in the URL of a test server.
const HOST: &str = "127.0.0.1";

/// What errors say to check.
const UNKNOWN: &str = "set the authority's certificate with Options::root_certificates";
const OTHER_HOST: &str = "the server's certificate is for another host";
const NO_TLS: &str = "the server doesn't use TLS on this port; write redis ";

fn server(identity: Identity, clients: Option<&Authority>) -> RedisServer {
    ServerOptions::default().with_tls(identity, clients).start()
}

fn trusting(authority: &Authority) -> Options {
    Options::new().root_certificates(authority.certificate())
}

fn with_client(options: Options, identity: &Identity) -> Options {
    options.client_certificate(identity.certificate.as_str(), identity.key.as_str())
}

/// Connects, and checks that this fails for good, long before the time limit, with an error that
/// says what to check.
async fn refused(url: &str, options: Options, check: &str) {
    // The addresses of the server, or of the nodes or sentinels.
    let mut parts = url.split(['/', '?', '=', '&']).skip(1);
    let (error, took) = failure_with(url, options.initial_connect_timeout(LONG)).await;
    assert!(
        matches!(error, ConnectError::Backend(BackendError::Rejected { .. })),
        "{url}: {error:?}"
    );
    let text = error.to_string();
    assert!(text.contains(check), "{check}: {text}");
    let names = |part: &str| part.contains(':') && text.contains(part);
    assert!(parts.any(names), "{text}");
    assert!(took < LONG / 4, "{took:?}: {text}");
}

async fn invalid(url: &str, options: Options, reason: &str) {
    let (error, _) = failure_with(url, options).await;
    assert!(matches!(error, ConnectError::Invalid(_)), "{error:?}");
    assert!(error.to_string().contains(reason), "{error}");
}

/// Two clients hand locks over to each other over TLS: by push, long before the next poll.
async fn locks_are_handed_over(url: &str, options: Options) {
    let mut clients = Vec::new();
    for _ in 0..2 {
        let backend = connected_with(url, options.clone()).await;
        clients.push(LockClient::new(backend));
    }
    let mut took = Vec::new();
    // In a cluster, they are on several nodes.
    for name in ["first", "second", "third", "fourth", "fifth"] {
        let first = hold(&clients[0], name, bounds::DEFAULT_LEASE).await;
        let waiting = wait_in_line(&clients[1], name, bounds::DEFAULT_LEASE).await;
        throughout(Duration::from_millis(100), "the lock is held", async || {
            !waiting.is_finished()
        })
        .await;
        let released = Stopwatch::start();
        first.release().await.expect("released");
        let second = waiting.await.expect("no panic").expect("acquired");
        took.push(released.elapsed());
        second.release().await.expect("released");
    }
    took.sort_unstable();
    // A waiter polls each second.
    let median = took[took.len() / 2];
    assert!(median < Duration::from_millis(500), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_work_over_tls() {
    let authority = Authority::new();
    let server = server(authority.issue(HOST), None);
    let valkey = server.tls_url().replace("rediss://", "valkeys://");
    for resp in [RespVersion::Resp2, RespVersion::Resp3] {
        let options = trusting(&authority).resp(resp);
        locks_are_handed_over(&valkey, options.clone()).await;
        locks_are_handed_over(&server.tls_url(), options).await;
    }
}

/// The options of servers that are clients of each other.
fn of_peers(authority: &Authority, host: &str) -> ServerOptions {
    ServerOptions::default().with_tls(authority.issue(host), Some(authority))
}

/// The options of a client of such servers. A busy machine may need longer than the default for
/// many handshakes.
fn of_client(authority: &Authority) -> Options {
    let limit = bounds::MAX_CALL_TIMEOUT;
    let options = trusting(authority).call_timeout(limit);
    with_client(options.connect_timeout(limit), &authority.issue("client"))
}

fn sentinels(options: &ServerOptions) -> SentinelServers {
    let down_after = Duration::from_secs(60);
    SentinelServers::start_with(options, options, down_after)
}

fn cluster(options: &ServerOptions) -> RedisCluster {
    RedisCluster::start_with(3, |_| options.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_work_over_tls_through_sentinels() {
    let authority = Authority::new();
    let servers = sentinels(&of_peers(&authority, HOST));
    locks_are_handed_over(&servers.tls_url(), of_client(&authority)).await;
    let without = servers.url().replace("redis-", "rediss-");
    let first = servers.sentinel(0).address();
    let check = format!("sentinel {first}: {NO_TLS}");
    refused(&without, of_client(&authority), &check).await;
    let stranger = with_client(trusting(&Authority::new()), &authority.issue("client"));
    refused(&servers.tls_url(), stranger, UNKNOWN).await;
}

/// The sentinels name an address for which the server has no certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_must_be_for_the_address_that_the_sentinels_name() {
    let authority = Authority::new();
    let servers = sentinels(&of_peers(&authority, "localhost"));
    let url = servers.tls_url().replace(HOST, "localhost");
    let primary = servers.server(servers.primary()).tls_url();
    let primary = primary.trim_start_matches("rediss://");
    let check = format!("primary {primary}, named by a sentinel: {OTHER_HOST}");
    refused(&url, of_client(&authority), &check).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_work_over_tls_in_a_cluster() {
    let authority = Authority::new();
    let cluster = cluster(&of_peers(&authority, HOST));
    locks_are_handed_over(&cluster.tls_url(), of_client(&authority)).await;
    let stranger = with_client(trusting(&Authority::new()), &authority.issue("client"));
    refused(&cluster.tls_url(), stranger, UNKNOWN).await;
    let without = cluster.url().replace("redis-", "rediss-");
    // Such a server says nothing, so this takes the time for connecting.
    let options = with_client(trusting(&authority), &authority.issue("client"));
    refused(&without, options, NO_TLS).await;
    let plain = cluster.tls_url().replace("rediss-", "redis-");
    let check = "the server uses TLS on this port; write rediss ";
    refused(&plain, Options::new(), check).await;
}

/// A node is verified by the address that it announces, not by the one in the URL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_must_be_for_the_address_that_the_node_announces() {
    let authority = Authority::new();
    let options = of_peers(&authority, "localhost");
    let by_ip = cluster(&options);
    let url = by_ip.tls_url().replace(HOST, "localhost");
    // The nodes of the URL are localhost.
    let locks = LockClient::new(connected_with(&url, of_client(&authority)).await);
    let began = Stopwatch::start();
    let lock = locks.mutex("refused").expect("a good key");
    let error = lock.lock().await.expect_err("another host");
    let text = error.to_string();
    assert!(text.contains(OTHER_HOST) && text.contains(HOST), "{text}");
    assert!(began.elapsed() < LONG / 4, "{:?}", began.elapsed());
    let by_name = options
        .with_config("cluster-announce-hostname", ["localhost"])
        .with_config("cluster-preferred-endpoint-type", ["hostname"]);
    let by_name = cluster(&by_name);
    let url = by_name.tls_url().replace(HOST, "localhost");
    locks_are_handed_over(&url, of_client(&authority)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_work_with_a_client_certificate() {
    let (authority, of_clients) = (Authority::new(), Authority::new());
    let server = server(authority.issue(HOST), Some(&of_clients));
    let options = with_client(trusting(&authority), &of_clients.issue("client"));
    locks_are_handed_over(&server.tls_url(), options).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_certificate_is_refused() {
    let authority = Authority::new();
    let expired = "the server's certificate has expired";
    let of_client = "the server refused the client certificate";
    let (ours, trusting) = (|| authority.issue(HOST), || trusting(&authority));
    let strange_client = with_client(trusting(), &Authority::new().issue("client"));
    for (identity, clients, options, check) in [
        (Authority::new().issue(HOST), None, trusting(), UNKNOWN),
        // The machine doesn't know it either.
        (ours(), None, Options::new(), UNKNOWN),
        (
            authority.issue("redis.example"),
            None,
            trusting(),
            OTHER_HOST,
        ),
        (authority.issue_expired(HOST), None, trusting(), expired),
        (ours(), Some(&authority), strange_client, of_client),
    ] {
        let server = server(identity, clients);
        refused(&server.tls_url(), options, check).await;
    }
}

/// A resumed session would not show the certificate again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_certificate_is_noticed_by_the_next_connection() {
    /// Long enough for a busy machine to start the server and to connect.
    const LIFETIME: Duration = Duration::from_secs(20);
    let authority = Authority::new();
    let expires = SystemTime::now() + LIFETIME;
    let server = server(authority.issue_until(HOST, expires), None);
    let backend = connected_with(&server.tls_url(), trusting(&authority)).await;
    backend.hello().await.expect("an answer");
    let expired = || expires.elapsed().is_ok_and(|since| since.as_secs() >= 1);
    eventually("it has expired", async || expired()).await;
    let close = ["CLIENT", "KILL", "TYPE", "normal"];
    server.run(&close);
    eventually("its certificate is refused", async || {
        let error = backend.hello().await.err();
        let expired = "the server's certificate has expired";
        error.is_some_and(|it| !it.is_transient() && it.to_string().contains(expired))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_client_certificate_is_named() {
    let authority = Authority::new();
    for version in ["TLSv1.2", "TLSv1.3"] {
        let server = ServerOptions::default()
            .with_tls(authority.issue(HOST), Some(&authority))
            .with_config("tls-protocols", [version])
            .start();
        let check = "the server wants a client certificate";
        refused(&server.tls_url(), trusting(&authority), check).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_text_to_a_port_with_tls_is_named() {
    let server = server(Authority::new().issue(HOST), None);
    let url = server.tls_url().replace("rediss://", "redis://");
    refused(&url, Options::new(), "the server uses TLS on this port").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_to_a_port_without_it_is_named() {
    let server = RedisServer::start();
    let url = server.url().replace("redis://", "rediss://");
    let options = trusting(&Authority::new());
    refused(&url, options, "the server doesn't use TLS on this port").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusable_certificates_are_refused_before_any_io() {
    let (authority, nobody) = (Authority::new(), "rediss://127.0.0.1:1");
    let identity = authority.issue("client");
    let other_key = Identity {
        key: authority.issue("another").key,
        ..identity.clone()
    };
    let no_key = Identity {
        key: "hunter2".into(),
        ..identity.clone()
    };
    for (options, reason) in [
        (
            Options::new().root_certificates("hunter2"),
            "root certificates: there is no",
        ),
        (
            with_client(trusting(&authority), &other_key),
            "client certificate: ",
        ),
        (
            with_client(trusting(&authority), &no_key),
            "it is not a key",
        ),
    ] {
        let shown = format!("{options:?}");
        assert!(
            !shown.contains("hunter2") && !shown.contains("PRIVATE"),
            "{shown}"
        );
        invalid(nobody, options, reason).await;
    }
    let plain = "redis://127.0.0.1:1";
    invalid(plain, trusting(&authority), "the URL has no TLS").await;
}

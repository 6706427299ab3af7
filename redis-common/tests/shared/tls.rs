//! Connections with TLS, and readable errors for each way in which they can fail.

use std::time::Duration;

use leasehold_api::{BackendError, LockClient};
use leasehold_redis_common::connection::ConnectError;
use leasehold_redis_common::{Options, RespVersion};
use leasehold_test_servers::{Authority, Identity, RedisServer, SentinelServers, ServerOptions};

use super::connecting::{LONG, failure_with};
use crate::client::connect_with;

/// The host in the URL of a test server.
const HOST: &str = "127.0.0.1";

fn server(identity: Identity, clients: Option<&Authority>) -> RedisServer {
    ServerOptions::default().with_tls(identity, clients).start()
}

/// Options that trust the authority.
fn trusting(authority: &Authority) -> Options {
    Options::new().root_certificates(authority.certificate())
}

fn with_client(options: Options, identity: &Identity) -> Options {
    options.client_certificate(identity.certificate.as_str(), identity.key.as_str())
}

/// Connects, and checks that this fails for good, long before the time limit, with an error that
/// says what to check.
async fn refused(url: &str, options: Options, check: &str) {
    let (error, took) = failure_with(url, options.initial_connect_timeout(LONG)).await;
    assert!(
        matches!(error, ConnectError::Backend(BackendError::Rejected { .. })),
        "{url}: {error:?}"
    );
    let text = error.to_string();
    assert!(text.contains(check), "{text}");
    let address = url.rsplit('/').next().expect("an address");
    assert!(text.contains(address), "{text}");
    assert!(took < LONG / 4, "{took:?}: {text}");
}

async fn invalid(url: &str, options: Options, reason: &str) {
    let (error, _) = failure_with(url, options).await;
    assert!(matches!(error, ConnectError::Invalid(_)), "{error:?}");
    assert!(error.to_string().contains(reason), "{error}");
}

/// Waits for a lock that another client releases, over TLS.
async fn lock_is_handed_over(url: &str, options: Options) {
    let mut clients = Vec::new();
    for _ in 0..2 {
        let backend = connect_with(url, options.clone()).await;
        let backend = backend.unwrap_or_else(|error| panic!("{url}: {error}"));
        clients.push(LockClient::new(backend));
    }
    let lock = |client: &LockClient| client.mutex("handed over").expect("a good key");
    let first = lock(&clients[0]).lock().await.expect("acquired");
    let waiting = lock(&clients[1]);
    let waiting = tokio::spawn(async move { waiting.lock().await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished(), "the lock is held");
    first.release().await.expect("released");
    let second = waiting.await.expect("no panic").expect("acquired");
    second.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_work_over_tls() {
    let authority = Authority::new();
    let server = server(authority.issue(HOST), None);
    let valkey = server.tls_url().replace("rediss://", "valkeys://");
    for resp in [RespVersion::Resp2, RespVersion::Resp3] {
        let options = trusting(&authority).resp(resp);
        lock_is_handed_over(&valkey, options.clone()).await;
        lock_is_handed_over(&server.tls_url(), options).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_work_over_tls_through_sentinels() {
    let authority = Authority::new();
    // The servers are clients of each other.
    let tls = ServerOptions::default().with_tls(authority.issue(HOST), Some(&authority));
    let down_after = Duration::from_secs(60);
    let start = || SentinelServers::start_with(&tls, &tls, down_after);
    let servers = tokio::task::block_in_place(start);
    let options = with_client(trusting(&authority), &authority.issue("client"));
    lock_is_handed_over(&servers.tls_url(), options.clone()).await;
    let without = servers.url().replace("redis-", "rediss-");
    let (error, took) = failure_with(&without, options.initial_connect_timeout(LONG)).await;
    let text = error.to_string();
    let first = format!(
        "sentinel {}: the server doesn't use TLS",
        servers.sentinel(0).address()
    );
    assert!(text.contains(&first), "{text}");
    assert!(took < LONG / 4, "{took:?}: {text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_work_with_a_client_certificate() {
    let (authority, of_clients) = (Authority::new(), Authority::new());
    let server = server(authority.issue(HOST), Some(&of_clients));
    let options = with_client(trusting(&authority), &of_clients.issue("client"));
    lock_is_handed_over(&server.tls_url(), options).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_of_an_unknown_authority_is_refused() {
    let authority = Authority::new();
    let server = server(authority.issue(HOST), None);
    let check = "set the authority's certificate with Options::root_certificates";
    refused(&server.tls_url(), trusting(&Authority::new()), check).await;
    // The machine doesn't know it either.
    refused(&server.tls_url(), Options::new(), check).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_for_another_host_is_refused() {
    let authority = Authority::new();
    let server = server(authority.issue("redis.example"), None);
    let check = "the server's certificate is for another host";
    refused(&server.tls_url(), trusting(&authority), check).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_certificate_is_refused() {
    let authority = Authority::new();
    let server = server(authority.issue_expired(HOST), None);
    let check = "the server's certificate has expired";
    refused(&server.tls_url(), trusting(&authority), check).await;
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
async fn client_certificate_of_an_unknown_authority_is_named() {
    let authority = Authority::new();
    let server = server(authority.issue(HOST), Some(&authority));
    let options = with_client(trusting(&authority), &Authority::new().issue("client"));
    let check = "the server refused the client certificate";
    refused(&server.tls_url(), options, check).await;
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

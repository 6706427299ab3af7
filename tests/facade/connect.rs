//! `leasehold::connect` chooses the backend by the scheme of the URL.

use std::process::Command;
use std::time::Duration;

use leasehold::{ConnectError, ConnectOptions, LockClient, RedisLibrary};
use leasehold_test_servers::RedisServer;
use proptest::prelude::*;

#[tokio::test]
async fn bad_url_is_refused_without_its_password() {
    for url in [
        // Another service, and one whose feature is off.
        "mongodb://me:s3cret@127.0.0.1/db",
        "mysql://me:s3cret@127.0.0.1/db",
        "etcd://me:s3cret@127.0.0.1",
        "nats://me:s3cret@127.0.0.1",
        "s3://bucket?secret_access_key=s3cret",
        "127.0.0.1:6379",
        "host=/run/postgresql password=s3cret",
        "",
        // Malformed.
        "redis://me:s3cret@127.0.0.1:port",
        "postgres://me:s3cret@127.0.0.1:port/db",
        // Nothing that processes share.
        "sqlite:",
        "sqlite::memory:",
    ] {
        let options = ConnectOptions::new().redis_library(RedisLibrary::Fred);
        let error = options.connect(url).await.expect_err(url);
        assert!(matches!(error, ConnectError::Invalid(_)), "{error:?}");
        assert!(
            !format!("{error} {error:?}").contains("s3cret"),
            "{error:?}"
        );
    }
}

/// The tests have both features.
#[tokio::test]
async fn with_two_redis_libraries_the_program_chooses() {
    let connected = leasehold::connect("redis://127.0.0.1:1").await;
    let error = connected.expect_err("two libraries");
    assert!(matches!(error, ConnectError::Invalid(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("ConnectOptions::redis_library"), "{text}");
}

/// In a process whose machine has no authorities, with URLs at which nobody listens.
#[tokio::test]
#[ignore = "tls_without_authorities_is_refused runs it in a process of its own"]
async fn without_authorities() {
    let limit = Duration::from_millis(100);
    for (url, is_refused) in [
        ("rediss://127.0.0.1:1", true),
        ("rediss-cluster://127.0.0.1:1", true),
        ("postgres://127.0.0.1:1/db?sslmode=require", true),
        // The server may have no TLS.
        ("postgres://127.0.0.1:1/db?sslmode=prefer", false),
    ] {
        for library in [RedisLibrary::RedisRs, RedisLibrary::Fred] {
            let options = ConnectOptions::new()
                .redis_library(library)
                .initial_connect_timeout(limit);
            let error = options.connect(url).await.expect_err(url);
            match &error {
                ConnectError::Invalid(reason) if is_refused => {
                    let text = reason.to_string();
                    assert!(text.starts_with("root certificates: "), "{text}");
                }
                ConnectError::Backend(_) if !is_refused => {}
                other => panic!("{url}: {other:?}"),
            }
        }
    }
}

#[test]
fn tls_without_authorities_is_refused() {
    let tests = std::env::current_exe().expect("a path");
    let run = Command::new(tests)
        .args(["--ignored", "--exact", "connect::without_authorities"])
        .env("SSL_CERT_FILE", "/nowhere")
        .env("SSL_CERT_DIR", "/nowhere")
        .output()
        .expect("started");
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && text.contains("1 passed"), "{text}");
}

/// The lock of one client excludes the others.
async fn share_a_lock(clients: &[LockClient]) {
    for first in clients {
        let mutex = first.mutex("k").expect("a good key");
        let guard = mutex.lock().await.expect("acquired");
        for other in clients {
            let mutex = other.mutex("k").expect("a good key");
            let outcome = mutex.try_lock().await.expect("answered");
            assert!(outcome.into_guard().is_none(), "held by {first:?}");
        }
        guard.release().await.expect("released");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_and_valkey_urls_lead_to_the_chosen_library() {
    let server = tokio::task::block_in_place(RedisServer::start);
    let url = server.url();
    let valkey = url.replacen("redis://", "valkey://", 1);
    let mut clients = Vec::new();
    for (library, url, type_name) in [
        (RedisLibrary::RedisRs, &url, "RedisBackend"),
        (RedisLibrary::Fred, &valkey, "FredBackend"),
    ] {
        let options = ConnectOptions::new()
            .redis_library(library)
            .key_prefix("connect:")
            .call_timeout(Duration::from_secs(2));
        let backend = options.backend(url).await.expect("connected");
        assert!(format!("{backend:?}").starts_with(type_name), "{backend:?}");
        clients.push(LockClient::new(backend));
    }
    share_a_lock(&clients).await;
    assert!(server.run(&["KEYS", "connect:*"]).contains("connect:"));
}

/// The path is absolute, or relative to the current folder.
#[tokio::test]
async fn sqlite_urls_lead_to_the_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("a b?.db");
    let mut clients = Vec::new();
    for url in ["sqlite:", "sqlite://"] {
        let url = format!("{url}{}", file.display());
        clients.push(leasehold::connect(&url).await.expect("a new file"));
    }
    assert!(file.is_file());
    share_a_lock(&clients).await;
    let certificate = ConnectOptions::new().root_certificates("none");
    let refused = certificate.connect("sqlite:unused.db").await;
    let refused = refused.expect_err("a file has no TLS");
    assert!(matches!(refused, ConnectError::Invalid(_)), "{refused:?}");
}

/// Pieces of URLs for all services. Nobody listens at port 1, and no host has to be looked up.
fn urls() -> impl Strategy<Value = String> {
    let scheme = "(redis|rediss|valkey|redis-cluster|redis-sentinel|redis\\+unix|unix|postgres|postgresql|mysql|mariadb|etcd|nats|tls|s3|mongodb|)";
    let login = "([a-z%]{0,4}:s3cret@|:s3cret@|)";
    let host = "(127\\.0\\.0\\.1|\\[::1\\]|)(:1|:|:[0-9]{6}|:x|)";
    let rest = "(/[0-9a-z%/]{0,6}|)(\\?[a-zA-Z=&%]{0,30}|\\?node=127\\.0\\.0\\.1:[0-9]{0,6}|\\?sentinelServiceName=a|\\?sslmode=[a-z]{0,8}|)";
    (scheme, login, host, rest)
        .prop_map(|(scheme, login, host, rest)| format!("{scheme}://{login}{host}{rest}"))
}

#[test]
fn any_url_is_refused_without_its_password() {
    let config = ProptestConfig {
        // Some URLs are good, and then it takes a moment to learn that nobody listens.
        cases: ProptestConfig::default().cases / 2,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let result = runner.run(&urls(), |url| {
        for library in [RedisLibrary::RedisRs, RedisLibrary::Fred] {
            let limit = Duration::from_millis(10);
            let options = ConnectOptions::new()
                .redis_library(library)
                .connect_timeout(limit)
                .initial_connect_timeout(limit);
            let connecting = async {
                tokio::time::timeout(Duration::from_secs(20), options.connect(&url)).await
            };
            let Ok(result) = runtime.block_on(connecting) else {
                return Err(TestCaseError::fail(format!("{url}: no answer")));
            };
            let Err(error) = result else {
                return Err(TestCaseError::fail(format!("{url}: connected")));
            };
            let shown = format!("{error} {error:?}");
            prop_assert!(!shown.contains("s3cret"), "{url}: {shown}");
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

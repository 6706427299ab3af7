//! `leasehold::connect` chooses the backend by the scheme of the URL.

use std::time::Duration;

use leasehold::{ConnectError, ConnectOptions, LockClient, RedisLibrary};
use leasehold_test_servers::RedisServer;

/// No server listens at these URLs: an error must come before any I/O.
async fn error_at(url: &str) -> ConnectError {
    leasehold::connect(url).await.expect_err(url)
}

#[tokio::test]
async fn url_of_another_service_is_refused_without_its_password() {
    for url in [
        "mysql://me:s3cret@127.0.0.1/db",
        "127.0.0.1:6379",
        "host=/run/postgresql password=s3cret",
        "",
    ] {
        let error = error_at(url).await;
        assert!(matches!(error, ConnectError::Invalid(_)), "{error:?}");
        assert!(
            !format!("{error} {error:?}").contains("s3cret"),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn malformed_url_is_refused_without_its_password() {
    for url in [
        "redis://me:s3cret@127.0.0.1:port",
        "postgres://me:s3cret@127.0.0.1:port/db",
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
    let error = error_at("redis://127.0.0.1:1").await;
    assert!(matches!(error, ConnectError::ChooseLibrary), "{error:?}");
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

//! Settings of the server that endanger locks: warnings, or errors by choice.

use std::time::Duration;

use leasehold_redis_common::{Options, ServerChecks};
use leasehold_test_servers::{RedisServer, ServerOptions};

use super::connecting::LONG;
use super::events;
use super::replicas::replicate;
use super::support::{
    acquire, connected, connected_with, eventually, expect_rejected, expect_unavailable, key,
    mutex, operation, refused, session, soon, url_with_rights,
};
use crate::constructors::CONSTRUCTORS;

/// The settings of a server that keeps its locks.
fn careful() -> ServerOptions {
    ServerOptions::default().with_append_only()
}

fn rejecting() -> Options {
    Options::new()
        .server_checks(ServerChecks::Reject)
        .initial_connect_timeout(LONG)
}

async fn rejected(server: &RedisServer, setting: &str) {
    let (error, _) = refused(&server.url(), rejecting()).await;
    expect_rejected(&error, setting);
    let text = error.to_string();
    let named = ["appendonly", "maxmemory-policy", "min-replicas", "user"];
    let named = named.iter().filter(|name| text.contains(*name));
    assert_eq!(named.count(), 1, "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dangerous_setting_is_an_error_by_choice() {
    let server = careful().start();
    connected_with(&server.url(), rejecting()).await;
    rejected(&RedisServer::start(), "appendonly is no: after a restart").await;
    let evicting = careful()
        .with_config("maxmemory", ["100mb"])
        .with_config("maxmemory-policy", ["allkeys-lru"]);
    rejected(
        &evicting.start(),
        "maxmemory-policy is allkeys-lru: it evicts",
    )
    .await;
    // The default is a warning.
    connected(&RedisServer::start().url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_must_be_needed_for_a_write() {
    // By default, a primary waits 5 s for more replicas before it sends its data.
    let primary = careful()
        .with_config("repl-diskless-sync-delay", ["0"])
        .start();
    let replica = careful().start();
    replicate(&primary, &replica).await;
    rejected(&primary, "min-replicas-to-write is 0").await;
    primary.run(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    connected_with(&primary.url(), rejecting()).await;
    // It may be promoted soon, so the backend tries again.
    let limit = Duration::from_secs(5);
    let rejecting = rejecting().initial_connect_timeout(limit);
    let (error, _) = refused(&replica.url(), rejecting).await;
    expect_unavailable(&error, "is a replica");
}

/// Servers before 7.0 name the missing right when it is first used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_rights_are_named_at_once() {
    let server = careful().start();
    let can_tell = server.version().major >= 7;
    for (channels, right, missing) in [
        ("&leasehold:*", "+@all", ""),
        ("&leasehold:*", "-hset", "+hset"),
        ("&leasehold:*", "-setrange", "+setrange"),
        ("&leasehold:*", "-subscribe", "+subscribe"),
        ("&leasehold:*", "-pubsub", "+pubsub|numsub"),
        ("&other:*", "+@all", "+subscribe +publish"),
    ] {
        let url = url_with_rights(&server, &["~leasehold:*", channels, "+@all", right]);
        if missing.is_empty() || !can_tell {
            connected_with(&url, rejecting()).await;
        } else {
            let (error, _) = refused(&url, rejecting()).await;
            let expected = format!("user is without {missing}: locks need these rights");
            expect_rejected(&error, &expected);
        }
    }
}

/// A lazy constructor checks the server at its first call, and again as long as that fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_constructor_checks_the_server() {
    let server = RedisServer::start();
    for constructor in CONSTRUCTORS.iter().skip(2) {
        let backend = constructor.open_with(&server.url(), rejecting()).await;
        for _ in 0..2 {
            let error = backend.hello().await.expect_err("a dangerous setting");
            expect_rejected(&error, "appendonly is no");
        }
    }
}

/// Not for each connection, but again after a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_is_reported_once() {
    events::record();
    let mut server = ServerOptions::default()
        .with_config("requirepass", ["swordfish"])
        .start();
    let url = format!("redis://:swordfish@{}/", server.address());
    let backend = connected(&url).await;
    let request = mutex(&key("k"), operation(session(1), 1), soon(&backend).await);
    acquire(&backend, &request).await.expect("an answer");
    let address = server.address().to_string();
    let told = || events::lines("INFO connected", &address);
    let start = "INFO connected backend=\"";
    let end = format!("\" address={address:?}");
    let about = |line: &String| {
        let topology = " topology=\"standalone\" server=\"";
        line.starts_with(start) && line.contains(topology) && line.ends_with(&end)
    };
    assert!(matches!(&told()[..], [line] if about(line)), "{:?}", told());
    assert!(!told()[0].contains("swordfish"));
    server.kill();
    server.start_again();
    eventually("it is connected again", async || {
        backend.hello().await.is_ok()
    })
    .await;
    assert_eq!(told().len(), 2, "{:?}", told());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dangerous_setting_is_a_warning_once() {
    events::record();
    let mut server = RedisServer::start();
    let backend = connected(&server.url()).await;
    server.kill();
    server.start_again();
    eventually("it is connected again", async || {
        backend.hello().await.is_ok()
    })
    .await;
    let ignoring = Options::new().server_checks(ServerChecks::Ignore);
    drop(connected_with(&server.url(), ignoring).await);
    let address = server.address().to_string();
    let danger = "after a restart it has forgotten locks that are held; CONFIG SET it to yes, \
         and only then change the file, or the server starts without its data";
    let expected = format!(
        "WARN server setting server={address:?} setting=\"appendonly\" value=\"no\" danger={danger:?}"
    );
    assert_eq!(events::lines("WARN server setting", &address), [expected]);
}

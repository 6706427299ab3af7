//! URLs, and the first connection.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use leasehold_api::{BackendError, ClockId, ConnectError, Notification, Wait};
use leasehold_redis_common::{Options, RespVersion};
use leasehold_test_servers::{
    FaultProxy, RedisServer, ServerOptions, Stopwatch, eventually, throughout,
};

use super::requests::renew;
use super::subscription::next;
use super::support::{
    Backend, Constructor, LATE, acquire, connected, connected_with, connection, key, mutex,
    operation, release, session, soon,
};
use crate::client::connect_with;
use crate::constructors::{CONSTRUCTORS, is_of_the_library};

/// Longer than any test takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Tries to connect for at most `limit`. Returns the error and the elapsed time.
async fn failure(url: &str, limit: Duration) -> (ConnectError, Duration) {
    failure_with(url, Options::new().initial_connect_timeout(limit)).await
}

/// Connects. Returns the error and the elapsed time.
pub(crate) async fn failure_with(url: &str, options: Options) -> (ConnectError, Duration) {
    let began = Stopwatch::start();
    let error = connect_with(url, options).await.expect_err("no connection");
    (error, began.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsupported_url_is_refused_before_any_io() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (error, _) = failure(&format!("http://me:swordfish@{address}"), LATE).await;
    assert!(matches!(error, ConnectError::Invalid(_)), "{error}");
    let text = format!("{error} {error:?}");
    assert!(text.contains("the scheme http:// is unknown"), "{text}");
    assert!(!text.contains("swordfish"), "{text}");
    listener.set_nonblocking(true).expect("a socket");
    assert!(listener.accept().is_err(), "a client connected");
}

/// Its calls would fail after some milliseconds, and say that the server hasn't answered.
#[tokio::test(start_paused = true)]
async fn paused_clock_is_refused_before_any_io() {
    let server = RedisServer::start();
    let (error, _) = failure(&server.url(), LATE).await;
    assert!(matches!(error, ConnectError::Invalid(_)), "{error}");
    let text = error.to_string();
    assert!(
        text.starts_with("the clock of tokio: it is paused"),
        "{text}"
    );
}

/// The parts of the URL mean the same with each client library.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn url_selects_socket_user_and_database() {
    let server = ServerOptions::default()
        .with_config("requirepass", ["sword&fish"])
        .start();
    let path = server.socket_path().display().to_string();
    let admin_url = |database| format!("redis://:sword%26fish@{}/{database}", server.address());
    for (url, database) in [
        (admin_url(1), 1),
        (format!("redis+unix://{path}?pass=sword%26fish&db=2"), 2),
        (
            format!("valkey+unix://{path}?user=default&pass=sword%26fish&db=3"),
            3,
        ),
        (format!("unix://default:sword%26fish@local{path}?db=4"), 4),
    ] {
        let backend = connected(&url).await;
        let request = mutex(&key("k"), operation(session(1), 1), soon(&backend).await);
        acquire(&backend, &request).await.expect("an answer");
        let mut admin = connection(&admin_url(database)).await;
        let keys: redis::RedisResult<u32> = redis::cmd("DBSIZE").query_async(&mut admin).await;
        assert_eq!(keys, Ok(1), "{url}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_waits_for_a_server_that_starts() {
    let mut server = RedisServer::start();
    let url = server.url();
    server.kill();
    let options = Options::new().initial_connect_timeout(LONG);
    let connecting = tokio::spawn(async move { connected_with(&url, options).await });
    // Longer than one attempt.
    throughout(Duration::from_secs(1), "it tries again", async || {
        !connecting.is_finished()
    })
    .await;
    server.start_again();
    let backend = connecting.await.expect("no panic");
    backend.hello().await.expect("an answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_tries_again_after_silence() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address()).await;
    let url = proxy.url();
    proxy.black_hole();
    let options = Options::new().initial_connect_timeout(LONG);
    let connecting = tokio::spawn(async move { connected_with(&url, options).await });
    eventually("it has tried twice", async || proxy.connections() >= 2).await;
    proxy.strand_connections();
    proxy.heal();
    let backend = connecting.await.expect("no panic");
    backend.hello().await.expect("an answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_gives_up_in_time_and_names_the_server() {
    // Below the default by more than the client may be late.
    let limit = Duration::from_secs(1);
    let late = Duration::from_secs(3);
    let mut server = RedisServer::start();
    let proxy = FaultProxy::start(server.address()).await;
    proxy.black_hole();
    server.kill();
    for url in [server.url(), proxy.url()] {
        let (error, took) = failure(&url, limit).await;
        assert!(took < limit + late, "{url}: {took:?}");
        assert!(
            matches!(
                error,
                ConnectError::Backend(BackendError::Unavailable { .. })
            ),
            "{url}: {error}"
        );
        let address = &url["redis://".len()..];
        assert!(error.to_string().contains(address), "{url}: {error}");
    }
    // Shorter than one attempt.
    let (error, took) = failure(&proxy.url(), Duration::from_millis(50)).await;
    assert!(took < late, "{took:?}");
    let text = error.to_string();
    assert!(text.contains("no answer within 50 ms"), "{text}");
}

/// What a user prints says the cause, in the same words with each client library.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_error_says_the_cause_once() {
    // Enough for one attempt on a busy machine.
    const LIMIT: Duration = Duration::from_secs(5);
    let unused = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let gone = unused.local_addr().expect("bound").to_string();
    drop(unused);
    let hangs_up = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let closing = hangs_up.local_addr().expect("bound").to_string();
    std::thread::spawn(move || while hangs_up.accept().is_ok() {});
    let cases = [
        ("redis://me:swordfish@", &*gone, "connection refused"),
        ("redis://", &closing, "the server closed the connection"),
        (
            "redis+unix://",
            "/nowhere/redis.sock",
            "there is no such socket",
        ),
    ];
    let failures = cases.map(async |(scheme, address, _)| {
        let (error, _) = failure(&format!("{scheme}{address}"), LIMIT).await;
        error
    });
    let failures = futures_util::future::join_all(failures).await;
    for ((_, address, cause), error) in cases.into_iter().zip(failures) {
        let text = format!("unavailable: cannot connect to {address}: {cause}");
        assert_eq!(error.to_string(), text);
        assert!(!format!("{error:?}").contains("swordfish"), "{error:?}");
        let source = std::error::Error::source(&error);
        assert!(source.is_none(), "{text}: {source:?}");
    }
}

/// The server's refusals have the same text with each client library. The source of each
/// is the client library's error. No error in the chain shows the password or repeats a part of the message, because a
/// report prints the whole chain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_password_fails_at_once() {
    let server = ServerOptions::default()
        .with_config("requirepass", ["swordfish"])
        .start();
    let address = server.address();
    let wrong = "the server answered WRONGPASS \
                 (the user name or the password is wrong, or the user is disabled)";
    let missing = "the server answered NOAUTH (the URL or client needs a user name and password)";
    for (user, reason) in [("", missing), (":hunter2@", wrong), ("me:hunter2@", wrong)] {
        for resp in [RespVersion::Resp2, RespVersion::Resp3] {
            let url = format!("redis://{user}{address}");
            let options = Options::new().initial_connect_timeout(LONG).resp(resp);
            let (error, took) = failure_with(&url, options).await;
            assert!(took < LONG / 4, "{url} {resp:?}: {took:?}");
            let text = format!("rejected by the server: cannot connect to {address}: {reason}");
            assert_eq!(error.to_string(), text, "{resp:?}");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
            let mut source = std::error::Error::source(&error);
            assert!(source.is_some_and(is_of_the_library), "{error:?}");
            while let Some(cause) = source {
                let shown = cause.to_string();
                assert!(!text.contains(&shown), "{shown} in {text}");
                assert!(!shown.contains("hunter2"), "{shown}");
                source = cause.source();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_of_a_cluster_is_refused() {
    let server = ServerOptions::default()
        .with_config("cluster-enabled", ["yes"])
        .start();
    let (error, took) = failure(&server.url(), LONG).await;
    let text = error.to_string();
    assert!(
        text.contains("the server is a node of a cluster; write redis-cluster://"),
        "{text}"
    );
    assert!(took < LONG / 4, "{took:?}");
}

/// Some services don't tell their `run_id`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_without_run_id_is_used() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address()).await;
    proxy.rename_in_replies("\nrun_id:", "\nxxx_id:");
    for (constructor, sequence) in CONSTRUCTORS.iter().zip(1..) {
        let backend = constructor.open(&proxy.url()).await;
        let clock = backend.hello().await.expect("an answer").clock;
        let operation = operation(session(1), sequence);
        let key = key("without");
        let request = mutex(&key, operation, soon(&backend).await);
        let acquired = acquire(&backend, &request).await.expect("an answer");
        assert_eq!(acquired.stamp.clock, clock);
        let renewed = renew(&backend, &key, operation, LONG).await;
        let renewed = renewed.expect("an answer");
        assert_eq!(renewed.stamp.clock, clock);
        release(&backend, &key, operation).await.expect("an answer");
        if constructor.push {
            // Another client can't tell which server has executed the release.
            let told = clock_of_a_grant(&backend, &backend, sequence).await;
            assert_ne!(told, clock);
        }
    }
}

/// The library may connect a user's connection to another server without saying so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_names_the_clock_unless_the_connection_is_the_users() {
    let server = RedisServer::start();
    let listener = Constructor::URL.open(&server.url()).await;
    let clock = listener.hello().await.expect("an answer").clock;
    for (constructor, sequence) in CONSTRUCTORS.iter().zip(1..) {
        let backend = constructor.open(&server.url()).await;
        let told = clock_of_a_grant(&listener, &backend, sequence).await;
        assert_eq!(told == clock, constructor.push);
    }
}

/// The clock in the message to a waiter that gets the lock by a release of `backend`.
async fn clock_of_a_grant(listener: &Backend, backend: &Backend, sequence: u64) -> ClockId {
    let mut stream = listener.listen(session(2)).await.expect("subscribed");
    let (key, holder) = (key("granted"), operation(session(1), sequence + 100));
    let before = soon(backend).await;
    let waiter = mutex(&key, operation(session(2), sequence), before).with_wait(Wait::new(true));
    for request in [&mutex(&key, holder, before), &waiter] {
        acquire(backend, request).await.expect("an answer");
    }
    for operation in [holder, waiter.operation] {
        release(backend, &key, operation).await.expect("an answer");
    }
    match next(&mut stream).await {
        Notification::Granted { stamp, .. } => stamp.clock,
        other => panic!("{other:?} instead of a grant"),
    }
}

//! Recovery after restarts, pauses and network failures, and errors that are permanent.
//!
//! Every call has a time limit, whatever the server does. The first call succeeds within a second
//! after the server answers again.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use leasehold_api::{Acquire, BackendError, Notification};
use leasehold_redis_common::Options;
use leasehold_test_servers::{Data, FaultProxy, RedisServer, Stopwatch};

use super::connecting::LONG;
use super::support::{
    Backend, Constructor, RECOVERY, eventually, expect_rejected, hello_in_time, key, mutex,
    operation, recovers_within, refused, session, soon, url_with_rights,
};
use crate::constructors::CONSTRUCTORS;

/// Makes calls for `duration`. Each must end in time.
async fn keep_calling(backend: &Backend, duration: Duration) -> Vec<Result<(), BackendError>> {
    let began = Instant::now();
    let mut results = Vec::new();
    while began.elapsed() < duration {
        results.push(hello_in_time(backend).await);
        pause().await;
    }
    results
}

#[expect(clippy::disallowed_methods, reason = "between two calls")]
async fn pause() {
    tokio::time::sleep(Duration::from_millis(20)).await;
}

/// Checks that some calls failed, and that all errors are transient.
fn expect_transient_errors(results: &[Result<(), BackendError>]) {
    for error in results.iter().filter_map(|result| result.as_ref().err()) {
        assert!(error.is_transient(), "{error}");
    }
    assert!(results.iter().any(Result::is_err), "no call failed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_server_is_used_again_with_a_new_clock() {
    for constructor in CONSTRUCTORS.iter().filter(|it| it.reconnects) {
        let mut server = RedisServer::start();
        let backend = constructor.open(&server.url()).await;
        let before = backend.hello().await.expect("the server answers");
        server.kill();
        let results = keep_calling(&backend, Duration::from_millis(500)).await;
        expect_transient_errors(&results);
        server.start_again();
        recovers_within(RECOVERY, &backend).await;
        let after = backend.hello().await.expect("the server answers");
        assert_ne!(before.clock, after.clock);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_between_calls_fails_no_call() {
    let mut server = RedisServer::start();
    for constructor in CONSTRUCTORS.iter().filter(|it| it.notices_disconnect) {
        let backend = constructor.open(&server.url()).await;
        let before = backend.hello().await.expect("the server answers");
        server.restart(Data::Lost);
        eventually("the end of the connection is noticed", async || {
            server.ended_connections_are_closed()
        })
        .await;
        let after = backend.hello().await.expect("a new connection");
        assert_ne!(before.clock, after.clock);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_to_a_paused_server_end_in_time() {
    let server = RedisServer::start();
    calls_end_in_time(&server.url(), || server.pause(), || server.resume()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_into_a_black_hole_end_in_time() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address()).await;
    calls_end_in_time(&proxy.url(), || proxy.black_hole(), || proxy.heal()).await;
}

async fn calls_end_in_time(url: &str, silence: impl Fn(), end: impl Fn()) {
    for constructor in &CONSTRUCTORS {
        let backend = constructor.open(url).await;
        hello_in_time(&backend).await.expect("an answer");
        silence();
        let results = keep_calling(&backend, Duration::from_millis(2_500)).await;
        end();
        expect_transient_errors(&results);
        assert!(results.iter().all(Result::is_err));
        recovers_within(RECOVERY, &backend).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connection_is_replaced() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address()).await;
    for constructor in CONSTRUCTORS.iter().filter(|it| it.replaces_silent) {
        let backend = constructor.open(&proxy.url()).await;
        hello_in_time(&backend).await.expect("an answer");
        proxy.strand_connections();
        // A user's client is suspect after two calls without an answer.
        let factor = if constructor.push { 1 } else { 4 };
        recovers_within(RECOVERY * factor, &backend).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connection_is_replaced() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address()).await;
    for constructor in CONSTRUCTORS.iter().filter(|it| it.reconnects) {
        let backend = constructor.open(&proxy.url()).await;
        let before = backend.hello().await.expect("the server answers");
        for _ in 0..20 {
            proxy.cut_connections();
            recovers_within(RECOVERY, &backend).await;
        }
        // The proxy cuts in the background, so the last call may have come before the cut.
        eventually("the same server answers", async || {
            let after = backend.hello().await;
            after.is_ok_and(|after| after.clock == before.clock)
        })
        .await;
    }
}

/// Renewals of a short lease are such callers: connecting to a distant server may take longer than
/// they can wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impatient_callers_get_a_connection() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address()).await;
    for constructor in CONSTRUCTORS.iter().filter(|it| it.push) {
        let backend = constructor.open(&proxy.url()).await;
        hello_in_time(&backend).await.expect("an answer");
        // A call takes 200 ms. Connecting takes several times as long.
        proxy.delay(Duration::from_millis(100));
        proxy.cut_connections();
        let limit = Duration::from_millis(350);
        eventually("a connection", async || {
            let hello = tokio::time::timeout(limit, backend.hello()).await;
            matches!(hello, Ok(Ok(_)))
        })
        .await;
        proxy.delay(Duration::ZERO);
    }
}

/// A failover behind one name. The old primary becomes a replica and keeps its connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_moves_to_the_new_primary() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let constructors = CONSTRUCTORS.iter().filter(|it| it.push);
    for (constructor, number) in constructors.zip(1..) {
        for elements in [1, 2] {
            moves_to_the_new_primary(constructor, (&old, &new), 2 * number + elements, elements)
                .await;
            old.run(&["REPLICAOF", "NO", "ONE"]);
        }
    }
}

/// The old primary becomes a replica, and the address leads to the new one. Each call acquires
/// `elements` keys at once.
async fn moves_to_the_new_primary(
    constructor: &Constructor,
    (old, new): (&RedisServer, &RedisServer),
    number: u8,
    elements: u8,
) {
    let name = format!("{}, {elements} elements", constructor.name);
    let proxy = FaultProxy::start(old.address()).await;
    let backend = constructor.open(&proxy.url()).await;
    let mut notifications = backend.listen(session(number)).await.expect("listening");
    let before = soon(&backend).await;
    let ours = |sequence: u64| -> Vec<Acquire> {
        let acquire = |n| {
            let key = key(&format!("{name} {n}"));
            mutex(&key, operation(session(number), sequence + n), before)
        };
        (0..u64::from(elements)).map(acquire).collect()
    };
    let first = backend.acquire(&ours(1)).await.remove(0);
    let first = first.expect("an answer");
    old.run(&["REPLICAOF", "127.0.0.1", "1"]);
    proxy.lead_to(new.address());
    let began = Stopwatch::start();
    let mut moved = None;
    eventually("it leaves the old server", async || {
        match backend.acquire(&ours(10)).await.remove(0) {
            Ok(answer) => moved = Some(answer),
            Err(error) => assert!(error.is_transient(), "{name}: {error}"),
        }
        moved.is_some()
    })
    .await;
    let moved = moved.expect("waited for it");
    assert_ne!(first.stamp.clock, moved.stamp.clock, "{name}");
    assert!(began.elapsed() <= RECOVERY, "{name}");
    for listening in [false, true] {
        let notification = tokio::time::timeout(LONG, notifications.next()).await;
        let missed = Some(Notification::Missed { listening });
        assert_eq!(notification.expect("a notification"), missed, "{name}");
    }
    let listed = new.run(&["PUBSUB", "CHANNELS"]);
    assert!(listed.contains("leasehold:"), "{name}: {listed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_server_is_not_considered_dead() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address()).await;
    for constructor in CONSTRUCTORS.iter().filter(|it| it.push) {
        // An answer takes 0.8 s, which a busy machine may make longer.
        let options = Options::new().call_timeout(Duration::from_secs(2));
        let backend = constructor.open_with(&proxy.url(), options).await;
        hello_in_time(&backend).await.expect("an answer");
        let connections = proxy.connections();
        // Longer than the silence after which a second connection is opened.
        proxy.delay(Duration::from_millis(400));
        for _ in 0..5 {
            hello_in_time(&backend).await.expect("slow, but an answer");
        }
        proxy.delay(Duration::ZERO);
        hello_in_time(&backend).await.expect("an answer");
        // Second connections may have been opened, but every call got its answer.
        assert!(proxy.connections() <= connections + 5);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_command_is_named() {
    let server = RedisServer::start();
    let url = url_with_rights(&server, &["~*", "&*", "+@connection"]);
    let (error, _) = refused(&url, Options::new()).await;
    expect_rejected(&error, "+info");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_backend_has_no_connections() {
    for constructor in &CONSTRUCTORS {
        let server = RedisServer::start();
        let backend = constructor.open(&server.url()).await;
        hello_in_time(&backend).await.expect("an answer");
        let mut streams = Vec::new();
        if constructor.push {
            streams.push(backend.listen(session(1)).await.expect("listening"));
        }
        backend.close().await.expect("closed");
        for stream in &mut streams {
            assert_eq!(stream.next().await, None);
        }
        backend.close().await.expect("closing twice is fine");
        let error = backend.hello().await.expect_err("closed");
        assert!(matches!(error, BackendError::Closed), "{error}");
        if !constructor.push {
            // The backend doesn't close the user's connections.
            continue;
        }
        eventually("its connections are closed", async || {
            let clients = server.run(&["CLIENT", "LIST"]);
            clients.matches("cmd=").count() == 1
        })
        .await;
    }
}

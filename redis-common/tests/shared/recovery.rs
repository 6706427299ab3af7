//! Recovery after a restart, a stopped server, a dead network; and what never comes back.
//!
//! Every call is bounded, whatever the server does, and the first success comes within a second
//! after the server answers again.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use leasehold_api::{BackendError, Notification};
use leasehold_test_servers::{Data, FaultProxy, RedisServer, ServerOptions};

use super::support::{
    Backend, Constructor, RECOVERY, admin, connect, hello_in_time, key, mutex, operation, session,
    soon, time_to_success,
};
use crate::constructors::CONSTRUCTORS;

/// Calls for so long, each of which must end in its time.
pub(crate) async fn keep_calling(
    backend: &Backend,
    duration: Duration,
) -> Vec<Result<(), BackendError>> {
    let began = Instant::now();
    let mut results = Vec::new();
    while began.elapsed() < duration {
        results.push(hello_in_time(backend).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    results
}

fn failures(constructor: &Constructor, results: &[Result<(), BackendError>]) {
    let failed = results.iter().filter_map(|result| result.as_ref().err());
    let mut count = 0;
    for error in failed {
        count += 1;
        assert!(error.is_transient(), "{}: {error}", constructor.name);
    }
    assert!(count > 0, "{}: the fault was not seen", constructor.name);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_that_starts_again_is_found_again_and_has_another_clock() {
    for constructor in CONSTRUCTORS
        .iter()
        .filter(|constructor| constructor.reconnects)
    {
        let mut server = RedisServer::start();
        let backend = constructor.open(&server.url()).await;
        let before = backend.hello().await.expect("the server answers");
        server.kill();
        let results = keep_calling(&backend, Duration::from_millis(500)).await;
        failures(constructor, &results);
        tokio::task::block_in_place(|| server.start_again());
        let took = time_to_success(&backend, RECOVERY * 5).await;
        assert!(took <= RECOVERY, "{}: took {took:?}", constructor.name);
        let after = backend.hello().await.expect("the server answers");
        assert_ne!(before.clock, after.clock, "{}", constructor.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_that_nobody_called_into_goes_unnoticed() {
    let mut server = RedisServer::start();
    for constructor in CONSTRUCTORS
        .iter()
        .filter(|constructor| constructor.told_of_ends)
    {
        let backend = constructor.open(&server.url()).await;
        let before = backend.hello().await.expect("the server answers");
        tokio::task::block_in_place(|| server.restart(Data::Lost));
        // Long enough to see that the connection has ended.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let after = backend.hello().await.expect("a new connection");
        assert_ne!(before.clock, after.clock, "{}", constructor.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_server_leaves_every_call_bounded_and_is_used_again_when_it_goes_on() {
    let server = RedisServer::start();
    for constructor in &CONSTRUCTORS {
        let backend = constructor.open(&server.url()).await;
        time_to_success(&backend, RECOVERY).await;
        server.pause();
        let results = keep_calling(&backend, Duration::from_millis(2_500)).await;
        server.resume();
        failures(constructor, &results);
        assert!(results.iter().all(Result::is_err), "{}", constructor.name);
        let took = time_to_success(&backend, RECOVERY * 5).await;
        assert!(took <= RECOVERY, "{}: took {took:?}", constructor.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_leaves_every_call_bounded_and_is_left_as_soon_as_it_ends() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address()).await;
    for constructor in &CONSTRUCTORS {
        let backend = constructor.open(&proxy.url()).await;
        time_to_success(&backend, RECOVERY).await;
        proxy.black_hole();
        let results = keep_calling(&backend, Duration::from_millis(2_500)).await;
        proxy.heal();
        failures(constructor, &results);
        let took = time_to_success(&backend, RECOVERY * 5).await;
        assert!(took <= RECOVERY, "{}: took {took:?}", constructor.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_went_silent_for_ever_is_replaced() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address()).await;
    for constructor in CONSTRUCTORS
        .iter()
        .filter(|constructor| constructor.replaces_silent)
    {
        let backend = constructor.open(&proxy.url()).await;
        time_to_success(&backend, RECOVERY).await;
        proxy.strand_connections();
        let took = time_to_success(&backend, RECOVERY * 10).await;
        // A user's client is suspected after two calls without an answer.
        let limit = if constructor.push {
            RECOVERY
        } else {
            RECOVERY * 4
        };
        assert!(took <= limit, "{}: took {took:?}", constructor.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_is_replaced() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address()).await;
    for constructor in CONSTRUCTORS
        .iter()
        .filter(|constructor| constructor.reconnects)
    {
        let backend = constructor.open(&proxy.url()).await;
        let before = backend.hello().await.expect("the server answers");
        for _ in 0..20 {
            proxy.cut_connections();
            let took = time_to_success(&backend, RECOVERY * 5).await;
            assert!(took <= RECOVERY, "{}: took {took:?}", constructor.name);
        }
        let after = backend.hello().await.expect("the server answers");
        assert_eq!(
            before.clock, after.clock,
            "{}: the same server",
            constructor.name
        );
    }
}

/// As renewals of a short lease are: they have less time than a distant server needs to connect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_who_give_up_early_get_a_connection_in_the_end() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address()).await;
    for constructor in CONSTRUCTORS.iter().filter(|constructor| constructor.push) {
        let backend = constructor.open(&proxy.url()).await;
        time_to_success(&backend, RECOVERY).await;
        // A call takes 60 ms; to connect takes that several times.
        proxy.delay(Duration::from_millis(30));
        proxy.cut_connections();
        let patience = Duration::from_millis(100);
        let began = Instant::now();
        while !matches!(
            tokio::time::timeout(patience, backend.hello()).await,
            Ok(Ok(_))
        ) {
            assert!(
                began.elapsed() < RECOVERY * 5,
                "{}: no connection",
                constructor.name
            );
        }
        proxy.delay(Duration::ZERO);
    }
}

/// A failover behind one name: the old primary is a replica now, and still reachable over the
/// connections that it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_has_become_a_replica_is_left() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    for (constructor, number) in CONSTRUCTORS
        .iter()
        .filter(|constructor| constructor.push)
        .zip(1..)
    {
        let proxy = FaultProxy::start(old.address()).await;
        let backend = constructor.open(&proxy.url()).await;
        let mut notifications = backend.listen(session(number)).await.expect("listening");
        let name = key(constructor.name);
        let before = soon(&backend).await;
        let ours = |sequence| mutex(&name, operation(session(number), sequence), before);
        let first = backend.acquire(&ours(1)).await.expect("an answer");
        admin(&old.url(), &["REPLICAOF", "127.0.0.1", "1"]).await;
        proxy.lead_to(new.address());
        let began = Instant::now();
        let moved = loop {
            match backend.acquire(&ours(2)).await {
                Ok(answer) => break answer,
                Err(error) => assert!(error.is_transient(), "{}: {error}", constructor.name),
            }
            assert!(
                began.elapsed() < RECOVERY * 5,
                "{}: still there",
                constructor.name
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert_ne!(first.stamp.clock, moved.stamp.clock, "{}", constructor.name);
        assert!(began.elapsed() <= RECOVERY, "{}", constructor.name);
        for listening in [false, true] {
            let notification = tokio::time::timeout(RECOVERY * 5, notifications.next()).await;
            let gap = Some(Notification::Missed { listening });
            assert_eq!(
                notification.expect("it is told"),
                gap,
                "{}",
                constructor.name
            );
        }
        let listed = admin(&new.url(), &["PUBSUB", "CHANNELS"]).await;
        assert!(
            listed.contains("leasehold:"),
            "{}: {listed}",
            constructor.name
        );
        admin(&old.url(), &["REPLICAOF", "NO", "ONE"]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_server_is_not_taken_for_a_dead_one() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address()).await;
    for constructor in CONSTRUCTORS.iter().filter(|constructor| constructor.push) {
        let backend = constructor.open(&proxy.url()).await;
        time_to_success(&backend, RECOVERY).await;
        let connections = proxy.connections();
        // Longer than the connection may be silent before it is doubted.
        proxy.delay(Duration::from_millis(400));
        for _ in 0..5 {
            hello_in_time(&backend).await.expect("slow, but an answer");
        }
        proxy.delay(Duration::ZERO);
        hello_in_time(&backend).await.expect("an answer");
        // It may have been doubted, but whoever waited for it got its answer.
        assert!(
            proxy.connections() <= connections + 5,
            "{}",
            constructor.name
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_there_is_unavailable() {
    let mut server = RedisServer::start();
    let url = server.url();
    server.kill();
    let error = connect(&url).await.expect_err("nobody is there");
    assert!(matches!(error, BackendError::Unavailable { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_rejected_and_says_so() {
    let server = ServerOptions::default()
        .with_config("requirepass", ["right"])
        .start();
    for (url, reason) in [
        (format!("redis://:wrong@{}", server.address()), "password"),
        (server.url(), "password"),
    ] {
        let error = connect(&url).await.expect_err("wrong");
        assert!(matches!(error, BackendError::Rejected { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    let backend = connect(&format!("redis://:right@{}", server.address())).await;
    backend.expect("the right password works");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_the_needed_commands_is_told_which() {
    let server = RedisServer::start();
    let rule = ["ACL", "SETUSER", "locker", "on", ">pw", "~*", "&*"];
    admin(&server.url(), &[&rule[..], &["+@connection"]].concat()).await;
    let url = format!("redis://locker:pw@{}", server.address());
    let error = connect(&url).await.expect_err("INFO is not allowed");
    assert!(matches!(error, BackendError::Rejected { .. }), "{error}");
    assert!(error.to_string().contains("+info"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_backend_says_so_and_has_no_connections() {
    for constructor in &CONSTRUCTORS {
        let server = RedisServer::start();
        let url = server.url();
        let backend = constructor.open(&url).await;
        hello_in_time(&backend).await.expect("an answer");
        backend.close().await.expect("closed");
        backend.close().await.expect("closing twice is fine");
        let error = backend.hello().await.expect_err("closed");
        assert!(matches!(error, BackendError::Closed), "{error}");
        if !constructor.push {
            // The user's connections stay the user's.
            continue;
        }
        super::support::eventually("its connections are closed", async || {
            let clients = admin(&url, &["CLIENT", "LIST"]).await;
            clients.matches("cmd=").count() == 1
        })
        .await;
    }
}

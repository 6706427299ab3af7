//! Errors of the server: transient, permanent, or a foreign value. "Not executed" is reported only
//! if it is certain.

use std::slice::from_ref;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::{join, join_all};
use leasehold_api::{BackendError, Error, FencingToken, Key, LockClient, ReleaseReply, RenewReply};
use leasehold_redis_common::{Options, RespVersion};
use leasehold_test_servers::{RedisServer, ServerOptions, ThreadProxy, throughout};
use tokio::io::AsyncWriteExt as _;

use super::connecting::LONG;
use super::requests::{LEASE, acquired, renew};
use super::support::{
    Backend, acquire, client, connected_with, connection, eventually, expect_rejected,
    expect_unavailable, hold, key, mutex, operation, recovers, refused, release, session, soon,
    url_with_rights, wait_in_line,
};
use crate::constructors::CONSTRUCTORS;

/// A script that keeps the server busy until it is killed.
const BUSY: &str = "while true do end";

async fn try_acquire(
    backend: &Backend,
    key: &Key,
    sequence: u64,
) -> Result<FencingToken, BackendError> {
    let before = soon(backend).await;
    let request = mutex(key, operation(session(1), sequence), before);
    let answer = acquire(backend, &request).await?;
    Ok(acquired(&answer.reply).token)
}

async fn expect_acquire(backend: &Backend, key: &Key, sequence: u64) -> FencingToken {
    let acquired = try_acquire(backend, key, sequence).await;
    acquired.expect("acquired")
}

async fn expect_release(backend: &Backend, key: &Key, sequence: u64) {
    let answer = release(backend, key, operation(session(1), sequence)).await;
    let reply = answer.expect("an answer").reply;
    assert!(matches!(reply, ReleaseReply::Released { .. }), "{reply:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_scripts_are_sent_again() {
    let server = RedisServer::start();
    for (constructor, sequence) in CONSTRUCTORS.iter().zip(1..) {
        let backend = constructor.open(&server.url()).await;
        for _ in 0..3 {
            server.run(&["SCRIPT", "FLUSH"]);
            expect_acquire(&backend, &key("forgotten"), sequence).await;
        }
        server.run(&["SCRIPT", "FLUSH"]);
        expect_release(&backend, &key("forgotten"), sequence).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_server_refuses_new_holds_and_serves_old_ones() {
    let server = RedisServer::start();
    for (constructor, sequence) in CONSTRUCTORS.iter().zip(1..) {
        let backend = constructor.open(&server.url()).await;
        expect_acquire(&backend, &key("held"), sequence).await;
        server.run(&["CONFIG", "SET", "maxmemory", "1"]);
        let error = try_acquire(&backend, &key("more"), sequence + 100).await;
        let error = error.expect_err("out of memory");
        expect_unavailable(&error, "OOM");
        let held = operation(session(1), sequence);
        let renewed = renew(&backend, &key("held"), held, LEASE).await;
        let reply = renewed.expect("an answer").reply;
        assert!(matches!(reply, RenewReply::Renewed { .. }), "{reply:?}");
        expect_release(&backend, &key("held"), sequence).await;
        server.run(&["CONFIG", "SET", "maxmemory", "0"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_keys_are_lost_at_the_next_renewal() {
    let server = RedisServer::start();
    for constructor in &CONSTRUCTORS {
        let backend = constructor.open(&server.url()).await;
        let key = key(constructor.name);
        let before = expect_acquire(&backend, &key, 1).await;
        server.run(&["FLUSHALL"]);
        let renewed = renew(&backend, &key, operation(session(1), 1), LEASE).await;
        let reply = renewed.expect("an answer").reply;
        assert!(matches!(reply, RenewReply::Lost(_)), "{reply:?}");
        let after = expect_acquire(&backend, &key, 2).await;
        assert!(after > before, "{before} {after}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_is_unavailable_until_it_is_promoted() {
    let server = RedisServer::start();
    for (constructor, sequence) in CONSTRUCTORS.iter().zip(1..) {
        let backend = constructor.open(&server.url()).await;
        expect_acquire(&backend, &key("replica"), sequence).await;
        expect_release(&backend, &key("replica"), sequence).await;
        server.run(&["REPLICAOF", "127.0.0.1", "1"]);
        let error = try_acquire(&backend, &key("replica"), sequence + 100).await;
        let error = error.expect_err("read-only");
        expect_unavailable(&error, "READONLY");
        server.run(&["REPLICAOF", "NO", "ONE"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_server_is_unavailable() {
    let server = RedisServer::start();
    server.run(&["CONFIG", "SET", "lua-time-limit", "20"]);
    for (constructor, sequence) in CONSTRUCTORS.iter().zip(1..) {
        let backend = constructor.open(&server.url()).await;
        let (operation, before) = (operation(session(1), sequence), soon(&backend).await);
        let request = mutex(&key("busy"), operation, before);
        let mut running = connection(&server.url()).await;
        let busy = tokio::spawn(async move {
            let mut script = redis::cmd("EVAL");
            script.arg(BUSY).arg(0).exec_async(&mut running).await
        });
        let error = loop {
            // Until the server is busy, the same request is acquired again.
            match acquire(&backend, &request).await {
                Ok(_) => assert!(!busy.is_finished(), "it was never busy"),
                Err(error) => break error,
            }
        };
        expect_unavailable(&error, "BUSY");
        server.run(&["SCRIPT", "KILL"]);
        assert!(busy.await.expect("no panic").is_err(), "it was killed");
        acquire(&backend, &request).await.expect("an answer");
        expect_release(&backend, &key("busy"), sequence).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_rights_are_named() {
    let server = RedisServer::start();
    for (rights, missing) in [
        (&["~*", "&*", "+@all", "-evalsha"][..], "+evalsha"),
        (&["~other:*", "&*", "+@all"][..], "~leasehold:*"),
    ] {
        let url = url_with_rights(&server, rights);
        for constructor in &CONSTRUCTORS {
            let backend = constructor.open_with(&url, Options::new()).await;
            let error = try_acquire(&backend, &key("forbidden"), 1).await;
            let error = error.expect_err("forbidden");
            expect_rejected(&error, missing);
        }
    }
}

/// A server repeats the arguments of a command that it doesn't know. Those of a script call are binary, and both
/// libraries take an error that is no text for the end of the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_evalsha_is_named_at_once() {
    let without = |command| ServerOptions::default().with_config("rename-command", [command, ""]);
    let server = without("EVALSHA").start();
    for resp in [RespVersion::Resp2, RespVersion::Resp3] {
        let options = Options::new().initial_connect_timeout(LONG).resp(resp);
        let (error, took) = refused(&server.url(), options).await;
        expect_rejected(&error, "unknown command 'EVALSHA': locks need EVALSHA");
        assert!(took < LONG / 4, "{took:?}");
    }
    for constructor in CONSTRUCTORS.iter().skip(2) {
        let backend = constructor.open_with(&server.url(), Options::new()).await;
        let error = try_call(&backend).await.expect_err("no scripts");
        expect_rejected(&error, "locks need EVALSHA");
    }
    let server = without("EVAL").start();
    for constructor in &CONSTRUCTORS {
        let backend = constructor.open_with(&server.url(), Options::new()).await;
        let error = try_call(&backend).await.expect_err("no scripts");
        expect_rejected(&error, "unknown command 'EVAL'");
    }
}

async fn try_call(backend: &Backend) -> Result<(), BackendError> {
    let seen = backend.inspect(&key("scripts")).await;
    seen.map(drop)
}

/// What a user prints of an error.
fn chain(error: &BackendError) -> String {
    let mut text = error.to_string();
    let mut below = std::error::Error::source(error);
    while let Some(error) = below {
        text += &format!(": {error}");
        below = error.source();
    }
    text
}

/// In protected mode, a server says so before it is asked anything, and closes the connection. It does so to clients
/// on other machines only, so this one is not real.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reason_that_a_server_says_unasked_is_shown() {
    const SAID: &str =
        "DENIED Redis is running in protected mode because protected mode is enabled";
    let server = ThreadProxy::start(async |mut client| {
        // The client may see the end of the connection while it writes, or while it reads.
        let said = client
            .write_all(format!("-{SAID} and more.\r\n").as_bytes())
            .await;
        said.expect("connected");
    });
    let url = format!("redis://{}", server.address());
    for resp in [RespVersion::Resp2, RespVersion::Resp3] {
        for _ in 0..50 {
            let options = Options::new().initial_connect_timeout(LONG).resp(resp);
            let (error, took) = refused(&url, options).await;
            assert!(!error.is_transient(), "{error}");
            let shown = chain(&error);
            assert!(shown.contains("DENIED"), "{shown}");
            assert!(shown.contains("is running in protected mode"), "{shown}");
            assert!(took < LONG / 4, "{took:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_without_room_for_a_client_says_so_and_is_tried_again() {
    const CLIENTS: usize = 10;
    let server = RedisServer::start();
    server.run(&["CONFIG", "SET", "maxclients", &CLIENTS.to_string()]);
    let connect = |_| std::net::TcpStream::connect(server.address()).expect("a server");
    let others: Vec<_> = (0..2 * CLIENTS).map(connect).collect();
    for resp in [RespVersion::Resp2, RespVersion::Resp3] {
        let limit = Duration::from_secs(3);
        let options = Options::new().initial_connect_timeout(limit).resp(resp);
        let (error, _) = refused(&server.url(), options).await;
        assert!(error.is_transient(), "{error}");
        let shown = chain(&error);
        assert!(shown.contains("max number of clients reached"), "{shown}");
    }
    let url = server.url();
    let options = Options::new().initial_connect_timeout(LONG);
    let connecting = tokio::spawn(async move { connected_with(&url, options).await });
    drop(others);
    let backend = connecting.await.expect("it has waited");
    backend.hello().await.expect("an answer");
}

/// A library that queues unsent commands would acquire locks here for calls that were dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_dropped_during_an_outage_is_not_sent_later() {
    let key = key("zombie");
    for constructor in CONSTRUCTORS.iter().filter(|it| it.reconnects) {
        let mut server = RedisServer::start();
        let backend = constructor.open(&server.url()).await;
        let before = soon(&backend).await;
        server.kill();
        for sequence in 1..=50 {
            let request = mutex(&key, operation(session(1), sequence), before);
            let _ = backend.acquire(from_ref(&request)).now_or_never();
        }
        server.start_again();
        recovers(&backend).await;
        let direct = connection(&server.url()).await;
        throughout(Duration::from_millis(300), "nothing is sent", async || {
            let keys = redis::cmd("DBSIZE").query_async(&mut direct.clone()).await;
            keys == Ok(0_u32)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_cleans_up_after_dropped_calls() {
    let server = RedisServer::start();
    let key = key("dropped");
    for constructor in &CONSTRUCTORS {
        let backend = constructor.open(&server.url()).await;
        for sequence in 1..=200_u64 {
            let operation = operation(session(1), sequence);
            let request = mutex(&key, operation, soon(&backend).await);
            let limit = Duration::from_micros(sequence % 50 * 10);
            let _ = tokio::time::timeout(limit, backend.acquire(from_ref(&request))).await;
            let released = release(&backend, &key, operation).await;
            released.expect("an answer");
        }
        eventually("nothing is left", async || {
            let seen = backend.inspect(&key).await.expect("an answer").reply;
            seen.holder_count == 0
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_share_one_attempt_to_connect() {
    let mut server = RedisServer::start();
    for constructor in CONSTRUCTORS.iter().filter(|it| it.push) {
        let backend = constructor.open(&server.url()).await;
        server.kill();
        let calls = join_all((0..64).map(|_| recovers(&backend)));
        let outage = async {
            pause(Duration::from_millis(200)).await;
            server.start_again();
        };
        join(calls, outage).await;
        // Includes the connections of the server's start, of the backend, and of this query.
        let count = server.accepted_connections();
        assert!(count < 12, "{count} connections");
    }
}

#[expect(clippy::disallowed_methods, reason = "an outage lasts for a while")]
async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

/// How the server refuses a user: it lacks the rights, or its password is another one when it connects again.
fn set_refused(server: &RedisServer, by_password: bool, is_refused: bool) {
    let user = |rules: &[&str]| server.run(&[&["ACL", "SETUSER", "locks"], rules].concat());
    match (by_password, is_refused) {
        (true, true) => {
            user(&["resetpass", ">other"]);
            server.run(&["CLIENT", "KILL", "USER", "locks"])
        }
        (true, false) => user(&["resetpass", ">secret"]),
        (false, true) => user(&["-@all"]),
        (false, false) => user(&["+@all"]),
    };
}

/// What a client lets go while it is refused is free soon after, and not at the end of its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_free_soon_after_a_refusal() {
    const LEASE: Duration = Duration::from_secs(120);
    let server = RedisServer::start();
    let url = url_with_rights(&server, &["~*", "&*", "+@all"]);
    let others = client(&server.url()).await;
    let constructors = CONSTRUCTORS.iter();
    let cases = constructors.flat_map(|it| [(it, false), (it, true)]);
    // A `ConnectionManager` whose login was refused once never logs in again, and a `MultiplexedConnection` never does.
    for (constructor, by_password) in cases.filter(|(it, by_password)| !by_password || it.push) {
        let locks = LockClient::new(constructor.open(&url).await);
        let released = hold(&locks, "released", LEASE).await;
        let dropped = hold(&locks, "dropped", LEASE).await;
        let many = locks.mutexes(["x", "y"]).expect("valid").lease(LEASE);
        let many = many.lock().await.expect("free");
        let theirs = hold(&others, "queue", LEASE).await;
        let waiting = wait_in_line(&locks, "queue", LEASE).await;
        set_refused(&server, by_password, true);
        let told = released.release().await;
        assert!(told.is_err(), "{told:?}");
        drop((dropped, many));
        waiting.abort();
        throughout(Duration::from_secs(1), "it is refused", async || {
            let told = released.release().await;
            matches!(told, Err(Error::Rejected { .. }))
        })
        .await;
        set_refused(&server, by_password, false);
        let admitted = Instant::now();
        theirs.release().await.expect("released");
        for key in ["released", "dropped", "x", "y", "queue"] {
            let mutex = others.mutex(key).expect("valid");
            let outcome = mutex.try_lock_for(LEASE / 6).await.expect("an answer");
            let guard = outcome.into_guard();
            let guard = guard.unwrap_or_else(|| panic!("{key}, {by_password}"));
            // If it was dropped, the next guard of this key might come from the queue, and end unless it is renewed.
            guard.release().await.expect("released");
        }
        let (name, took) = (constructor.name, admitted.elapsed());
        println!("{name}, by password: {by_password}: free after {took:?}");
        eventually("the release is known", async || {
            released.release().await.is_ok()
        })
        .await;
    }
}

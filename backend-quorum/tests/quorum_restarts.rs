//! A quorum of real Redis servers that restart one after the other and keep their data, or go away.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "real servers have real time"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold_api::{Error, LockBackend, LockClient};
use leasehold_fred::FredBackend;
use leasehold_quorum::Quorum;
use leasehold_redis_rs::{Options, RedisBackend};
use leasehold_test_servers::{
    Data, RedisServer, ServerAway, ServerOptions, Stopwatch, eventually, throughout,
};

/// The time between two restarts. It is much shorter than the time for which a client doesn't count a
/// server that may have lost its data.
const BETWEEN: Duration = Duration::from_secs(12);
const RESTARTS: usize = 4;
/// After each restart, somebody gets the lock within this time.
const GRANT_WITHIN: Duration = Duration::from_secs(5);

fn options() -> Options {
    // A busy machine may need longer than the default.
    Options::new().connect_timeout(Duration::from_secs(5))
}

async fn redis(server: &RedisServer) -> Arc<dyn LockBackend> {
    let backend = RedisBackend::connect_with(&server.url(), options()).await;
    Arc::new(backend.expect("a server that runs"))
}

async fn fred(server: &RedisServer) -> Arc<dyn LockBackend> {
    let backend = FredBackend::connect_with(&server.url(), options()).await;
    Arc::new(backend.expect("a server that runs"))
}

fn client(servers: [Arc<dyn LockBackend>; 3]) -> LockClient {
    let quorum = Quorum::new(servers).expect("three servers");
    LockClient::new(quorum.restarts_keep_data(true))
}

/// What the contenders saw.
#[derive(Debug)]
struct Seen {
    began: Instant,
    held: AtomicBool,
    last_token: AtomicU64,
    /// When the lock was last granted, in ms since the beginning.
    last_grant: AtomicU64,
    is_over: AtomicBool,
}

impl Seen {
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).expect("a short test")
    }

    async fn contend(self: Arc<Self>, locks: LockClient) {
        let mutex = locks.mutex("contended").expect("a valid key");
        while !self.is_over.load(Ordering::SeqCst) {
            let guard = mutex.lock().await.expect("the servers come back");
            if !guard.is_valid() {
                continue;
            }
            assert!(!self.held.swap(true, Ordering::SeqCst), "two holders");
            let token = guard.fencing_token().get();
            let before = self.last_token.swap(token, Ordering::SeqCst);
            assert!(token > before, "{token} after {before}");
            self.last_grant.store(self.now(), Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert!(guard.is_valid(), "a lease is much longer than a restart");
            self.held.store(false, Ordering::SeqCst);
            // A release without a quorum goes on in the background.
            let _ = guard.release().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_granted_while_servers_restart_one_by_one() {
    let mut servers = [0, 1, 2].map(|_| ServerOptions::default().with_append_only().start());
    let [a, b, c] = &servers;
    let clients = [
        client([redis(a).await, redis(b).await, redis(c).await]),
        client([fred(a).await, fred(b).await, fred(c).await]),
    ];
    let kept = clients[0].mutex("kept").expect("a valid key");
    let kept = kept.lock().await.expect("granted");
    let seen = Arc::new(Seen {
        began: Instant::now(),
        held: AtomicBool::new(false),
        last_token: AtomicU64::new(0),
        last_grant: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    });
    let contend = |locks: &LockClient| tokio::spawn(Arc::clone(&seen).contend(locks.clone()));
    let contenders = clients.each_ref().map(contend);
    for restart in 0..RESTARTS {
        tokio::time::sleep(BETWEEN).await;
        tokio::task::block_in_place(|| servers[restart % 3].restart(Data::Kept));
        let (restarted, waited) = (seen.now(), Stopwatch::start());
        eventually("a grant after a restart", async || {
            let failed = contenders.iter().any(|it| it.is_finished());
            assert!(!failed, "a contender failed");
            seen.last_grant.load(Ordering::SeqCst) > restarted
        })
        .await;
        let waited = waited.elapsed();
        println!("restart {restart}: a grant after {waited:?}");
        assert!(waited < GRANT_WITHIN, "restart {restart}: {waited:?}");
    }
    assert!(kept.is_valid(), "renewed all the time");
    seen.is_over.store(true, Ordering::SeqCst);
    for contender in contenders {
        contender.await.expect("no failed assertion");
    }
    kept.release().await.expect("released");
}

/// Two URLs that lead to the same server would give it two votes.
#[tokio::test]
async fn same_server_twice_is_refused() {
    let servers = [0, 1].map(|_| RedisServer::start());
    let locks = client([
        redis(&servers[0]).await,
        redis(&servers[1]).await,
        fred(&servers[0]).await,
    ]);
    let mutex = locks.mutex("k").expect("a valid key");
    // The first two servers may grant a lock before the third has answered.
    let mut error = None;
    eventually("it is noticed", async || {
        error = mutex.try_lock().await.err();
        error.is_some()
    })
    .await;
    let error = error.expect("waited for it");
    assert!(matches!(error, Error::Rejected { .. }), "{error:?}");
    assert!(format!("{error:?}").contains("servers 1 and 3 of the quorum are the same one"));
}

/// Two of three servers go away while many calls wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_to_connect_do_not_grow_with_waiting_calls() {
    let mut servers = [0, 1, 2].map(|_| RedisServer::start());
    let [a, b, c] = &servers;
    let locks = client([redis(a).await, redis(b).await, fred(c).await]);
    let mutex = |number: u32| locks.mutex(format!("{number}")).expect("a valid key");
    let guard = mutex(0).lock().await.expect("granted");
    guard.release().await.expect("released");
    let away = [1, 2].map(|number: usize| {
        servers[number].kill();
        ServerAway::listen(servers[number].address())
    });
    let mut waiting = tokio::task::JoinSet::new();
    for number in 1..=50 {
        let mutex = mutex(number);
        waiting.spawn(async move { mutex.lock().await.map(drop) });
    }
    let are_few = async || away.iter().all(|server| server.connections() <= 35);
    throughout(Duration::from_secs(5), "attempts are few", are_few).await;
    assert!(away.iter().all(|server| server.connections() >= 2));
    drop(away);
    for number in [1, 2] {
        tokio::task::block_in_place(|| servers[number].start_again());
    }
    while let Some(done) = waiting.join_next().await {
        done.expect("no panic").expect("a lock");
    }
}

/// The client's runtime ends. Its servers are as well as before.
#[test]
fn calls_end_with_the_runtime_of_the_client() {
    let servers = [0, 1, 2].map(|_| RedisServer::start());
    let runtime = || tokio::runtime::Runtime::new().expect("a runtime");
    let (user, other) = (runtime(), runtime());
    let connect = async || {
        let [a, b, c] = &servers;
        client([redis(a).await, redis(b).await, fred(c).await])
    };
    let (holds, waits) = (other.block_on(connect()), user.block_on(connect()));
    let mutex = |locks: &LockClient, key| locks.mutex(key).expect("a valid key");
    let guard = other.block_on(mutex(&holds, "a").lock()).expect("granted");
    let waiting = mutex(&waits, "a");
    let waiting = other.spawn(async move { waiting.lock().await.map(drop) });
    let tried = user.block_on(mutex(&waits, "a").try_lock_for(GRANT_WITHIN));
    assert!(tried.is_ok_and(|tried| !tried.is_acquired()));
    let later = mutex(&waits, "b");
    drop(user);
    let later = other.spawn(async move { later.lock().await.map(drop) });
    for call in [waiting, later] {
        let ended = other.block_on(async { tokio::time::timeout(GRANT_WITHIN * 4, call).await });
        let ended = ended.expect("it ends").expect("no panic");
        assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    }
    drop(guard);
}

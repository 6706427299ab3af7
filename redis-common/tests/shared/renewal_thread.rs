//! Renewals continue while the user's program blocks all threads of its runtime.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use leasehold_api::{LockClient, MutexGuard, ServerTime, bounds};
use leasehold_redis_common::script::{Protocol, ScriptSettings};
use leasehold_test_servers::{FaultProxy, RedisServer, Stopwatch, throughout};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::runtimes::{WORKERS, runtime};
use super::support::{Backend, connected, eventually, hold};
use crate::constructors::CONSTRUCTORS;

const LEASE: Duration = Duration::from_secs(2);

const BLOCKED_LEASE: Duration = Duration::from_secs(3);
/// How late a renewal or the report of a loss may be.
const LATE: Duration = Duration::from_millis(200);

#[test]
fn blocked_runtime_keeps_its_locks() {
    let server = RedisServer::start();
    let (user, observer) = (runtime(), runtime());
    let held = user.block_on(hold_one_each(&server));

    let blocked = block(&user, Duration::from_secs(10));
    let direct = observer.block_on(connected(&server.url()));
    let time = Stopwatch::start();
    let seen = observer.block_on(watch(&direct, &held, Duration::from_secs(9)));
    let stalled = time.stalled();
    for ((_, guard), renewals) in held.iter().zip(&seen) {
        let name = guard.key();
        let gaps = renewals
            .windows(2)
            .map(|pair| pair[1].saturating_since(pair[0]));
        let longest = gaps.max().expect("several renewals");
        println!(
            "{name}: {} renewals, {longest:?} apart at most; the machine stalled for {stalled:?}",
            renewals.len(),
        );
        let interval = BLOCKED_LEASE / bounds::RENEWALS_PER_LEASE;
        assert!(longest <= interval + LATE + stalled, "{name}: {longest:?}");
        assert!(guard.is_valid(), "{name}");
    }
    wait_for(blocked, &observer);

    // Renewals fail from here on. The loss is reported in time too.
    server.pause();
    let blocked = block(&user, BLOCKED_LEASE + Duration::from_secs(1));
    for (_, guard) in &held {
        let name = guard.key();
        let (began, valid_for) = (Stopwatch::start(), guard.valid_for());
        let loss = observer.block_on(guard.lost());
        let late = began.elapsed().saturating_sub(valid_for);
        println!("{name}: {loss}, {late:?} after its deadline");
        assert!(late <= LATE, "{name}: {late:?}");
        assert!(!guard.is_valid(), "{name}");
    }
    wait_for(blocked, &observer);
    server.resume();
    user.block_on(async {
        for (locks, guard) in held {
            drop(guard);
            locks.shutdown().await.expect("shut down");
        }
    });
}

/// A client for each constructor, with the lock of this name.
async fn hold_one_each(server: &RedisServer) -> Vec<(LockClient, MutexGuard)> {
    let mut all = Vec::new();
    for constructor in CONSTRUCTORS.iter().filter(|it| it.push) {
        let locks = LockClient::new(constructor.open(&server.url()).await);
        let guard = hold(&locks, constructor.name, BLOCKED_LEASE).await;
        all.push((locks, guard));
    }
    all
}

/// Blocks all workers of a runtime at the same time.
fn block(runtime: &Runtime, duration: Duration) -> Vec<JoinHandle<()>> {
    let started = Arc::new(Barrier::new(WORKERS + 1));
    let blockers = (0..WORKERS).map(|_| {
        let started = Arc::clone(&started);
        runtime.spawn(async move {
            started.wait();
            #[expect(clippy::disallowed_methods, reason = "it blocks the runtime")]
            std::thread::sleep(duration);
        })
    });
    let blockers = blockers.collect();
    started.wait();
    blockers
}

fn wait_for(blocked: Vec<JoinHandle<()>>, observer: &Runtime) {
    for blocker in blocked {
        observer.block_on(blocker).expect("it only sleeps");
    }
}

/// Polls the server. Returns the expiry that each renewal set, in server time, for each guard.
async fn watch(
    direct: &Backend,
    held: &[(LockClient, MutexGuard)],
    time: Duration,
) -> Vec<Vec<ServerTime>> {
    let mut renewals: Vec<Vec<ServerTime>> = held.iter().map(|_| Vec::new()).collect();
    throughout(time, "all are held", async || {
        for ((_, guard), renewals) in held.iter().zip(&mut renewals) {
            let seen = direct.inspect(guard.key()).await.expect("an answer");
            assert_eq!(seen.reply.holder_count, 1, "{}", guard.key());
            assert_eq!(seen.reply.holders[0].token, guard.fencing_token());
            // A renewal sets the expiry to its own time plus the lease.
            let remaining = seen.reply.holders[0].remaining;
            let end = seen.stamp.at.saturating_add(remaining);
            if renewals.last() != Some(&end) {
                renewals.push(end);
            }
        }
        true
    })
    .await;
    renewals
}

/// Acquires a lock by one attempt: what an earlier part of the test has left is an error, not a wait.
async fn hold_at_once(locks: &LockClient, key: &str, lease: Duration) -> MutexGuard {
    let mutex = locks.mutex(key).expect("a good key").lease(lease);
    let tried = mutex.try_lock().await.expect("an answer");
    tried.into_guard().expect("it is free")
}

/// With a short lease, each renewal may have less time than it takes to notice a dead connection.
/// Several renewals together notice it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_survives_a_dead_renewal_connection() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address()).await;
    for constructor in CONSTRUCTORS.iter().filter(|it| it.push) {
        let locks = LockClient::new(constructor.open(&proxy.url()).await);
        let guard = hold_at_once(&locks, "stranded", LEASE).await;
        let is_held = async || guard.is_valid();
        throughout(LEASE, "renewed", is_held).await;
        proxy.strand_connections();
        throughout(LEASE * 2, "renewed on another connection", is_held).await;
        guard.release().await.expect("released");
        locks.shutdown().await.expect("shut down");
    }
}

/// With a short lease, the first renewal has no time to connect or to send the script's source.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_prepares_the_first_renewal() {
    let protocol = Protocol::new(bounds::DEFAULT_KEY_PREFIX, ScriptSettings::default());
    let renewal = protocol.expect("a good prefix").renew(&[]);
    for constructor in CONSTRUCTORS.iter().filter(|it| it.push) {
        // A new one, because the connections of the last client end late, and they are counted.
        let server = RedisServer::start();
        let backend = constructor.open(&server.url()).await;
        backend.hello().await.expect("connected");
        let before = connections(&server);
        let locks = LockClient::new(backend);
        let guard = hold_at_once(&locks, "ready", bounds::DEFAULT_LEASE).await;
        eventually("it is connected and the script is loaded", async || {
            let known = server.run(&["SCRIPT", "EXISTS", renewal.script.sha1()]);
            known.ends_with(":1") && connections(&server) > before
        })
        .await;
        guard.release().await.expect("released");
        locks.shutdown().await.expect("shut down");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_connection_renews_if_a_second_one_is_refused() {
    for constructor in CONSTRUCTORS.iter().filter(|it| it.push) {
        let server = RedisServer::start();
        let backend = constructor.open(&server.url()).await;
        backend.hello().await.expect("connected");
        server.run(&["CONFIG", "SET", "maxclients", "1"]);
        let locks = LockClient::new(backend);
        let guard = hold_at_once(&locks, "alone", LEASE).await;
        throughout(LEASE * 3, "renewed", async || guard.is_valid()).await;
        guard.release().await.expect("released");
        locks.shutdown().await.expect("shut down");
    }
}

/// The number of connections for commands.
fn connections(server: &RedisServer) -> usize {
    let listed = server.run(&["CLIENT", "LIST", "TYPE", "normal"]);
    listed.matches(" addr=").count()
}

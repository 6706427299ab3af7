//! Locks on a Redis Cluster: each key on its node, while nodes fail.

use std::net::TcpListener;
use std::time::Duration;

use futures_util::StreamExt;
use leasehold_api::{BackendError, Guard, LockClient, Mutex, MutexGuard, Outcome, Poll, bounds};
use leasehold_redis_common::{Options, RespVersion, ServerChecks};
use leasehold_test_servers::{
    RedisCluster, RedisServer, ServerAway, ServerOptions, SteppedClock, Stopwatch, throughout,
};

use super::support::{
    self, LATE, Waiting, acquire, connected, connected_with, eventually, expect_rejected, hold,
    key, mutex, operation, refused, session, soon, stays_away, url_with_rights, wait_in_line,
};

/// Several renewals fit into the tests, and a renewal that a busy machine delays into the lease.
pub(crate) const LEASE: Duration = Duration::from_secs(4);
/// Longer than a failover on a busy machine. Alone, it takes two or three seconds.
pub(crate) const LONG_LEASE: Duration = Duration::from_secs(120);

/// The Redis key of a lock.
pub(crate) fn stored(name: &str) -> String {
    format!("{}{{{name}}}", bounds::DEFAULT_KEY_PREFIX)
}

/// The name of a lock on each of the first three nodes.
pub(crate) fn one_on_each(cluster: &RedisCluster) -> [String; 3] {
    [0, 1, 2].map(|node| {
        let mut names = (0..).map(|number| format!("lock {number}"));
        let found = names.find(|name| cluster.primary_of(&stored(name)) == node);
        found.expect("some name")
    })
}

pub(crate) async fn client(cluster: &RedisCluster) -> LockClient {
    support::client(&cluster.url()).await
}

pub(crate) fn lock(locks: &LockClient, name: &str, lease: Duration) -> Mutex {
    locks.mutex(name).expect("a good key").lease(lease)
}

/// Checks that somebody else holds a lock.
pub(crate) async fn expect_held(locks: &LockClient, name: &str) {
    let tried = lock(locks, name, LEASE).try_lock().await;
    assert!(
        matches!(tried, Ok(Outcome::Contended(_))),
        "{name}: {tried:?}"
    );
}

/// The waiter gets the lock that is released, with a higher token. Returns how long that takes.
pub(crate) async fn expect_turn(guard: MutexGuard, waiting: Waiting) -> Duration {
    let token = guard.fencing_token();
    assert!(guard.is_valid(), "{:?}", guard.loss_reason());
    let released = Stopwatch::start();
    guard.release().await.expect("released");
    let next = tokio::time::timeout(LONG_LEASE / 2, waiting).await;
    let next = next.expect("its turn").expect("no panic").expect("a guard");
    let took = released.elapsed();
    assert!(next.fencing_token() > token);
    next.release().await.expect("released");
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_survives_the_failover_of_its_node() {
    let mut cluster = RedisCluster::start();
    let (locks, others) = (client(&cluster).await, client(&cluster).await);
    let name = "failing over";
    let guard = hold(&locks, name, LONG_LEASE).await;
    let waiting = wait_in_line(&others, name, LONG_LEASE).await;
    let stored = stored(name);
    let primary = cluster.primary_of(&stored);
    let node = &cluster.nodes()[primary];
    eventually("its replica has the lock", async || node.is_replicated()).await;
    cluster.kill(primary);
    eventually("a failover", async || {
        cluster.find_primary_of(&stored).is_some()
    })
    .await;
    cluster.wait_until_healthy();
    expect_turn(guard, waiting).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_node_fails_only_its_keys() {
    let options = ServerOptions::default().with_config("cluster-require-full-coverage", ["no"]);
    let mut cluster = RedisCluster::start_with(3, |_| options.clone());
    let locks = client(&cluster).await;
    let names = one_on_each(&cluster);
    let lease = LEASE;
    let held = hold(&locks, &names[1], lease).await;
    for (fault, name) in [("silent", &names[2]), ("dead", &names[0])] {
        match fault {
            "silent" => cluster.nodes()[2].pause(),
            _ => cluster.kill(0),
        }
        for _ in 0..3 {
            let began = Stopwatch::start();
            let failed = lock(&locks, name, LEASE).try_lock().await;
            let took = began.elapsed();
            assert!(failed.is_err(), "{fault}: {failed:?}");
            assert!(took <= bounds::CALL_TIMEOUT + LATE, "{fault}: {took:?}");
        }
        expect_held(&locks, &names[1]).await;
        if fault == "silent" {
            cluster.nodes()[2].resume();
        }
    }
    throughout(lease * 3 / 2, "renewed", async || held.is_valid()).await;
    held.release().await.expect("released");
}

/// Many renewals are due at the same time. Those of a silent node must not keep back the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_node_costs_no_lock_of_another() {
    const TIME: Duration = Duration::from_secs(4);
    // Otherwise the other nodes refuse calls once they take the silent one for dead.
    let options = ServerOptions::default().with_config("cluster-node-timeout", ["60000"]);
    let cluster = RedisCluster::start_with(3, |_| options.clone());
    let options = Options::new().call_timeout(TIME);
    let backend = connected_with(&cluster.url(), options).await;
    let builder = LockClient::builder(backend).call_timeout(TIME);
    let locks = builder.build().expect("good settings");
    let take = async |node: usize, count: usize| {
        let names = (0..).map(|n| format!("many {n}"));
        let names = names.filter(|name| cluster.primary_of(&stored(name)) == node);
        let mut guards = Vec::new();
        // First all names, because each asks the cluster.
        for name in names.take(count).collect::<Vec<_>>() {
            guards.push(hold(&locks, &name, TIME).await);
        }
        guards
    };
    let (silent, others) = (take(2, 300).await, take(0, 20).await);
    cluster.nodes()[2].pause();
    throughout(TIME * 3, "the others are renewed", async || {
        others.iter().all(Guard::is_valid)
    })
    .await;
    cluster.nodes()[2].resume();
    assert!(
        silent.iter().all(|guard| !guard.is_valid()),
        "it was silent"
    );
}

/// The connections to the old primary stay open and never say that it is gone. The caller gives up
/// each call before its time limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_primary_is_left_after_its_failover() {
    let cluster = RedisCluster::start();
    let backend = connected(&cluster.url()).await;
    let before = soon(&backend).await;
    let answers = async || {
        let request = [mutex(&key("silent"), operation(session(1), 1), before)];
        let acquiring = backend.acquire(&request);
        let acquired = tokio::time::timeout(bounds::CALL_TIMEOUT / 2, acquiring).await;
        acquired.is_ok_and(|answers| answers[0].is_ok())
    };
    assert!(answers().await, "no answer from a healthy node");
    let old = cluster.primary_of(&stored("silent"));
    let replica = &cluster.nodes()[old + 3];
    cluster.nodes()[old].pause();
    eventually("a failover", async || {
        replica.run(&["ROLE"]).contains("master")
    })
    .await;
    eventually("it leaves the old node", answers).await;
    cluster.nodes()[old].resume();
}

/// A poll subscribes first, and the node answers neither.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poll_of_a_silent_node_ends_in_time() {
    let cluster = RedisCluster::start_without_replicas();
    let limit = Duration::from_secs(2);
    let options = Options::new().call_timeout(limit).connect_timeout(limit);
    let backend = connected_with(&cluster.url(), options).await;
    let key = key(&one_on_each(&cluster)[2]);
    backend.inspect(&key).await.expect("connected to the node");
    // Before Redis 7.0, a cluster has no push.
    let stream = backend.listen(session(1)).await;
    assert_eq!(stream.is_ok(), backend.capabilities().push);
    cluster.nodes()[2].pause();
    let began = Stopwatch::start();
    let poll = [Poll::new(key, operation(session(1), 1), true)];
    let answer = backend.poll(&poll).await.remove(0);
    let took = began.elapsed();
    cluster.nodes()[2].resume();
    assert!(answer.is_err(), "{answer:?}");
    assert!(took < limit + LATE, "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_end_in_time_while_the_cluster_is_down() {
    let mut cluster = RedisCluster::start_without_replicas();
    let url = cluster.url();
    let backend = connected(&url).await;
    let names = one_on_each(&cluster);
    let before = soon(&backend).await;
    cluster.kill(0);
    // The other nodes refuse all keys once they miss the first.
    eventually("the cluster refuses", async || {
        let request = mutex(&key(&names[1]), operation(session(1), 1), before);
        let called = Stopwatch::start();
        let answer = acquire(&backend, &request).await;
        assert!(called.elapsed() <= bounds::CALL_TIMEOUT + LATE);
        let error = answer.err();
        let is_unavailable = matches!(error, None | Some(BackendError::Unavailable { .. }));
        assert!(is_unavailable, "{error:?}");
        error.is_some()
    })
    .await;
}

/// The clocks differ by more than the delivery window: a time of one node is useless on another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_may_have_different_clocks() {
    const MINUTES: [i64; 3] = [0, 5, -7];
    let clocks = MINUTES.map(|minutes| {
        let clock = SteppedClock::new();
        clock.set(minutes * 60_000_000);
        clock
    });
    let options = |node: usize| ServerOptions::default().with_program(clocks[node].program());
    let cluster = RedisCluster::start_with(3, options);
    let (locks, others) = (client(&cluster).await, client(&cluster).await);
    let names = one_on_each(&cluster);
    let url = cluster.url();
    let backend = connected(&url).await;
    for name in names.iter().cycle().take(9) {
        let stamp = backend.read_clock(&key(name)).await.expect("an answer");
        assert_eq!(backend.clock(&key(name)), Some(stamp.clock));
        let guard = lock(&locks, name, LEASE).try_lock_for(LONG_LEASE).await;
        let guard = guard.expect("an answer").into_guard().expect("acquired");
        let began = std::time::Instant::now();
        let wait = Duration::from_millis(300);
        let waited = lock(&others, name, LEASE).try_lock_for(wait).await;
        assert!(matches!(waited, Ok(Outcome::Contended(_))), "{waited:?}");
        assert!(began.elapsed() >= wait, "{:?}", began.elapsed());
        assert!(guard.is_valid(), "{:?}", guard.loss_reason());
        guard.release().await.expect("released");
    }
}

/// The slots are read over a connection for commands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_opens_few_connections() {
    let cluster = RedisCluster::start_without_replicas();
    let names = one_on_each(&cluster);
    // Without the connections of these questions.
    let count = || -> u64 {
        let nodes = cluster.nodes().iter();
        nodes.map(|node| node.accepted_connections() - 1).sum()
    };
    let before = count();
    // On a busy machine, a silent connection gets a second one next to it otherwise.
    let options = Options::new().call_timeout(bounds::MAX_CALL_TIMEOUT);
    let locks = LockClient::new(connected_with(&cluster.url(), options).await);
    let mut held = Vec::new();
    for name in &names {
        held.push(hold(&locks, name, LEASE).await);
    }
    throughout(LEASE * 3 / 2, "renewed", async || {
        held.iter().all(MutexGuard::is_valid)
    })
    .await;
    let waited = lock(&locks, &names[1], LEASE).try_lock_for(LEASE).await;
    assert!(matches!(waited, Ok(Outcome::Contended(_))), "{waited:?}");
    // For commands and for renewals on each node. With push, one for revocations on any node, and
    // one for the waiter on its node.
    let has_push = locks.backend().capabilities().push;
    let opened = count() - before - 3;
    assert_eq!(opened, if has_push { 8 } else { 6 });
}

/// Each node has its own users.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_rights_are_named_by_each_node() {
    let options = ServerOptions::default().with_append_only();
    let cluster = RedisCluster::start_with(3, |_| options.clone());
    let names = one_on_each(&cluster);
    let cases = [
        ("-asking", RespVersion::Resp2, "+asking"),
        ("-spublish", RespVersion::Resp2, "+spublish"),
        (
            "-pubsub|shardnumsub",
            RespVersion::Resp2,
            "+pubsub|shardnumsub",
        ),
        ("-ssubscribe", RespVersion::Resp2, ""),
        ("-ssubscribe", RespVersion::Resp3, "+ssubscribe"),
        ("-sunsubscribe", RespVersion::Resp3, "+sunsubscribe"),
    ];
    // Servers before 7.0 can't tell, and have no shard channels.
    let can_tell = RedisServer::default_version().major >= 7;
    for (right, resp, missing) in cases.into_iter().take(if can_tell { 6 } else { 1 }) {
        for (number, node) in cluster.nodes().iter().enumerate() {
            let right = if number == 1 { right } else { "+@all" };
            url_with_rights(node, &["~leasehold:*", "&leasehold:*", "+@all", right]);
        }
        let url = cluster.url().replace("://", "://locks:secret@");
        let options = Options::new()
            .resp(resp)
            .server_checks(ServerChecks::Reject);
        let backend = connected_with(&url, options).await;
        let before = soon(&backend).await;
        for (number, name) in names.iter().enumerate() {
            let request = mutex(&key(name), operation(session(1), 1), before);
            let answer = acquire(&backend, &request).await;
            if number != 1 || missing.is_empty() || !can_tell {
                answer.expect("enough rights");
                continue;
            }
            let error = answer.expect_err(missing);
            let expected = format!("user is without {missing}: locks need these rights");
            expect_rejected(&error, &expected);
        }
    }
}

/// Otherwise the client would never listen again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_ends_if_the_nodes_refuse_to_subscribe_again() {
    let cluster = RedisCluster::start_without_replicas();
    let on_all = |command: &[&str]| {
        for node in cluster.nodes() {
            node.run(command);
        }
    };
    on_all(&[
        "ACL", "SETUSER", "locks", "on", ">secret", "~*", "&*", "+@all",
    ]);
    let url = cluster.url().replace("://", "://locks:secret@");
    let backend = connected(&url).await;
    let stream = backend.listen(session(1)).await;
    assert_eq!(stream.is_ok(), backend.capabilities().push);
    let Ok(mut stream) = stream else { return };
    // The nodes close the subscribed connections.
    on_all(&["ACL", "SETUSER", "locks", "resetchannels"]);
    let end = tokio::time::timeout(LONG_LEASE / 2, async {
        while stream.next().await.is_some() {}
    });
    end.await.expect("the stream ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scheme_must_fit_the_server() {
    let server = RedisServer::start();
    let url = format!("redis-cluster://{}", server.address());
    let (error, _) = refused(&url, Options::new()).await;
    expect_rejected(&error, "the server runs in standalone mode; write redis://");
    expect_rejected(&error, &server.address().to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_of_the_url_is_enough() {
    let mut cluster = RedisCluster::start();
    let names = one_on_each(&cluster);
    let url = cluster.url();
    // The first node of the URL is a dead replica's.
    let dead = cluster.nodes()[5].address();
    cluster.kill(5);
    let url = format!(
        "redis-cluster://{dead}?{}",
        url.split_once('?').expect("nodes").1
    );
    let locks = support::client(&url).await;
    for name in &names {
        let guard = hold(&locks, name, LEASE).await;
        guard.release().await.expect("released");
    }
    locks.shutdown().await.expect("shut down");
    let backend = locks.backend();
    backend.close().await.expect("closed");
    let error = backend.hello().await.expect_err("closed");
    assert!(matches!(error, BackendError::Closed), "{error:?}");
}

/// Most nodes of the URL accept connections and never answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_nodes_of_the_url_cost_little_time() {
    const LIMIT: Duration = Duration::from_secs(5);
    let cluster = RedisCluster::start_without_replicas();
    // The system accepts the connections, and nobody reads from them.
    let silent = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let addresses = silent.each_ref().map(TcpListener::local_addr);
    let [first, second, third] = addresses.map(|it| it.expect("bound"));
    let alive = cluster.nodes()[0].address();
    let url = format!("redis-cluster://{first}?node={second}&node={third}&node={alive}");
    let options = Options::new().call_timeout(LIMIT).connect_timeout(LIMIT);
    let began = Stopwatch::start();
    let backend = connected_with(&url, options.initial_connect_timeout(LIMIT * 4)).await;
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
    let locks = LockClient::new(backend);
    let guard = hold(&locks, "found", LEASE).await;
    guard.release().await.expect("released");
}

/// A node without a replica goes away while many calls wait for its keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_to_connect_to_a_node_do_not_grow_with_waiting_calls() {
    let mut cluster = RedisCluster::start_without_replicas();
    let [name, ..] = one_on_each(&cluster);
    let node = cluster.primary_of(&stored(&name));
    let locks = client(&cluster).await;
    let guard = hold(&locks, &name, LEASE).await;
    guard.release().await.expect("released");
    cluster.kill(node);
    let away = ServerAway::listen(cluster.nodes()[node].address());
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let mutex = lock(&locks, &name, LEASE);
        waiting.spawn(async move { mutex.lock().await?.release().await });
    }
    stays_away(&away).await;
    drop(away);
    cluster.start_again(node);
    while let Some(done) = waiting.join_next().await {
        done.expect("no panic").expect("a lock");
    }
}

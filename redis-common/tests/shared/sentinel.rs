//! Failovers with Sentinel. Each test has a primary, two replicas and three sentinels.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use leasehold_api::{BackendError, ClockId, LockClient, MutexGuard, Outcome, bounds};
use leasehold_redis_common::{Options, RespVersion};
use leasehold_test_servers::{
    FaultProxy, RedisServer, SentinelServers, ServerAway, ServerOptions, Stopwatch, throughout,
};

use super::events;
use super::support::{
    Backend, Claim, assert_exclusive, connected_with, connection, eventually, expect_unavailable,
    refused, wait_in_line,
};

/// How long a primary is silent before the sentinels act.
const DOWN_AFTER: Duration = Duration::from_millis(500);
/// Longer than any wait of these tests.
const LONG: Duration = Duration::from_secs(60);

fn start() -> SentinelServers {
    SentinelServers::start(DOWN_AFTER)
}

/// A backend that never takes a busy machine for a silent server, which it would connect to again.
async fn patient_backend(url: &str) -> Backend {
    let limit = bounds::MAX_CALL_TIMEOUT;
    let options = Options::new().call_timeout(limit).connect_timeout(limit);
    connected_with(url, options).await
}

async fn backend(url: &str) -> Backend {
    // A busy machine may need longer than the default.
    let options = Options::new().connect_timeout(Duration::from_secs(1));
    connected_with(url, options).await
}

fn client(backend: &Backend, lease: Duration) -> LockClient {
    let client = LockClient::builder(Arc::clone(backend)).lease(lease);
    client.build().expect("good settings")
}

/// The server that answers.
async fn clock(backend: &Backend) -> Result<ClockId, BackendError> {
    backend.hello().await.map(|stamp| stamp.clock)
}

async fn lock(client: &LockClient, key: &str) -> MutexGuard {
    let mutex = client.mutex(key).expect("a good key");
    let outcome = mutex.try_lock_for(LONG).await;
    match outcome.expect("no permanent error, and an answer in time") {
        Outcome::Acquired(guard) => guard,
        Outcome::Contended(contention) => panic!("{key}: {contention:?}"),
    }
}

/// Takes the lock again and again, and `rounds` times after the primary was killed. Counts the grants before.
async fn contend(
    client: LockClient,
    killed: Arc<OnceLock<Instant>>,
    before: Arc<AtomicUsize>,
    rounds: u32,
) -> Vec<Claim> {
    let (mut claims, mut after) = (Vec::new(), 0);
    while after < rounds {
        let guard = lock(&client, "contended").await;
        let from = Instant::now();
        match killed.get() {
            Some(_) => after += 1,
            None => drop(before.fetch_add(1, Ordering::Relaxed)),
        }
        let _ = tokio::time::timeout(Duration::from_millis(20), guard.lost()).await;
        // Work ends at the deadline at the latest.
        let until = Instant::now().min(from + guard.valid_for().saturating_add(from.elapsed()));
        let token = guard.fencing_token();
        claims.push(Claim { from, until, token });
        let _ = guard.release().await;
    }
    claims
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_get_in_after_the_primary_is_killed() {
    let mut servers = start();
    let old = servers.primary();
    let (killed, before) = (Arc::new(OnceLock::new()), Arc::<AtomicUsize>::default());
    let mut tasks = tokio::task::JoinSet::new();
    let url = servers.url();
    for _ in 0..8 {
        let client = client(&backend(&url).await, Duration::from_secs(2));
        let (killed, before) = (Arc::clone(&killed), Arc::clone(&before));
        tasks.spawn(contend(client, killed, before, 5));
    }
    eventually("they take turns", async || {
        before.load(Ordering::Relaxed) > 16
    })
    .await;
    servers.server_mut(old).kill();
    let at = *killed.get_or_init(Instant::now);
    let claims = tasks.join_all().await.concat();
    println!(
        "{before:?} grants before, then 5 for each client in {:?}",
        at.elapsed()
    );
    assert_exclusive(claims);
    servers.server_mut(old).start_again();
    servers.wait_until_in_sync();
}

/// Both clients take the lock in turns, each while the other one waits. By push, a turn takes some
/// milliseconds. By polls, it would take about a second.
async fn assert_hand_over_by_push(clients: &[LockClient; 2]) {
    const TURNS: u32 = 20;
    let mut guard = lock(&clients[0], "handed over").await;
    let mut took = Duration::ZERO;
    for turn in 1..=TURNS {
        let next = &clients[turn as usize % 2];
        let waiting = wait_in_line(next, "handed over", LONG).await;
        let released = Stopwatch::start();
        guard.release().await.expect("released");
        guard = waiting.await.expect("no panic").expect("a guard");
        took += released.elapsed();
    }
    assert!(took < TURNS * Duration::from_millis(300), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_and_waiter_survive_a_forced_failover() {
    const LEASE: Duration = Duration::from_secs(6);
    events::record();
    let servers = start();
    let first = backend(&servers.url()).await;
    let resp2 = Options::new().resp(RespVersion::Resp2);
    let second = connected_with(&servers.url(), resp2).await;
    let clients = [client(&first, LEASE), client(&second, LEASE)];
    let held = lock(&clients[0], "held").await;
    let waiter = clients[1].mutex("held").expect("a good key");
    let waiting = tokio::spawn(async move { waiter.try_lock_for(LONG).await });
    eventually("it waits", async || {
        let seen = clients[0].inspect("held").await.expect("an answer");
        seen.waiters().len() == 1
    })
    .await;
    let (before, old) = (clock(&first).await.expect("an answer"), servers.primary());
    servers.wait_until_in_sync();
    let new = servers.fail_over();
    // Both sessions listen on the new primary, while the old one still runs as a primary.
    eventually("both listen there", async || {
        let listed = servers.server(new).run(&["PUBSUB", "CHANNELS"]);
        listed.matches("leasehold:").count() >= 2
    })
    .await;
    let info = servers.server(old).run(&["INFO", "replication"]);
    assert!(info.contains("role:master"), "{info}");
    // Renewals go to the new primary: the lease from before the failover is over.
    let second = Duration::from_secs(1);
    throughout(LEASE + second, "the lock is held", async || {
        held.is_valid() && !waiting.is_finished()
    })
    .await;
    assert_ne!(clock(&first).await.expect("an answer"), before);
    let token = held.fencing_token();
    held.release().await.expect("released");
    let next = waiting.await.expect("no panic").expect("an answer");
    let next = next.into_guard().expect("acquired");
    assert!(next.fencing_token() > token);
    assert_hand_over_by_push(&clients).await;
    let addresses = [old, new].map(|number| servers.server(number).address().to_string());
    // One event for each backend, not for each connection.
    let from_old = format!("from={} ", addresses[0]);
    let expected = format!("WARN primary changed {from_old}to={}", addresses[1]);
    let changes = events::lines("WARN primary changed", &from_old);
    assert_eq!(changes, [expected.as_str(); 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_primary_that_comes_back_is_left() {
    const LEASE: Duration = Duration::from_secs(8);
    let servers = start();
    let all = [backend(&servers.url()).await, backend(&servers.url()).await];
    let held = lock(&client(&all[0], LEASE), "held").await;
    let old = servers.primary();
    servers.wait_until_in_sync();
    servers.server(old).pause();
    servers.wait_for_another_primary(old);
    let clients = all.each_ref().map(|backend| client(backend, LEASE));
    for client in &clients {
        drop(lock(client, "other").await);
    }
    let new = clock(&all[0]).await.expect("an answer");
    servers.server(old).resume();
    throughout(LEASE, "the lock is held at the new primary", async || {
        for backend in &all {
            // A busy machine may take longer than a call.
            if let Ok(now) = clock(backend).await {
                assert_eq!(now, new);
            }
        }
        held.is_valid()
    })
    .await;
    assert_hand_over_by_push(&clients).await;
}

/// The sentinels can't reach the primary, but clients can. It goes on as a primary without replicas,
/// because those follow the sentinels to another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn isolated_primary_is_left_and_refuses_scripts() {
    let options = ServerOptions::default()
        .with_config("min-replicas-to-write", ["1"])
        .with_config("min-replicas-max-lag", ["2"]);
    let plain = ServerOptions::default();
    let servers = SentinelServers::start_with(&options, &plain, DOWN_AFTER);
    let backend = backend(&servers.url()).await;
    let client = client(&backend, Duration::from_secs(2));
    drop(lock(&client, "before").await);
    let (before, old) = (clock(&backend).await.expect("an answer"), servers.primary());
    servers.isolate(old);
    servers.wait_for_another_primary(old);
    servers.wait_until_alone(old);
    eventually("it has moved", async || {
        clock(&backend).await.is_ok_and(|now| now != before)
    })
    .await;
    drop(lock(&client, "after").await);
    let old = servers.server(old);
    let mut connection = connection(&old.url()).await;
    let mut script = redis::cmd("EVAL");
    script.arg("return redis.call('SET', 'k', '1')").arg(0);
    let answer = script.query_async::<redis::Value>(&mut connection).await;
    if old.version().major < 7 {
        // These servers check the setting for single commands, not for scripts.
        answer.expect("a script that writes");
    } else {
        let refused = answer.expect_err("no replica");
        assert_eq!(refused.code(), Some("NOREPLICAS"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_sentinel_of_three_is_enough() {
    const LIMIT: Duration = bounds::MAX_CALL_TIMEOUT;
    let mut servers = start();
    let proxy = FaultProxy::start(servers.sentinel(0).address()).await;
    proxy.black_hole();
    servers.sentinel_mut(1).kill();
    let addresses = [
        proxy.address(),
        servers.sentinel(1).address(),
        servers.sentinel(2).address(),
    ];
    let url = SentinelServers::url_of("redis-sentinel", addresses);
    let began = Stopwatch::start();
    let backend = patient_backend(&url).await;
    // The silent sentinel has half of the time to answer, and nobody waits for it.
    assert!(began.elapsed() < LIMIT / 2, "{:?}", began.elapsed());
    let client = client(&backend, Duration::from_secs(5));
    drop(lock(&client, "one").await);
    servers.sentinel_mut(2).kill();
    drop(lock(&client, "none").await);
    servers.server(0).run(&["CLIENT", "KILL", "TYPE", "normal"]);
    let mut shown = String::new();
    // The first calls may still find the killed connection.
    eventually("the error names the sentinels", async || {
        let gone = clock(&backend).await.expect_err("no sentinel");
        assert!(matches!(gone, BackendError::Unavailable { .. }), "{gone}");
        shown = gone.to_string();
        shown.contains("sentinel ")
    })
    .await;
    for address in addresses {
        assert!(shown.contains(&format!("sentinel {address}: ")), "{shown}");
    }
    servers.sentinel_mut(2).start_again();
    drop(lock(&client, "one again").await);
}

/// Proxies in front of the sentinels, and the URL of the proxies.
async fn proxies(servers: &SentinelServers) -> ([FaultProxy; 3], String) {
    let start = |number| FaultProxy::start(servers.sentinel(number).address());
    let proxies = [start(0).await, start(1).await, start(2).await];
    let addresses = proxies.each_ref().map(FaultProxy::address);
    (
        proxies,
        SentinelServers::url_of("redis-sentinel", addresses),
    )
}

/// The sentinels name proxies in front of two primaries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn most_of_the_sentinels_decide() {
    let mut servers = SentinelServers::start(LONG);
    let stranger = RedisServer::start();
    let (proxies, url) = proxies(&servers).await;
    let front = FaultProxy::start(servers.server(0).address()).await;
    let false_front = FaultProxy::start(stranger.address()).await;
    let port_of = |address: SocketAddr| &*address.port().to_string().leak();
    let named = port_of(servers.server(0).address());
    let [port, false_port] = [&front, &false_front].map(|it| port_of(it.address()));
    let mut clocks = Vec::new();
    for url in [servers.server(0).url(), stranger.url()] {
        clocks.push(clock(&backend(&url).await).await.expect("an answer"));
    }
    let (primary, other) = (clocks[0], clocks[1]);
    // The first sentinel is wrong, and its server is faster. All sentinels answer before that.
    proxies[0].rename_in_replies(named, false_port);
    proxies[1].rename_in_replies(named, port);
    proxies[2].rename_in_replies(named, port);
    front.delay(Duration::from_millis(200));
    false_front.delay(Duration::from_millis(100));
    let backend = patient_backend(&url).await;
    assert_eq!(clock(&backend).await.expect("an answer"), primary);
    front.heal();
    false_front.heal();
    let stays = async |expected| {
        throughout(Duration::from_secs(2), "it stays", async || {
            clock(&backend).await.expect("an answer") == expected
        })
        .await;
    };
    let moves_to = async |expected| {
        let moved = async || clock(&backend).await.is_ok_and(|now| now == expected);
        eventually("it has moved", moved).await;
        stays(expected).await;
    };
    stays(primary).await;
    proxies[1].rename_in_replies(named, false_port);
    moves_to(other).await;
    proxies[0].rename_in_replies(named, port);
    moves_to(primary).await;
    // A tie changes nothing.
    proxies[1].rename_in_replies(named, port);
    proxies[0].rename_in_replies(named, false_port);
    servers.sentinel_mut(2).kill();
    stays(primary).await;
}

/// One sentinel is wrong, and answers before the others do. Then the server that they name is silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_wrong_sentinel_moves_nobody() {
    let servers = SentinelServers::start(LONG);
    let stranger = RedisServer::start();
    let (proxies, url) = proxies(&servers).await;
    let front = FaultProxy::start(servers.server(0).address()).await;
    let port_of = |address: SocketAddr| &*address.port().to_string().leak();
    let named = port_of(servers.server(0).address());
    for proxy in &proxies {
        proxy.rename_in_replies(named, port_of(front.address()));
    }
    let backend = backend(&url).await;
    let primary = clock(&backend).await.expect("an answer");
    proxies[0].rename_in_replies(named, port_of(stranger.address()));
    let stays = async |what: &str| {
        let mut answered = 0;
        throughout(Duration::from_secs(3), what, async || {
            let now = clock(&backend).await.ok();
            answered += u32::from(now.is_some());
            now.is_none_or(|now| now == primary)
        })
        .await;
        answered
    };
    // Less than the time that a sentinel has.
    proxies[1].delay(Duration::from_millis(150));
    proxies[2].delay(Duration::from_millis(150));
    front.cut_connections();
    assert!(stays("slow").await > 0);
    front.black_hole();
    front.cut_connections();
    stays("silent").await;
    front.heal();
    assert!(stays("healed").await > 0);
}

/// The network has forgotten the connections to the sentinels.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_to_sentinels_are_replaced() {
    let servers = SentinelServers::start(LONG);
    let (proxies, url) = proxies(&servers).await;
    let backend = backend(&url).await;
    proxies.iter().for_each(FaultProxy::strand_connections);
    servers.server(0).run(&["CLIENT", "KILL", "TYPE", "normal"]);
    eventually("it is connected again", async || {
        clock(&backend).await.is_ok()
    })
    .await;
}

/// The connections for commands, renewals and messages ask the sentinels over the same connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_has_one_connection_to_each_sentinel() {
    let servers = SentinelServers::start(LONG);
    let counts = || {
        let sentinels = (0..3).map(|number| servers.sentinel(number));
        let all = sentinels.chain([servers.server(0)]);
        // Without the connection of each question.
        all.map(|it| it.accepted_connections() - 1)
            .collect::<Vec<_>>()
    };
    let before = counts();
    let backend = patient_backend(&servers.url()).await;
    let locks = client(&backend, LONG);
    let held = lock(&locks, "held").await;
    held.renew().await.expect("renewed");
    let waiting = wait_in_line(&locks, "held", LONG).await;
    let mut asked = 0;
    eventually("the waiter listens", async || {
        asked += 1;
        let listed = servers.server(0).run(&["PUBSUB", "CHANNELS"]);
        listed.contains("leasehold:")
    })
    .await;
    waiting.abort();
    assert!(held.is_valid(), "{:?}", held.loss_reason());
    let after = counts();
    let opened = after
        .iter()
        .zip(&before)
        .map(|(after, before)| after - before - 1);
    assert_eq!(opened.collect::<Vec<_>>(), [1, 1, 1, 3 + asked]);
}

/// The sentinels notice only later that the server has become a replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_is_never_used() {
    let servers = SentinelServers::start(LONG);
    let (primary, replica) = (servers.server(0), servers.server(1));
    let port = replica.port().to_string();
    primary.run(&["REPLICAOF", "127.0.0.1", &port]);
    let options = Options::new().initial_connect_timeout(Duration::from_secs(5));
    let (error, _) = refused(&servers.url(), options).await;
    let named = format!("primary {}, named by a sentinel", primary.address());
    expect_unavailable(&error, &format!("{named}: the server is a replica"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permanent_errors_say_what_to_check_at_once() {
    // The documented rights. More would let the user change what the sentinels do.
    let watcher = [
        "watcher",
        "on",
        ">secret",
        "-@all",
        "+@connection",
        "+info",
        "+sentinel|get-master-addr-by-name",
    ];
    let sentinels = ServerOptions::default().with_config("user", watcher);
    let plain = ServerOptions::default();
    let servers = SentinelServers::start_with(&plain, &sentinels, DOWN_AFTER);
    let url = servers.url();
    let login = |password| format!("{url}&sentinelUsername=watcher&sentinelPassword={password}");
    let sentinel = servers.sentinel(0).address();
    let server = [servers.server(0).address()];
    let cases = [
        (
            url.replace("mymaster", "other"),
            "it knows no service \"other\"; check sentinelServiceName",
        ),
        (
            login("hunter2"),
            "check sentinelUsername and sentinelPassword",
        ),
        (
            url.replace("://", "://me:hunter2@"),
            "the password is wrong",
        ),
        (
            format!("redis://{sentinel}"),
            "the server is a sentinel; write redis-sentinel://",
        ),
        (
            SentinelServers::url_of("redis-sentinel", server),
            "it is not a sentinel; write redis://",
        ),
    ];
    for (url, check) in cases {
        let options = Options::new().initial_connect_timeout(LONG);
        let (error, took) = refused(&url, options).await;
        let is_rejected = matches!(error, BackendError::Rejected { .. });
        assert!(is_rejected, "{url}: {error}");
        let text = format!("{error} {error:?}");
        assert!(error.to_string().contains(check), "{url}: {text}");
        assert!(!text.contains("hunter2"), "{url}: {text}");
        assert!(took < LONG / 4, "{url}: {took:?}");
    }
    backend(&login("secret"))
        .await
        .hello()
        .await
        .expect("the right password works");
}

/// The primary goes away while many calls wait, and nobody takes its place. Its replicas and the sentinels try to connect
/// too, some times a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_to_connect_to_the_primary_do_not_grow_with_waiting_calls() {
    let mut servers = SentinelServers::start(LONG);
    let locks = LockClient::new(backend(&servers.url()).await);
    let primary = servers.primary();
    let address = servers.server(primary).address();
    servers.server_mut(primary).kill();
    let away = ServerAway::listen(address);
    let mut waiting = tokio::task::JoinSet::new();
    for number in 0..50 {
        let mutex = locks.mutex(format!("{number}")).expect("a good key");
        waiting.spawn(async move { mutex.lock().await.map(drop) });
    }
    let are_few = async || away.connections() <= 150;
    throughout(Duration::from_secs(5), "attempts are few", are_few).await;
    drop(away);
    servers.server_mut(primary).start_again();
    while let Some(done) = waiting.join_next().await {
        done.expect("no panic").expect("a lock");
    }
}

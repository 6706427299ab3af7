//! A server that reads a long append-only file after a restart. It answers, but serves no locks yet, and doesn't tell
//! its settings as they will be.

use std::time::Duration;

use leasehold_api::{Error, LockClient, MutexGuard};
use leasehold_redis_common::{Options, ServerChecks};
use leasehold_test_servers::{RedisServer, ServerOptions, Stopwatch, throughout};
use tokio::task::{JoinHandle, block_in_place};

use super::connecting::LONG;
use super::events;
use super::support::{Waiting, client, connected_with, eventually, hold, wait_in_line};
use crate::constructors::CONSTRUCTORS;

/// The keys that make the file long.
const FILL: &str = "for i = 1, 20000 do redis.call('SET', 'x' .. i, i) end";
/// How long the server takes to read each of them, until it is told to hurry: a busy machine is in time.
const LOAD_MICROS: u32 = 1_000;
/// How long it loads at least.
const LOADS_FOR: Duration = Duration::from_secs(2);
/// The locks that each client releases while the server loads.
const RELEASED: usize = 20;
/// How soon after the load these locks are free.
const FREE_WITHIN: Duration = Duration::from_secs(3);
const LEASE: Duration = Duration::from_secs(60);

/// What a client has before a restart.
struct Before {
    kept: MutexGuard,
    waiting: Waiting,
    released: Vec<MutexGuard>,
}

impl Before {
    async fn new(locks: &LockClient, name: &str) -> Self {
        let key = format!("{name}: kept");
        let kept = hold(locks, &key, LEASE).await;
        kept.renew().await.expect("renewed");
        let waiting = wait_in_line(locks, &key, LEASE).await;
        let mut released = Vec::new();
        for key in keys(name) {
            released.push(hold(locks, &key, LEASE).await);
        }
        Self {
            kept,
            waiting,
            released,
        }
    }

    /// Releases half of the locks, and drops the others.
    fn release(&mut self) -> Vec<JoinHandle<Result<(), Error>>> {
        self.released.truncate(RELEASED / 2);
        let releasing = self.released.drain(..);
        let releasing = releasing.map(|it| tokio::spawn(async move { it.release().await }));
        releasing.collect()
    }

    /// The guard is still valid, and hands the lock over to the waiter.
    async fn go_on(self) {
        // The first call may still meet the connection of before.
        eventually("renewed", async || match self.kept.renew().await {
            Ok(_) => true,
            Err(error) => {
                assert!(error.is_transient(), "{error}");
                false
            }
        })
        .await;
        self.kept.release().await.expect("released");
        let next = self.waiting.await.expect("no panic");
        next.expect("acquired").release().await.expect("released");
    }
}

fn keys(name: &str) -> impl Iterator<Item = String> {
    (0..RELEASED).map(move |number| format!("{name}: {number}"))
}

fn options(checks: ServerChecks) -> Options {
    let options = Options::new().initial_connect_timeout(LONG);
    options.server_checks(checks)
}

async fn are_free(locks: &LockClient, name: &str) -> bool {
    for key in keys(name) {
        let state = locks.inspect(&*key).await.expect("an answer");
        if state.holder_count() > 0 {
            return false;
        }
    }
    true
}

/// The number of restarts, from the variable `LEASEHOLD_RESTARTS`.
fn restarts() -> usize {
    let count = std::env::var("LEASEHOLD_RESTARTS");
    count.map_or(1, |count| count.parse().expect("a number"))
}

/// No call fails for good, whatever is done about the server's settings, and none of them is judged meanwhile. What
/// is released while the server loads is free soon after.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_loads_its_data_is_waited_for() {
    events::record();
    let careful = ServerOptions::default().with_append_only();
    let mut server = careful.with_slow_load(LOAD_MICROS).start();
    server.run(&["EVAL", FILL, "0"]);
    let mut clients = Vec::new();
    for checks in [ServerChecks::Reject, ServerChecks::Warn] {
        for constructor in CONSTRUCTORS.iter().filter(|it| it.reconnects) {
            let backend = constructor.open_with(&server.url(), options(checks)).await;
            let name = format!("{} {checks:?}", constructor.name);
            clients.push((name, LockClient::new(backend)));
        }
    }
    for round in 0..restarts() {
        restart(&mut server, &clients, round).await;
    }
    let address = server.address().to_string();
    let warnings = events::lines("WARN server setting", &address);
    assert!(warnings.is_empty(), "{warnings:?}");
}

async fn restart(server: &mut RedisServer, clients: &[(String, LockClient)], round: usize) {
    let name = |client: &str| format!("{client} {round}");
    let mut before = Vec::new();
    for (client, locks) in clients {
        before.push(Before::new(locks, &name(client)).await);
    }
    block_in_place(|| {
        server.kill();
        server.start_loading();
    });
    let (url, connecting) = (server.url(), [ServerChecks::Reject, ServerChecks::Warn]);
    let connecting = connecting.map(|checks| {
        let url = url.clone();
        tokio::spawn(async move { connected_with(&url, options(checks)).await })
    });
    let releasing: Vec<_> = before.iter_mut().flat_map(Before::release).collect();
    throughout(LOADS_FOR, "it loads", async || !server.is_ready()).await;
    server.run(&["CONFIG", "SET", "key-load-delay", "0"]);
    eventually("it has loaded", async || server.is_ready()).await;
    let loaded = Stopwatch::start();
    let observer = client(&url).await;
    eventually("all are free", async || {
        for (client, _) in clients {
            if !are_free(&observer, &name(client)).await {
                return false;
            }
        }
        true
    })
    .await;
    let took = loaded.elapsed();
    println!("restart {round}: all free after {took:?}");
    assert!(took < FREE_WITHIN, "free after {took:?}");
    for released in releasing {
        let released = released.await.expect("no panic");
        assert!(!released.is_err_and(|it| !it.is_transient()));
    }
    for client in before {
        client.go_on().await;
    }
    for connecting in connecting {
        let connected = connecting.await.expect("it has waited");
        connected.hello().await.expect("an answer");
    }
}

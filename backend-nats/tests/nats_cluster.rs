//! Three NATS servers whose leader changes while clients lock.

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_api::{FencingToken, LockClient, MutexGuard};
use leasehold_nats::NatsBackend;
use leasehold_test_servers::{NatsServers, eventually};
use serde_json::{Value, json};
use support::ask;

const LEASE: Duration = Duration::from_secs(2);
const CLIENTS: usize = 3;

/// What all tasks see.
#[derive(Default)]
struct Seen {
    /// The holder, until it begins to release.
    holder: Mutex<Option<Arc<MutexGuard>>>,
    last: Mutex<Option<FencingToken>>,
    entered: AtomicU64,
    is_over: AtomicBool,
}

impl Seen {
    /// Checks that no guard is valid while another one is, and that tokens grow.
    fn enter(&self, guard: &Arc<MutexGuard>) {
        let mut holder = self.holder.lock().expect("no panic");
        let mut last = self.last.lock().expect("no panic");
        if guard.is_valid() {
            let before = holder.replace(Arc::clone(guard));
            let both = before.is_some_and(|before| before.is_valid());
            assert!(!both, "two holders");
            let token = guard.fencing_token();
            assert!(last.is_none_or(|last| last < token), "{last:?}, {token:?}");
            *last = Some(token);
            self.entered.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn leave(&self, guard: &Arc<MutexGuard>) {
        let mut holder = self.holder.lock().expect("no panic");
        if holder
            .as_ref()
            .is_some_and(|other| Arc::ptr_eq(other, guard))
        {
            *holder = None;
        }
    }
}

async fn use_lock(locks: LockClient, seen: Arc<Seen>) {
    let mutex = locks.mutex("k").expect("a key").lease(LEASE);
    while !seen.is_over.load(Ordering::SeqCst) {
        let outcome = mutex.try_lock_for(Duration::from_secs(20)).await;
        let Some(guard) = outcome.ok().and_then(|outcome| outcome.into_guard()) else {
            continue;
        };
        let guard = Arc::new(guard);
        seen.enter(&guard);
        tokio::time::sleep(Duration::from_millis(5)).await;
        seen.leave(&guard);
        let guard = Arc::into_inner(guard).expect("nobody else has it");
        // It may be lost.
        let _ = guard.release().await;
    }
}

/// The number of the server that leads the bucket.
async fn leader(servers: &NatsServers) -> Option<usize> {
    let info = ask(
        &servers.url(),
        "$JS.API.STREAM.INFO.KV_leasehold",
        &json!({}),
    )
    .await?;
    info["cluster"]["leader"]
        .as_str()?
        .strip_prefix('n')?
        .parse()
        .ok()
}

/// Waits until the bucket has a leader, and all replicas are up to date.
async fn settled(servers: &NatsServers) -> usize {
    let mut number = None;
    eventually("a leader with replicas that are up to date", async || {
        let info = ask(
            &servers.url(),
            "$JS.API.STREAM.INFO.KV_leasehold",
            &json!({}),
        )
        .await;
        let replicas = info
            .as_ref()
            .and_then(|info| info["cluster"]["replicas"].as_array());
        let current = replicas
            .into_iter()
            .flatten()
            .filter(|replica| replica["current"] == true);
        let is_settled = current.count() == 2;
        number = leader(servers).await.filter(|_| is_settled);
        number.is_some()
    })
    .await;
    number.expect("a leader")
}

/// Waits until the lock has changed hands often, from now on.
async fn served(seen: &Seen, what: &str) {
    let before = seen.entered.load(Ordering::SeqCst);
    let often = async || seen.entered.load(Ordering::SeqCst) > before + 20;
    eventually(what, often).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_the_leader_lose_no_lock() {
    let mut servers = NatsServers::start_cluster();
    let mut clients = Vec::new();
    eventually("the cluster takes clients", async || {
        let connected = NatsBackend::connect(&servers.url()).await;
        clients.extend(connected.ok().map(LockClient::new));
        clients.len() == CLIENTS
    })
    .await;
    let config = ask(
        &servers.url(),
        "$JS.API.STREAM.INFO.KV_leasehold",
        &json!({}),
    )
    .await;
    assert_eq!(config.expect("an answer")["config"]["num_replicas"], 3);
    let long = clients[0]
        .mutex("long")
        .expect("a key")
        .lease(Duration::from_secs(120));
    let long = long.lock().await.expect("free");
    let seen = Arc::new(Seen::default());
    let tasks = clients
        .iter()
        .flat_map(|locks| [locks.clone(), locks.clone()]);
    let tasks: Vec<_> = tasks
        .map(|locks| tokio::spawn(use_lock(locks, Arc::clone(&seen))))
        .collect();
    served(&seen, "the lock changes hands").await;
    for _ in 0..3 {
        settled(&servers).await;
        eventually("the leader steps down", async || {
            let subject = "$JS.API.STREAM.LEADER.STEPDOWN.KV_leasehold";
            let answer = ask(&servers.url(), subject, &Value::Null).await;
            answer.is_some_and(|answer| answer["success"] == true)
        })
        .await;
        served(&seen, "served after a leader stepped down").await;
    }
    let killed = settled(&servers).await;
    servers.kill(killed);
    served(&seen, "served after a leader was killed").await;
    servers.restart(killed);
    // It wakes up as a leader that was deposed.
    let stopped = settled(&servers).await;
    servers.pause(stopped, true);
    served(&seen, "served while the leader is stopped").await;
    servers.pause(stopped, false);
    settled(&servers).await;
    served(&seen, "served after all").await;
    seen.is_over.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.expect("no violation");
    }
    let others = clients[1].mutex("long").expect("a key");
    eventually("another client learns that it is held", async || {
        let outcome = others.try_lock().await;
        outcome.is_ok_and(|outcome| {
            assert!(!outcome.is_acquired(), "two holders");
            true
        })
    })
    .await;
    assert!(long.is_valid());
    let released = async || long.release().await.is_ok();
    eventually("it is still held, and released", released).await;
    println!("{} holders", seen.entered.load(Ordering::SeqCst));
}

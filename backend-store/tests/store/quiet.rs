//! A store that can't notify anybody, and clients that can't listen to one that can.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_api::{LockBackend, LockClient};
use tokio::time::Instant;

use crate::support::Server;

const LATENCY: Duration = Duration::from_millis(1);

fn quiet(poll_interval: Duration) -> Arc<Server> {
    let server = Server::new(1, LATENCY);
    server.be_quiet(poll_interval);
    server
}

fn client(server: &Arc<Server>) -> LockClient {
    let backend = server.client();
    assert!(!backend.capabilities().push);
    LockClient::new(backend)
}

/// Takes and releases the lock for 10 s. Returns how often.
async fn use_lock(locks: LockClient) -> u32 {
    let (mutex, mut acquired) = (locks.mutex("k").expect("valid"), 0);
    let ends = Instant::now() + Duration::from_secs(10);
    while Instant::now() < ends {
        let guard = mutex.lock().await.expect("a lock");
        guard.release().await.expect("released");
        acquired += 1;
    }
    acquired
}

/// The time from a release to the grant of a waiter in another process.
async fn hand_over(poll_interval: Duration) -> Duration {
    let server = quiet(poll_interval);
    let (one, two) = (client(&server), client(&server));
    let guard = one.mutex("k").expect("valid").lock().await.expect("a lock");
    let waits = tokio::spawn(async move {
        let guard = two.mutex("k").expect("valid").lock().await.expect("a lock");
        (guard, Instant::now())
    });
    tokio::time::sleep(Duration::from_millis(2_300)).await;
    let released = Instant::now();
    guard.release().await.expect("released");
    let (_guard, granted) = waits.await.expect("no panic");
    granted - released
}

#[tokio::test(start_paused = true)]
async fn store_sets_the_poll_interval_between_processes() {
    let (usual, short) = (Duration::from_secs(1), Duration::from_millis(100));
    let took = hand_over(usual).await;
    assert!(took > short * 2 && took < usual * 2, "{took:?}");
    let took = hand_over(short).await;
    assert!(took < short + POLL_SPREAD, "{took:?}");
}

/// A poll is up to 20 ms late, and takes some ms.
const POLL_SPREAD: Duration = Duration::from_millis(30);

/// How often all processes together get the lock in a second. Each has eight tasks that take it again and again.
async fn throughput(processes: u32, poll_interval: Duration) -> u32 {
    let server = quiet(poll_interval);
    let tasks = (0..processes).flat_map(|_| {
        let locks = client(&server);
        (0..8).map(move |_| tokio::spawn(use_lock(locks.clone())))
    });
    let tasks: Vec<_> = tasks.collect();
    let acquired = join_all(tasks).await;
    let acquired: u32 = acquired.into_iter().map(|it| it.expect("no panic")).sum();
    acquired / 10
}

/// The figures of docs/backend-author.md. Between processes, fairness costs: the lock goes to the waiter that came
/// first, in whatever process.
#[tokio::test(start_paused = true)]
async fn throughput_of_a_contended_key() {
    for poll_interval in [1_000, 100].map(Duration::from_millis) {
        let one = throughput(1, poll_interval).await;
        let two = throughput(2, poll_interval).await;
        println!("{poll_interval:?}: one process {one}/s, two processes {two}/s");
        assert!(one > 200, "the tasks of one process don't poll: {one}");
        assert!(two > 10, "{two}");
    }
}

/// Others would find nobody that listens there, and pass over its waiter.
#[tokio::test(start_paused = true)]
async fn waiter_that_cannot_listen_keeps_its_place() {
    let server = Server::new(1, LATENCY);
    server.compare_reach();
    let hearing = || LockClient::new(server.client());
    let (holder, third) = (hearing(), hearing());
    let backend = server.deaf_client();
    assert!(!backend.capabilities().push && !backend.capabilities().reachability);
    let second = LockClient::new(backend);
    let guard = holder.mutex("k").expect("valid").lock().await;
    let waits = |locks: &LockClient| {
        let mutex = locks.mutex("k").expect("valid");
        tokio::spawn(async move {
            let guard = mutex.lock().await.expect("a lock");
            tokio::time::sleep(Duration::from_millis(100)).await;
            guard.release().await.expect("released");
            Instant::now()
        })
    };
    let mut waiting = Vec::new();
    for locks in [&second, &third] {
        waiting.push(waits(locks));
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    guard.expect("a lock").release().await.expect("released");
    let ended = join_all(waiting).await;
    let ended: Vec<_> = ended.into_iter().map(|it| it.expect("no panic")).collect();
    assert!(ended[0] < ended[1], "the order is kept");
}

/// Its own releases reach it without a poll.
#[tokio::test(start_paused = true)]
async fn tasks_of_a_client_that_cannot_listen_pass_the_lock_on() {
    let server = Server::new(1, LATENCY);
    server.compare_reach();
    let locks = LockClient::new(server.deaf_client());
    let tasks = (0..8).map(|_| tokio::spawn(use_lock(locks.clone())));
    let acquired = join_all(tasks).await;
    let acquired: u32 = acquired.into_iter().map(|it| it.expect("no panic")).sum();
    assert!(acquired > 2_000, "they poll only once a second: {acquired}");
}

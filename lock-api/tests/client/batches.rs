//! Batched acquires and releases: concurrent calls share a batch, and no call waits for others.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use leasehold_api::bounds::MAX_BATCHED_CALLERS;
use leasehold_api::{Key, LockClient, MutexGuard};
use leasehold_sim::{SimBackend, SimServer};

use crate::support::{client, contended, held, ms, server};
use crate::wrapped::Wrapped;

type Sizes = Arc<Mutex<Vec<usize>>>;

/// A client, the batch sizes of its acquires and of its releases, and its network.
///
/// It has read the server's time once, so that later calls don't wait for it.
async fn recorded(server: &SimServer) -> (LockClient, Sizes, Sizes, SimBackend) {
    let network = server.client("many tasks");
    let backend = Wrapped::new(network.clone());
    let (acquires, releases) = (Arc::clone(&backend.batches), Arc::clone(&backend.releases));
    let locks = LockClient::new(backend);
    release_all(&lock_all(&locks, 1).await).await;
    drop((taken(&acquires), taken(&releases)));
    (locks, acquires, releases, network)
}

fn taken(sizes: &Sizes) -> Vec<usize> {
    std::mem::take(&mut *sizes.lock().expect("no panic"))
}

async fn lock_all(locks: &LockClient, count: usize) -> Vec<MutexGuard> {
    let lock = async |n| {
        let mutex = locks.mutex(format!("k{n}")).expect("valid");
        mutex.lock().await.expect("free")
    };
    join_all((0..count).map(lock)).await
}

async fn release_all(guards: &[MutexGuard]) {
    for release in join_all(guards.iter().map(MutexGuard::release)).await {
        release.expect("acknowledged");
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_calls_share_a_batch_after_the_first_two() {
    let server = server();
    let (a, acquires, releases, _) = recorded(&server).await;
    let guards = lock_all(&a, MAX_BATCHED_CALLERS + 11).await;
    assert_eq!(taken(&acquires), [1, 1, MAX_BATCHED_CALLERS, 9]);
    release_all(&guards).await;
    assert_eq!(taken(&releases), [1, 1, MAX_BATCHED_CALLERS, 9]);
}

#[tokio::test(start_paused = true)]
async fn batching_costs_no_round_trip() {
    let time_of = async |count: usize, batches: bool| {
        let server = server();
        let mut backend = Wrapped::new(server.client("a"));
        backend.capabilities.batches = batches;
        let a = LockClient::new(backend);
        release_all(&lock_all(&a, 1).await).await;
        let before = server.elapsed();
        release_all(&lock_all(&a, count).await).await;
        server.elapsed() - before
    };
    for count in [1, 2, 3, 30] {
        let (batched, single) = (time_of(count, true).await, time_of(count, false).await);
        assert!(batched <= single, "{count} callers");
    }
}

#[tokio::test(start_paused = true)]
async fn call_dropped_before_the_send_is_not_sent() {
    let server = server();
    let (a, acquires, _, _) = recorded(&server).await;
    let mutex = |name| a.mutex(name).expect("valid");
    let (second, third) = (mutex("second"), mutex("third"));
    let mut before = Box::pin(lock_all(&a, 2));
    assert!(before.as_mut().now_or_never().is_none());
    let mut kept = Box::pin(second.lock());
    assert!(kept.as_mut().now_or_never().is_none());
    let dropped = third.lock().now_or_never();
    assert!(dropped.is_none(), "the future is dropped here");
    let guards = (before.await, kept.await);
    let sent = taken(&acquires);
    assert_eq!(sent, [1; 3], "the dropped call is not sent");
    drop(held(third.try_lock().await));
    drop(guards);
}

#[tokio::test(start_paused = true)]
async fn call_dropped_after_the_send_leaves_nothing() {
    let server = server();
    let (a, acquires, _, _) = recorded(&server).await;
    let (b, _) = client(&server, "b");
    let mutex = |name| a.mutex(name).expect("valid");
    let (second, third) = (mutex("second"), mutex("third"));
    let mut before = Box::pin(lock_all(&a, 2));
    assert!(before.as_mut().now_or_never().is_none());
    let (mut kept, mut dropped) = (Box::pin(second.lock()), Box::pin(third.lock()));
    assert!(kept.as_mut().now_or_never().is_none());
    assert!(dropped.as_mut().now_or_never().is_none());
    for _ in 0..5 {
        tokio::task::yield_now().await;
    }
    assert_eq!(taken(&acquires), [1, 1, 2], "both calls were sent");
    drop(dropped);
    let guards = (before.await, kept.await.expect("free"));
    assert!(guards.1.is_valid());
    contended(&b.mutex("second").expect("valid").try_lock().await);
    server.advance(ms(100)).await;
    drop(held(b.mutex("third").expect("valid").try_lock().await));
}

#[tokio::test(start_paused = true)]
async fn callers_retry_after_a_failed_batch() {
    let server = server();
    let (a, acquires, _, network) = recorded(&server).await;
    network.isolate();
    let locking = tokio::spawn({
        let a = a.clone();
        async move { lock_all(&a, 20).await }
    });
    server.advance(Duration::from_secs(3)).await;
    let sent = taken(&acquires);
    let batched = sent.iter().any(|size| *size > 1);
    assert!(batched, "{sent:?}");
    network.rejoin();
    let guards = locking.await.expect("no panic");
    assert!(guards.iter().all(MutexGuard::is_valid));
    release_all(&guards).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_capability_calls_are_sent_separately() {
    let server = server();
    let mut backend = Wrapped::new(server.client("a"));
    backend.capabilities.batches = false;
    let (batches, releases) = (Arc::clone(&backend.batches), Arc::clone(&backend.releases));
    let a = LockClient::new(backend);
    release_all(&lock_all(&a, 10).await).await;
    assert_eq!(taken(&batches), [1; 10]);
    assert_eq!(taken(&releases), [1; 10]);
}

/// A client of a backend where each key may be on another server, and the server of `k0` doesn't answer
/// polls, renewals and releases.
fn with_a_silent_key(server: &SimServer) -> (LockClient, SimBackend) {
    let network = server.client("a");
    let mut backend = Wrapped::new(network.clone());
    backend.capabilities.batches = false;
    backend.silent = Some(Key::new("k0").expect("valid"));
    (LockClient::new(backend), network)
}

#[tokio::test(start_paused = true)]
async fn without_the_capability_a_silent_key_costs_no_other_lock() {
    let server = server();
    let ((a, network), (b, _)) = (with_a_silent_key(&server), client(&server, "b"));
    let theirs = b.mutex("w").expect("valid").lock().await.expect("free");
    let mutex = a.mutex("w").expect("valid");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    server.advance(ms(100)).await;
    let lock = async |n: usize| {
        let mutex = a.mutex(format!("k{n}")).expect("valid").lease(ms(1_000));
        mutex.lock().await.expect("free")
    };
    let guards = join_all((0..4).map(lock)).await;
    // When it listens again, the client renews all its locks at once.
    for _ in 0..40 {
        network.drop_connection();
        server.advance(ms(100)).await;
    }
    let valid: Vec<bool> = guards.iter().map(MutexGuard::is_valid).collect();
    assert_eq!(valid, [false, true, true, true]);
    assert!(!waiting.is_finished(), "it listens");
    drop(theirs);
}

#[tokio::test(start_paused = true)]
async fn without_the_capability_a_silent_key_delays_no_other_waiter() {
    let server = server();
    let ((a, network), (b, _)) = (with_a_silent_key(&server), client(&server, "b"));
    let theirs = lock_all(&b, 4).await;
    let wait = async |n: usize| {
        let mutex = a.mutex(format!("k{n}")).expect("valid");
        mutex.try_lock_for(ms(5_000)).await
    };
    let release = async {
        server.advance(ms(100)).await;
        server.refuse_publish();
        release_all(&theirs).await;
        // All waiters poll at once.
        network.drop_connection();
    };
    let (silent, others, ()) = tokio::join!(wait(0), join_all((1..4).map(wait)), release);
    assert!(silent.is_err(), "its last call had no answer");
    let guards: Vec<_> = others.into_iter().map(held).collect();
    drop(guards);
}

#[tokio::test(start_paused = true)]
async fn without_the_capability_a_silent_key_delays_no_other_release() {
    let server = server();
    let ((a, _), (b, _)) = (with_a_silent_key(&server), client(&server, "b"));
    let reader = a.rw_lock("k0").expect("valid");
    let readers = join_all((0..20).map(|_| reader.read())).await;
    let all = a.lock_all(["k1", "k2"]).await.expect("free");
    let others = [lock_one(&a, "k3").await, lock_one(&a, "k4").await];
    for reader in readers {
        drop(reader.expect("shared"));
        server.advance(ms(1)).await;
    }
    drop(others);
    server.advance(ms(50)).await;
    for key in ["k3", "k4"] {
        drop(held(b.mutex(key).expect("valid").try_lock().await));
    }
    let begun = server.elapsed();
    all.release().await.expect("answered");
    assert!(server.elapsed() - begun < ms(500));
}

#[tokio::test(start_paused = true)]
async fn without_the_capability_keys_that_are_held_together_are_released_one_by_one() {
    let server = server();
    let ((a, _), (b, _)) = (with_a_silent_key(&server), client(&server, "b"));
    let all = a.lock_all(["k0", "k1"]).await.expect("free");
    let released = all.release();
    let next = async {
        server.advance(ms(50)).await;
        held(b.mutex("k1").expect("valid").try_lock().await)
    };
    let (released, _next) = tokio::join!(released, next);
    let failed = released.expect_err("k0 is silent");
    assert_eq!(failed.failed().len(), 1, "{failed:?}");
}

async fn lock_one(locks: &LockClient, key: &str) -> MutexGuard {
    locks.mutex(key).expect("valid").lock().await.expect("free")
}

//! Acquires and ends that travel together, and that nobody waits for company.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use leasehold_api::bounds::MAX_BATCHED_CALLERS;
use leasehold_api::{LockClient, MutexGuard, ReleaseOutcome};
use leasehold_sim::{SimBackend, SimServer};

use crate::support::{client, contended, held, ms, server};
use crate::wrapped::Wrapped;

type Sizes = Arc<Mutex<Vec<usize>>>;

/// A client, how many acquires and how many ends its calls carried, and its network.
fn watched(server: &SimServer) -> (LockClient, Sizes, Sizes, SimBackend) {
    let network = server.client("many tasks");
    let backend = Wrapped::new(network.clone());
    let sizes = (Arc::clone(&backend.batches), Arc::clone(&backend.ends));
    (LockClient::new(backend), sizes.0, sizes.1, network)
}

fn taken(sizes: &Sizes) -> Vec<usize> {
    std::mem::take(&mut *sizes.lock().expect("no panic"))
}

fn forget(sizes: [&Sizes; 2]) {
    for sizes in sizes {
        drop(taken(sizes));
    }
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
        assert_eq!(
            release.expect("acknowledged"),
            ReleaseOutcome::Released { holds_left: 0 }
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_ready_together_travels_together_and_the_first_two_go_at_once() {
    let server = server();
    let (a, acquires, ends, _) = watched(&server);
    // The first asks for the server's time, which nobody else waits for.
    release_all(&lock_all(&a, 1).await).await;
    forget([&acquires, &ends]);
    let guards = lock_all(&a, MAX_BATCHED_CALLERS + 11).await;
    assert_eq!(taken(&acquires), [MAX_BATCHED_CALLERS, 9]);
    release_all(&guards).await;
    assert_eq!(taken(&ends), [1, 1, MAX_BATCHED_CALLERS, 9]);
}

#[tokio::test(start_paused = true)]
async fn a_lone_caller_is_sent_by_itself_whatever_was_before() {
    let server = server();
    let (a, acquires, ends, _) = watched(&server);
    release_all(&lock_all(&a, 10).await).await;
    forget([&acquires, &ends]);
    for _ in 0..5 {
        release_all(&lock_all(&a, 1).await).await;
    }
    assert_eq!(taken(&acquires), []);
    assert_eq!(taken(&ends), [1; 5]);
}

#[tokio::test(start_paused = true)]
async fn company_costs_no_round_trip() {
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
        assert!(
            time_of(count, true).await <= time_of(count, false).await,
            "{count} callers"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_before_the_send_takes_its_call_back() {
    let server = server();
    let (a, acquires, _, _) = watched(&server);
    release_all(&lock_all(&a, 1).await).await;
    let mutex = |name| a.mutex(name).expect("valid");
    let (second, third) = (mutex("second"), mutex("third"));
    let mut before = Box::pin(lock_all(&a, 2));
    assert!(before.as_mut().now_or_never().is_none());
    let mut stays = Box::pin(second.lock());
    assert!(stays.as_mut().now_or_never().is_none());
    assert!(third.lock().now_or_never().is_none(), "it is dropped here");
    let guards = (before.await, stays.await);
    assert_eq!(taken(&acquires), [1], "only who stays is in it");
    drop(held(third.try_lock().await));
    drop(guards);
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_after_the_send_leaves_nothing() {
    let server = server();
    let (a, acquires, _, _) = watched(&server);
    let (b, _) = client(&server, "b");
    release_all(&lock_all(&a, 1).await).await;
    let mutex = |name| a.mutex(name).expect("valid");
    let (second, third) = (mutex("second"), mutex("third"));
    let mut before = Box::pin(lock_all(&a, 2));
    assert!(before.as_mut().now_or_never().is_none());
    let (mut stays, mut goes) = (Box::pin(second.lock()), Box::pin(third.lock()));
    assert!(stays.as_mut().now_or_never().is_none());
    assert!(goes.as_mut().now_or_never().is_none());
    for _ in 0..5 {
        tokio::task::yield_now().await;
    }
    assert_eq!(taken(&acquires), [2], "sent");
    drop(goes);
    let guards = (before.await, stays.await.expect("free"));
    assert!(guards.1.is_valid());
    contended(&b.mutex("second").expect("valid").try_lock().await);
    server.advance(ms(100)).await;
    drop(held(b.mutex("third").expect("valid").try_lock().await));
}

#[tokio::test(start_paused = true)]
async fn callers_outlive_a_call_that_fails() {
    let server = server();
    let (a, acquires, _, network) = watched(&server);
    release_all(&lock_all(&a, 1).await).await;
    network.isolate();
    let locking = tokio::spawn({
        let a = a.clone();
        async move { lock_all(&a, 20).await }
    });
    server.advance(Duration::from_secs(3)).await;
    assert!(!taken(&acquires).is_empty(), "tried together");
    network.rejoin();
    let guards = locking.await.expect("no panic");
    assert!(guards.iter().all(MutexGuard::is_valid));
    release_all(&guards).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_capability_each_goes_by_itself() {
    let server = server();
    let mut backend = Wrapped::new(server.client("a"));
    backend.capabilities.batches = false;
    let (batches, ends) = (Arc::clone(&backend.batches), Arc::clone(&backend.ends));
    let a = LockClient::new(backend);
    release_all(&lock_all(&a, 10).await).await;
    assert_eq!(taken(&batches), []);
    assert_eq!(taken(&ends), [1; 10]);
}

//! Polls: due polls share batches, no poll is late, and there are no unnecessary polls.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use leasehold_api::bounds::MAX_BATCH;
use leasehold_api::{Error, LockBackend as _, LockClient, Moment, MutexGuard};
use leasehold_sim::{Call, Fault, SimBackend, SimServer};
use tokio::task::JoinHandle;

use crate::support::{assert_is, clients, held, ms, secs, timed_out};
use crate::wrapped::Wrapped;

type Sent = Arc<Mutex<Vec<(Moment, usize)>>>;

/// A client, the times and sizes of its poll batches, and its network.
fn recorded(server: &SimServer, poll_after: Option<Duration>) -> (LockClient, Sent, SimBackend) {
    let network = server.client("waiter");
    let mut backend = Wrapped::new(network.clone());
    backend.poll_after = poll_after;
    let sent = Arc::clone(&backend.polls);
    (LockClient::new(backend), sent, network)
}

fn key(n: usize) -> String {
    format!("k{n}")
}

async fn hold_all(locks: &LockClient, count: usize) -> Vec<MutexGuard> {
    let mut guards = Vec::new();
    for n in 0..count {
        guards.push(held(locks.mutex(key(n)).expect("valid").try_lock().await));
    }
    guards
}

fn wait(locks: &LockClient, n: usize) -> JoinHandle<Result<MutexGuard, Error>> {
    let mutex = locks.mutex(key(n)).expect("valid");
    tokio::spawn(async move { mutex.lock().await })
}

/// Clears the list of polls.
fn clear(sent: &Sent) {
    sent.lock().expect("no panic").clear();
}

fn calls(sent: &Sent) -> Vec<(Moment, usize)> {
    sent.lock().expect("no panic").clone()
}

/// Advances time until the next poll is sent.
async fn next_poll(server: &SimServer, sent: &Sent) {
    let before = calls(sent).len();
    while calls(sent).len() == before {
        server.advance(ms(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_queued_one_by_one_share_poll_batches() {
    const WAITERS: usize = 200;
    let (server, [a]) = clients();
    let (b, sent, _) = recorded(&server, None);
    let guards = hold_all(&a, WAITERS).await;
    let mut waiting = Vec::new();
    for n in 0..WAITERS {
        waiting.push(wait(&b, n));
        server.advance(ms(5)).await;
    }
    server.advance(secs(5)).await;
    clear(&sent);
    server.advance(secs(10)).await;
    let calls = calls(&sent);
    let polled: usize = calls.iter().map(|(_, waiters)| waiters).sum();
    assert!(polled >= WAITERS * 9, "too few polls: {polled}");
    assert!(polled <= WAITERS * 14, "too many polls: {polled}");
    assert!(calls.len() <= 40, "{} calls", calls.len());
    assert!(calls.iter().all(|(_, waiters)| *waiters <= MAX_BATCH));
    drop(guards);
    for granted in join_all(waiting).await {
        drop(granted.expect("no panic").expect("granted"));
    }
}

#[tokio::test(start_paused = true)]
async fn single_waiter_polls_in_time() {
    let (server, [a]) = clients();
    let (b, sent, _) = recorded(&server, None);
    let mutex = a.mutex("k0").expect("valid").lease(secs(12)).fixed_lease();
    let _guard = held(mutex.try_lock().await);
    // The reply to the acquire took 1 ms.
    let expires = server.elapsed() - ms(1) + secs(12);
    let waiting = wait(&b, 0);
    server.advance(ms(500)).await;
    clear(&sent);
    let _second = waiting.await.expect("no panic").expect("granted");
    // The poll that finds the key free is sent up to 20 ms after `poll_after`, counted from the
    // previous reply. Its reply takes another millisecond.
    let late = server.elapsed() - expires;
    assert!(ms(3) <= late && late <= ms(23), "{late:?}");
    let calls = calls(&sent);
    assert!(calls.len() >= 11);
    for pair in calls[..calls.len() - 1].windows(2) {
        let between = pair[1].0.saturating_since(pair[0].0);
        // The interval, a random delay of up to 20 ms, and a round trip.
        let in_time = ms(1_002) < between && between <= ms(1_022);
        assert!(in_time, "{between:?} between two polls");
    }
}

#[tokio::test(start_paused = true)]
async fn missed_notifications_poll_all_waiters_immediately() {
    const WAITERS: usize = 2 * MAX_BATCH + 44;
    let (server, [a]) = clients();
    let (b, sent, network) = recorded(&server, None);
    let guards = hold_all(&a, WAITERS).await;
    let waiting: Vec<_> = (0..WAITERS).map(|n| wait(&b, n)).collect();
    server.advance(ms(3_500)).await;
    clear(&sent);
    let now = network.runtime().now();
    network.drop_connection();
    server.advance(ms(1)).await;
    let calls = calls(&sent).into_iter().filter(|(at, _)| *at == now);
    let sizes: Vec<_> = calls.map(|(_, waiters)| waiters).collect();
    assert_eq!(sizes, [MAX_BATCH, MAX_BATCH, 44]);
    drop(guards);
    for granted in join_all(waiting).await {
        drop(granted.expect("no panic").expect("granted"));
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_dropped_during_its_poll_leaves_nothing() {
    for fault in [Fault::DelayReply(ms(500)), Fault::DelayRequest(ms(500))] {
        let (server, [a]) = clients();
        let (b, sent, network) = recorded(&server, None);
        let guards = hold_all(&a, 2).await;
        let waiting: Vec<_> = (0..2).map(|n| wait(&b, n)).collect();
        server.advance(ms(100)).await;
        clear(&sent);
        network.inject_into(Call::Poll, fault);
        next_poll(&server, &sent).await;
        assert_eq!(calls(&sent)[0].1, 2, "one call for both");
        waiting[0].abort();
        server.advance(ms(10)).await;
        let seen = a.inspect("k0").await.expect("answered");
        assert_eq!(seen.waiter_count(), 0, "the release overtakes the poll");
        drop(guards);
        server.advance(ms(700)).await;
        assert!(waiting[1].is_finished());
        let seen = a.inspect("k0").await.expect("answered");
        assert!(seen.holders().is_empty() && seen.waiter_count() == 0);
        assert_eq!(network.pending_faults(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn error_of_one_waiter_affects_no_other() {
    let (server, [a]) = clients();
    let (b, sent, _) = recorded(&server, None);
    let guards = hold_all(&a, 3).await;
    let waiting: Vec<_> = (0..3).map(|n| wait(&b, n)).collect();
    server.advance(ms(100)).await;
    clear(&sent);
    server.plant_foreign("k1", "list");
    next_poll(&server, &sent).await;
    assert_eq!(calls(&sent)[0].1, 3, "one call for all");
    server.advance(ms(5)).await;
    let finished: Vec<_> = waiting.iter().map(JoinHandle::is_finished).collect();
    assert_eq!(finished, [false, true, false]);
    drop(guards);
    let results = try_join_all(waiting).await.expect("no panic");
    assert!(results[0].is_ok() && results[2].is_ok());
    assert_is!(results[1] => Err(Error::ForeignValue { .. }));
}

#[tokio::test(start_paused = true)]
async fn poll_without_a_reply_delays_no_waiter() {
    let (server, [a]) = clients();
    let (b, sent, network) = recorded(&server, Some(ms(50)));
    let mut guards = hold_all(&a, 2).await;
    let first = wait(&b, 0);
    server.advance(ms(100)).await;
    network.inject_into(Call::Poll, Fault::LoseReply);
    next_poll(&server, &sent).await;
    let second = wait(&b, 1);
    server.advance(ms(10)).await;
    clear(&sent);
    server.advance(ms(500)).await;
    let polls = calls(&sent).len();
    assert!(polls >= 9, "{polls} polls of the other waiter in 500 ms");
    // The waiter itself is not delayed either if a push grants it the lock.
    let begun = server.elapsed();
    drop(guards.remove(0));
    let _held = first.await.expect("no panic").expect("granted");
    let took = server.elapsed() - begun;
    assert!(took <= ms(2), "a release to the server and a push back");
    drop(guards);
    drop(second.await.expect("no panic").expect("granted"));
}

#[tokio::test(start_paused = true)]
async fn wait_deadline_causes_no_extra_polls() {
    let (server, [a]) = clients();
    let (b, sent, _) = recorded(&server, None);
    let _guards = hold_all(&a, 1).await;
    let begun = server.elapsed();
    let mutex = b.mutex("k0").expect("valid");
    timed_out(&mutex.try_lock_for(secs(4)).await, secs(4));
    assert_eq!(server.elapsed() - begun, secs(4));
    // One after the subscription, then one each second.
    assert_eq!(calls(&sent).len(), 4, "{:?}", calls(&sent));
}

#[tokio::test(start_paused = true)]
async fn poll_after_of_zero_is_rate_limited() {
    let (server, [a]) = clients();
    let (b, sent, _) = recorded(&server, Some(Duration::ZERO));
    let guards = hold_all(&a, 1).await;
    let waiting = wait(&b, 0);
    server.advance(ms(1_000)).await;
    let polls = calls(&sent).len();
    assert!((50..=100).contains(&polls), "{polls} polls in a second");
    drop(guards);
    drop(waiting.await.expect("no panic").expect("granted"));
}

#[tokio::test(start_paused = true)]
async fn refused_subscription_falls_back_to_polls() {
    let (server, [a]) = clients();
    let backend = Wrapped::new(server.client("b"));
    let refusals = Arc::clone(&backend.refusals);
    refusals.store(1_000, Ordering::SeqCst);
    let b = LockClient::new(backend);
    for _ in 0..3 {
        let guards = hold_all(&a, 1).await;
        let waiting = wait(&b, 0);
        server.advance(ms(2_500)).await;
        let begun = server.elapsed();
        drop(guards);
        drop(waiting.await.expect("no panic").expect("granted"));
        let took = server.elapsed() - begun;
        let by_a_poll = ms(4) < took && took <= ms(1_022);
        assert!(by_a_poll, "{took:?}");
        server.advance(ms(100)).await;
    }
    server.advance(secs(60)).await;
    let attempts = 1_000 - refusals.swap(0, Ordering::SeqCst);
    assert!((10..=30).contains(&attempts), "{attempts} attempts in 68 s");
    server.advance(secs(10)).await;
    let guards = hold_all(&a, 1).await;
    let waiting = wait(&b, 0);
    server.advance(ms(500)).await;
    let begun = server.elapsed();
    drop(guards);
    drop(waiting.await.expect("no panic").expect("granted"));
    assert!(server.elapsed() - begun <= ms(2), "granted by a push");
}

/// The pause after a refusal begins short, because its cause may be over soon.
#[tokio::test(start_paused = true)]
async fn subscription_follows_soon_after_a_few_refusals() {
    let (server, [a]) = clients();
    let backend = Wrapped::new(server.client("b"));
    backend.refusals.store(3, Ordering::SeqCst);
    let b = LockClient::new(backend);
    let guards = hold_all(&a, 1).await;
    let waiting = wait(&b, 0);
    server.advance(ms(300)).await;
    let begun = server.elapsed();
    drop(guards);
    drop(waiting.await.expect("no panic").expect("granted"));
    assert!(server.elapsed() - begun <= ms(2), "granted by a push");
}

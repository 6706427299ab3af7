//! The future that completes a margin before the end of a guard.

use std::time::Duration;

use futures_util::FutureExt as _;
use leasehold_api::{ForceMode, Loss};
use leasehold_sim::Data;

use crate::support::{clients, connected, force, lock, ms, mutex_of, secs, wait};

#[tokio::test(start_paused = true)]
async fn guard_of_a_fixed_lease_expires_the_margin_before_its_deadline() {
    let (server, [a]) = clients();
    let mutex = mutex_of(&a).lease(secs(10)).fixed_lease();
    let guard = mutex.lock().await.expect("free");
    let (begun, valid_for) = (server.elapsed(), guard.valid_for());
    let left = guard.expiring(secs(3)).await;
    assert_eq!(left, secs(3));
    assert_eq!(server.elapsed() - begun, valid_for - secs(3));
    assert!(guard.is_valid());
    // A manual renewal moves the deadline, and the next future waits for the new one.
    let valid_for = guard.renew().await.expect("answered");
    let renewed = server.elapsed();
    assert_eq!(guard.expiring(secs(3)).now_or_never(), None);
    assert_eq!(guard.expiring(secs(3)).await, secs(3));
    assert_eq!(server.elapsed() - renewed, valid_for - secs(3));
    // More than what is left completes at once, zero completes with the loss.
    assert_eq!(guard.expiring(secs(60)).now_or_never(), Some(secs(3)));
    assert_eq!(guard.expiring(Duration::ZERO).await, Duration::ZERO);
    assert_eq!(server.elapsed() - renewed, valid_for);
    assert_eq!(guard.loss_reason(), Some(Loss::Deadline));
}

#[tokio::test(start_paused = true)]
async fn renewals_put_the_end_off() {
    let (server, [(a, network)]) = connected();
    let mutex = mutex_of(&a).lease(secs(9));
    let guard = mutex.lock().await.expect("free");
    let mut expiring = Box::pin(guard.expiring(secs(4)));
    for _ in 0..100 {
        server.advance(secs(1)).await;
        let left = (&mut expiring).now_or_never();
        assert_eq!(left, None, "{:?}", guard.valid_for());
    }
    network.isolate();
    let (isolated, valid_for) = (server.elapsed(), guard.valid_for());
    assert_eq!(expiring.await, secs(4));
    assert_eq!(server.elapsed() - isolated, valid_for - secs(4));
    // The server answers again before the end: the guard goes on, and so does a new future.
    network.rejoin();
    let again = guard.expiring(secs(3));
    server.advance(secs(60)).await;
    assert!(guard.is_valid());
    assert_eq!(again.now_or_never(), None);
}

#[tokio::test(start_paused = true)]
async fn renewal_wakes_a_future_that_slept_for_the_old_deadline() {
    let (server, [a]) = clients();
    let mutex = mutex_of(&a).lease(secs(10)).fixed_lease();
    let guard = mutex.lock().await.expect("free");
    let expiring = tokio::spawn(guard.expiring(secs(2)));
    server.advance(secs(6)).await;
    let valid_for = guard.renew().await.expect("answered");
    let renewed = server.elapsed();
    server.advance(secs(6)).await;
    assert!(!expiring.is_finished(), "the old deadline has passed");
    assert_eq!(expiring.await.expect("no panic"), secs(2));
    assert_eq!(server.elapsed() - renewed, valid_for - secs(2));
}

#[tokio::test(start_paused = true)]
async fn loss_without_a_warning_completes_it_at_once() {
    let (server, [a, b]) = clients();
    let guard = lock(&a).await;
    let expiring = tokio::spawn(guard.expiring(secs(5)));
    server.advance(secs(1)).await;
    force(&b, "k", ForceMode::Revoke).await;
    server.advance(ms(20)).await;
    assert!(expiring.is_finished());
    assert_eq!(expiring.await.expect("no panic"), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn maximum_hold_is_expected() {
    let (server, [a]) = clients();
    let mutex = mutex_of(&a).lease(secs(9));
    let guard = mutex.max_hold(secs(60)).lock().await.expect("free");
    let begun = server.elapsed();
    assert_eq!(guard.expiring(secs(4)).await, secs(4));
    let waited = server.elapsed() - begun;
    assert!(waited > secs(55) && waited <= secs(56), "{waited:?}");
    assert_eq!(guard.lost().await, Loss::MaxHold);
}

#[tokio::test(start_paused = true)]
async fn released_guard_never_expires() {
    let (server, [a]) = clients();
    let mutex = mutex_of(&a);
    let guard = mutex.lock().await.expect("free");
    let released = guard.expiring(secs(5));
    guard.release().await.expect("answered");
    let guard = mutex.lock().await.expect("free");
    let dropped = guard.expiring(secs(5));
    drop(guard);
    server.advance(secs(300)).await;
    assert_eq!(released.now_or_never(), None);
    assert_eq!(dropped.now_or_never(), None);
}

#[tokio::test(start_paused = true)]
async fn several_keys_expire_with_the_first() {
    let (server, [a]) = clients();
    let many = a.mutexes(["a", "b"]).expect("valid");
    let many = many.lease(secs(20)).fixed_lease();
    let guard = many.lock().await.expect("free");
    let (begun, valid_for) = (server.elapsed(), guard.valid_for());
    assert_eq!(guard.expiring(secs(5)).await, secs(5));
    assert_eq!(server.elapsed() - begun, valid_for - secs(5));
    let released = guard.expiring(secs(1));
    guard.release().await.expect("answered");
    server.advance(secs(100)).await;
    assert_eq!(released.now_or_never(), None);
}

#[tokio::test(start_paused = true)]
async fn waiting_for_the_end_does_not_keep_the_client_alive() {
    let (server, [a]) = clients();
    let guard = lock(&a).await;
    let expiring = guard.expiring(secs(5));
    drop((guard, a));
    server.advance(secs(1)).await;
    server.restart(Data::Lost);
    server.advance(secs(100)).await;
    assert_eq!(expiring.now_or_never(), None);
}

/// What a waiter gets is an offer, which lasts for 5 s at most until its first renewal.
#[tokio::test(start_paused = true)]
async fn end_of_an_offer_does_not_count_before_its_first_renewal() {
    let (server, [(a, _), (b, network)]) = connected();
    for margin in [secs(3), secs(6), secs(12)] {
        let guard = lock(&a).await;
        let waiting = wait(&b);
        server.advance(secs(1)).await;
        drop(guard);
        let guard = waiting.await.expect("no panic").expect("granted");
        let mut expiring = Box::pin(guard.expiring(margin));
        assert!(guard.valid_for() <= secs(5), "an offer");
        for _ in 0..120 {
            assert_eq!((&mut expiring).now_or_never(), None, "{guard:?}");
            server.advance(ms(10)).await;
        }
        assert!(guard.valid_for() > secs(28), "confirmed: {guard:?}");
        // From then on, it counts as any lease does.
        network.isolate();
        let (isolated, valid_for) = (server.elapsed(), guard.valid_for());
        assert_eq!(expiring.await, margin);
        assert_eq!(server.elapsed() - isolated, valid_for - margin);
        network.rejoin();
        guard.release().await.expect("answered");
    }
}

#[tokio::test(start_paused = true)]
async fn offer_expires_when_its_first_renewal_had_its_chance() {
    for (margin, tells_within) in [(secs(6), ms(1_100)), (secs(2), secs(3))] {
        let (server, [(a, _), (b, network)]) = connected();
        let guard = lock(&a).await;
        let waiting = wait(&b);
        server.advance(secs(1)).await;
        drop(guard);
        let guard = waiting.await.expect("no panic").expect("granted");
        network.isolate();
        let (granted, offered) = (server.elapsed(), guard.valid_for());
        assert!(offered <= secs(5), "an offer");
        let left = guard.expiring(margin).await;
        let waited = server.elapsed() - granted;
        assert!(waited >= ms(100) && waited <= tells_within, "{waited:?}");
        assert_eq!(left, offered - waited);
        assert!(left <= margin && guard.is_valid());
    }
}

#[tokio::test(start_paused = true)]
async fn maximum_hold_of_an_offer_counts_at_once() {
    let (server, [a, b]) = clients();
    let guard = lock(&a).await;
    let mutex = mutex_of(&b).max_hold(secs(4));
    let waiting = tokio::spawn(async move { mutex.lock().await });
    server.advance(secs(1)).await;
    drop(guard);
    let guard = waiting.await.expect("no panic").expect("granted");
    let left = guard.expiring(secs(10)).now_or_never();
    assert_eq!(left, Some(guard.valid_for()));
}

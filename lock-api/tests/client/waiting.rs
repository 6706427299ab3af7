//! Waiting: order, pushes, lost pushes, offers, and owners with several attempts.

use leasehold_api::{LockClient, MutexGuard, Refused};
use leasehold_sim::{Call, Fault};

use crate::support::{
    clients, connected, held, lock, ms, mutex_of, reentrant_mutex, reentrant_rw, refused_by, secs,
    timed_out, wait,
};

#[tokio::test(start_paused = true)]
async fn short_call_timeout_keeps_slow_subscriptions() {
    let (server, [a]) = clients();
    let network = server.client("b");
    let b = LockClient::builder(network.clone()).call_timeout(ms(100));
    let b = b.build().expect("valid");
    for _ in 0..20 {
        network.inject_into(Call::Listen, Fault::DelayReply(ms(300)));
    }
    let guard = lock(&a).await;
    let waiting = wait(&b);
    server.advance(ms(2_500)).await;
    let released = server.elapsed();
    drop(guard);
    let granted = waiting.await.expect("no panic").expect("granted");
    let took = server.elapsed() - released;
    assert!(took < ms(50), "granted by a push: {took:?}");
    drop(granted);
}

#[tokio::test(start_paused = true)]
async fn expiring_offer_is_confirmed_before_lock_returns() {
    for slow in [false, true] {
        let (server, [(a, _), (b, network)]) = connected();
        let guard = lock(&a).await;
        let mutex = mutex_of(&b);
        let waiting = tokio::spawn(async move { mutex.try_lock_for(secs(4)).await });
        server.advance(ms(3_930)).await;
        if slow {
            network.inject_into(Call::Renew, Fault::DelayRequest(ms(200)));
        }
        drop(guard);
        let outcome = waiting.await.expect("no panic");
        if slow {
            timed_out(&outcome, secs(4));
        } else {
            let left = held(outcome).valid_for();
            assert!(left > secs(29), "confirmed: {left:?}");
        }
        server.advance(secs(1)).await;
        assert_eq!(server.left_behind(), "", "slow: {slow}");
    }
}

#[tokio::test(start_paused = true)]
async fn expired_pushed_grant_is_not_returned() {
    let (server, [(a, _), (b, network), (c, _)]) = connected();
    let guard = lock(&a).await;
    let waiting = wait(&b);
    server.advance(ms(2_500)).await;
    network.pause();
    guard.release().await.expect("answered");
    server.advance(secs(20)).await;
    let third = held(mutex_of(&c).try_lock().await);
    network.resume();
    server.advance(secs(5)).await;
    assert!(!waiting.is_finished(), "another client holds the key");
    third.release().await.expect("answered");
    let _held = waiting.await.expect("no panic").expect("granted");
}

#[tokio::test(start_paused = true)]
async fn fixed_lease_of_a_waiter_starts_at_its_confirmation() {
    let (server, [a, b]) = clients();
    let guard = lock(&a).await;
    let mutex = mutex_of(&b).lease(secs(60)).fixed_lease();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    server.advance(secs(2)).await;
    guard.release().await.expect("answered");
    let second = waiting.await.expect("no panic").expect("granted");
    assert!(second.valid_for() > secs(59), "{:?}", second.valid_for());
}

#[tokio::test(start_paused = true)]
async fn other_attempts_of_a_granted_owner_become_nested_holds() {
    let (server, [a, b]) = clients();
    let guard = lock(&b).await;
    let shared = reentrant_mutex(&a);
    let waiting = [(); 3].map(|()| {
        let mutex = shared.clone();
        tokio::spawn(async move { mutex.lock().await })
    });
    server.advance(secs(2)).await;
    guard.release().await.expect("answered");
    let mut guards = Vec::new();
    for task in waiting {
        guards.push(task.await.expect("no panic").expect("granted"));
    }
    let token = guards[0].fencing_token();
    assert!(guards.iter().all(|guard| guard.fencing_token() == token));
    server.advance(secs(100)).await;
    assert!(guards.iter().all(MutexGuard::is_valid));
    drop(guards);
    server.advance(ms(100)).await;
    assert_eq!(server.left_behind(), "");
}

/// A dropped guard is released in the background, and the write request may overtake the release.
#[tokio::test(start_paused = true)]
async fn owner_may_write_after_dropping_its_last_read_guard() {
    let (_, [(a, network)]) = connected();
    let rw = reentrant_rw(&a);
    for fault in [None, Some(Fault::LoseRequest), Some(Fault::LoseReply)] {
        let reading = rw.read().await.expect("free");
        if let Some(fault) = fault {
            network.inject_into(Call::Release, fault);
        }
        drop(reading);
        let writing = rw.write().await.expect("no reader is left");
        assert!(writing.is_valid());
        assert_eq!(network.pending_faults(), 0);
        writing.release().await.expect("answered");
    }
    drop(rw.read().await.expect("free"));
    let tried = rw.try_write().await.expect("answered");
    assert!(tried.is_acquired());
    drop(tried);
    // A try does not wait for a retry of the lost release.
    let reading = rw.read().await.expect("free");
    network.inject_into(Call::Release, Fault::LoseRequest);
    drop(reading);
    // It is not released yet.
    let refused = rw.try_write().await;
    assert_eq!(refused_by(&refused), Refused::WouldDeadlock);
}

#[tokio::test(start_paused = true)]
async fn try_retries_a_request_that_was_too_late() {
    let (server, [(a, network)]) = connected();
    drop(lock(&a).await);
    server.advance(secs(1)).await;
    // The server's clock goes back by an hour. The client's deliver-before is too far ahead until
    // a reply corrects its view of the clock.
    server.step_clock_back(secs(3600));
    let guard = held(mutex_of(&a).try_lock().await);
    assert!(guard.is_valid());
    network.inject_into(Call::Acquire, Fault::DelayRequest(ms(900)));
    let _other = held(a.mutex("other").expect("valid").try_lock().await);
}

#[tokio::test(start_paused = true)]
async fn stale_attempt_is_sent_again_as_a_new_one() {
    let (server, [(a, network)]) = connected();
    let mutex = mutex_of(&a);
    let first = mutex.lock().await.expect("free");
    first.release().await.expect("answered");
    network.inject_into(Call::Acquire, Fault::DelayRequest(ms(100)));
    let late = mutex.clone();
    let late = tokio::spawn(async move { late.try_lock().await });
    server.advance(ms(1)).await;
    let fast = held(mutex.try_lock().await);
    fast.release().await.expect("answered");
    assert!(!late.is_finished());
    let guard = held(late.await.expect("no panic"));
    assert!(guard.fencing_token() > fast.fencing_token());
}

#[tokio::test(start_paused = true)]
async fn waiter_of_a_killed_client_expires_at_its_wait_deadline() {
    let (server, [(a, _), (b, machine)]) = connected();
    let _guard = lock(&a).await;
    let mutex = mutex_of(&b);
    let waiting = tokio::spawn(async move { mutex.try_lock_for(secs(3)).await });
    server.advance(secs(1)).await;
    machine.kill();
    assert_eq!(a.inspect("k").await.expect("answered").waiter_count(), 1);
    server.advance(secs(2)).await;
    assert_eq!(a.inspect("k").await.expect("answered").waiter_count(), 0);
    waiting.abort();
}

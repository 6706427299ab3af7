//! Renewals, losses, forced releases, and the effects of a loss.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt as _;
use leasehold_api::{Error, ForceMode, LockClient, Loss};
use leasehold_sim::tools::Entry;
use leasehold_sim::{Call, Data, Fault, SimServer};

use crate::support::{
    assert_error, client, clients, connected, contended, force, lock, lost_by, ms, mutex_of,
    reentrant_mutex, reentrant_rw, secs, server, wait,
};
use crate::wrapped::Wrapped;

#[tokio::test(start_paused = true)]
async fn isolated_guard_is_lost_before_the_server_frees_the_key() {
    let (server, [(a, network), (b, _)]) = connected();
    let guard = lock(&a).await;
    server.advance(secs(60)).await;
    network.isolate();
    let waiting = wait(&b);
    assert_eq!(guard.lost().await, Loss::Deadline);
    assert!(!waiting.is_finished());
    server.advance(secs(2)).await;
    assert!(waiting.is_finished());
    let second = waiting.await.expect("no panic").expect("granted");
    network.rejoin();
    assert_error!(guard.release().await, Lost);
    assert!(second.is_valid());
    contended(&mutex_of(&a).try_lock().await);
}

#[tokio::test(start_paused = true)]
async fn short_outage_loses_nothing() {
    let (server, [(a, network)]) = connected();
    let mutex = mutex_of(&a).lease(secs(10));
    let guard = mutex.lock().await.expect("free");
    network.isolate();
    server.advance(secs(8)).await;
    assert!(guard.is_valid());
    network.rejoin();
    server.advance(secs(60)).await;
    assert!(guard.is_valid());
    assert_eq!(guard.lost().now_or_never(), None);
    assert_eq!(guard.loss_reason(), None);
}

#[tokio::test(start_paused = true)]
async fn guard_of_a_paused_client_is_not_valid() {
    let (server, [(a, network)]) = connected();
    let guard = lock(&a).await;
    network.pause();
    server.advance(secs(31)).await;
    network.resume();
    assert!(!guard.is_valid());
    assert_eq!(guard.loss_reason(), Some(Loss::Deadline));
    assert_eq!(guard.lost().await, Loss::Deadline);
    server.advance(secs(60)).await;
    assert!(!guard.is_valid(), "a loss is final");
}

#[tokio::test(start_paused = true)]
async fn server_clock_step_loses_the_guard() {
    for forward in [true, false] {
        let (server, [a]) = clients();
        let guard = lock(&a).await;
        if forward {
            server.step_clock_forward(secs(1));
        } else {
            server.step_clock_back(secs(1));
        }
        assert_eq!(guard.lost().await, Loss::ClockStepped);
        let next = a.mutex("other").expect("valid").lock().await.expect("free");
        server.advance(secs(60)).await;
        assert!(next.is_valid(), "a later guard is not affected");
    }
}

/// The answer with the grant is older than the step, and its caller takes it up later.
#[tokio::test(start_paused = true)]
async fn step_that_is_noticed_before_the_guard_is_made_loses_it() {
    let (server, [a]) = clients();
    let other = a.mutex("other").expect("valid").lock().await.expect("free");
    let mutex = mutex_of(&a);
    let mut locking = pin!(mutex.lock());
    assert!(locking.as_mut().now_or_never().is_none());
    server.advance(ms(100)).await;
    server.step_clock_forward(secs(1));
    assert_eq!(lost_by(&other.renew().await), Loss::ClockStepped);
    let next = a.mutex("next").expect("valid").lock().await.expect("free");
    let guard = locking.await.expect("granted");
    assert_eq!(guard.lost().now_or_never(), Some(Loss::ClockStepped));
    assert!(next.is_valid(), "the old answer is no step back");
}

/// A renewal moves the guard to the clock of the restarted server. Its answer is older than the step.
#[tokio::test(start_paused = true)]
async fn step_that_is_noticed_before_a_renewal_is_answered_loses_the_guard() {
    let (server, [(a, network)]) = connected();
    // Only a renewal that is asked for renews a fixed lease.
    let guard = mutex_of(&a).fixed_lease().lock().await.expect("free");
    server.restart(Data::Kept);
    let other = async |key| a.mutex(key).expect("valid").lock().await.expect("free");
    let _before = other("before").await;
    network.inject_into(Call::Renew, Fault::DelayReply(ms(300)));
    let renew = async { lost_by(&guard.renew().await) };
    let step = async {
        server.advance(ms(100)).await;
        server.step_clock_forward(secs(1));
        other("after").await
    };
    let (lost, after) = tokio::join!(renew, step);
    assert_eq!(lost, Loss::ClockStepped);
    assert!(after.is_valid());
}

#[tokio::test(start_paused = true)]
async fn nested_fixed_lease_shares_the_end_of_its_holder() {
    let (server, [(a, network)]) = connected();
    let renewed = reentrant_mutex(&a).lease(secs(9));
    let fixed = renewed.clone().lease(secs(1)).fixed_lease();
    let outer = renewed.lock().await.expect("free");
    let inner = fixed.lock().await.expect("nested");
    assert_eq!(outer.valid_for(), inner.valid_for());
    server.advance(secs(30)).await;
    assert!(outer.is_valid() && inner.is_valid());
    assert_eq!(outer.valid_for(), inner.valid_for());
    // Nobody renews the inner guard alone. It ends with the last lease.
    outer.release().await.expect("answered");
    let released = server.elapsed();
    assert_eq!(inner.lost().await, Loss::Deadline);
    let lasted = server.elapsed() - released;
    assert!(lasted > secs(5) && lasted < secs(9), "{lasted:?}");
    drop(inner);
    server.advance(secs(9)).await;

    // A renewed guard inside one with a fixed lease renews the holder of both.
    let outer = fixed.lock().await.expect("free");
    let inner = renewed.lock().await.expect("nested");
    server.advance(secs(30)).await;
    assert!(outer.is_valid() && inner.is_valid());
    network.isolate();
    let (one, other) = tokio::join!(async { (outer.lost().await, server.elapsed()) }, async {
        (inner.lost().await, server.elapsed())
    });
    assert_eq!(one, other);
    assert_eq!(one.0, Loss::Deadline);
}

#[tokio::test(start_paused = true)]
async fn nested_fixed_leases_end_together() {
    let (server, [a]) = clients();
    let mutex = reentrant_mutex(&a).lease(secs(10));
    let mutex = mutex.fixed_lease();
    let outer = mutex.lock().await.expect("free");
    let taken = server.elapsed();
    server.advance(secs(6)).await;
    let inner = mutex.lock().await.expect("nested");
    assert_eq!(outer.valid_for(), inner.valid_for());
    assert!(outer.valid_for() > secs(9), "{:?}", outer.valid_for());
    drop(inner);
    server.advance(secs(6)).await;
    assert!(outer.is_valid(), "a release shortens nothing");
    assert_eq!(outer.lost().await, Loss::Deadline);
    assert!(server.elapsed() - taken < secs(16));
}

/// A re-entry of a revoked holder gets its remaining time, which is too short for a guard.
#[tokio::test(start_paused = true)]
async fn expiring_revoked_holder_is_not_retried_in_a_loop() {
    let server = server();
    let backend = Wrapped::new(server.client("a"));
    let acquires = Arc::clone(&backend.acquires);
    let a = LockClient::new(backend);
    let (b, _) = client(&server, "b");
    let mutex = reentrant_mutex(&a).lease(secs(9));
    let mutex = mutex.fixed_lease();
    let revoked = mutex.lock().await.expect("free");
    // The server granted it 1 ms ago.
    let now = || a.runtime().now();
    let expiry = now().saturating_add(secs(9) - ms(1));
    force(&b, "k", ForceMode::Revoke).await;
    let left = expiry.saturating_since(now());
    server.advance(left - ms(10)).await;
    acquires.lock().expect("no panic").clear();
    let guard = mutex.lock().await.expect("free after the expiry");
    assert!(now() >= expiry);
    let before = revoked.fencing_token();
    assert!(guard.fencing_token() > before);
    // One re-enters the old holder, and one follows after a pause.
    assert_eq!(acquires.lock().expect("no panic").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn lost_never_completes_for_a_released_guard() {
    let (server, [(a, network)]) = connected();
    let guard = lock(&a).await;
    let lost = tokio::spawn(guard.lost());
    let dropped = a.mutex("d").expect("valid").lock().await.expect("free");
    let lost_dropped = tokio::spawn(dropped.lost());
    network.isolate();
    drop(dropped);
    drop(guard.release().await);
    server.advance(secs(120)).await;
    assert!(!lost.is_finished());
    assert!(!lost_dropped.is_finished());
}

/// The renewals of a hundred guards need only a few calls.
#[tokio::test(start_paused = true)]
async fn renewals_share_batches() {
    let server = SimServer::new(3);
    let locks = LockClient::new(server.client("a"));
    let mut guards = Vec::new();
    for n in 0..100 {
        let mutex = locks.mutex(format!("k{n}")).expect("valid");
        guards.push(mutex.lock().await.expect("free"));
    }
    server.advance(secs(60)).await;
    assert!(guards.iter().all(leasehold_api::Guard::is_valid));
    let log = server.log();
    let renew = |entry: &&Entry| format!("{:?}", entry.event).contains("Renew");
    let mut times: Vec<_> = log.iter().filter(renew).map(|it| it.at).collect();
    let renewals = times.len();
    times.dedup();
    assert!(renewals >= 500, "{renewals} renewals");
    assert!(times.len() < 30, "{} batches", times.len());
}

#[tokio::test(start_paused = true)]
async fn released_guard_refuses_renew_and_protect() {
    let (_, [a]) = clients();
    let guard = lock(&a).await;
    guard.release().await.expect("answered");
    assert_error!(guard.renew().await, Released);
    let body = async { panic!("the body ran without the lock") };
    assert_error!(guard.protect(body).await, Released);
    assert_eq!(guard.valid_for(), ms(0));
}

#[tokio::test(start_paused = true)]
async fn slow_reply_does_not_extend_a_guard() {
    let (_, [(a, network)]) = connected();
    let mutex = mutex_of(&a).lease(secs(10));
    let first = mutex.lock().await.expect("free");
    first.release().await.expect("answered");
    network.inject_into(Call::Acquire, Fault::DelayReply(ms(900)));
    let guard = mutex.clone().fixed_lease().lock().await.expect("free");
    // 10 s from the send, less a drift allowance of 1 % + 10 ms.
    let left = guard.valid_for();
    assert!(left <= ms(9_890 - 900), "{left:?}");
    network.inject_into(Call::Renew, Fault::DelayReply(ms(900)));
    let left = guard.renew().await.expect("still held");
    assert!(left <= ms(9_890 - 900), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn suspend_is_noticed_although_timers_did_not_run() {
    let server = server();
    let backend = Wrapped::new(server.client("a"));
    let suspended = backend.suspended.clone();
    let locks = LockClient::new(backend);
    let mutex = mutex_of(&locks).lease(secs(3600)).fixed_lease();
    let guard = mutex.lock().await.expect("free");
    let lost = tokio::spawn(guard.lost());
    server.advance(secs(10)).await;
    suspended.store(3600, Ordering::SeqCst);
    assert!(!guard.is_valid());
    server.advance(secs(1)).await;
    assert!(lost.is_finished());
    assert_eq!(lost.await.expect("no panic"), Loss::Deadline);
}

#[tokio::test(start_paused = true)]
async fn suspend_stops_the_body_even_if_its_timer_fires_first() {
    let server = server();
    let backend = Wrapped::new(server.client("a"));
    let suspended = backend.suspended.clone();
    let locks = LockClient::new(backend);
    let mutex = mutex_of(&locks).lease(secs(3600)).fixed_lease();
    let guard = mutex.lock().await.expect("free");
    let steps = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&steps);
    let work = tokio::spawn(async move {
        let body = async {
            loop {
                counted.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(ms(10)).await;
            }
        };
        let result: Result<(), Error> = guard.protect(body).await;
        result
    });
    server.advance(ms(95)).await;
    let before = steps.load(Ordering::SeqCst);
    assert!(before > 5, "{before} steps");
    suspended.store(3600, Ordering::SeqCst);
    server.advance(secs(2)).await;
    assert_eq!(steps.load(Ordering::SeqCst), before);
    let result = work.await.expect("no panic");
    assert_eq!(lost_by(&result), Loss::Deadline);
}

/// The token floor includes a token that a guard received later, not only its first token.
#[tokio::test(start_paused = true)]
async fn tokens_increase_past_one_from_a_downgrade_by_release() {
    let (server, [a]) = clients();
    let rw = reentrant_rw(&a);
    let outer = rw.write().await.expect("free");
    let inner = rw.read().await.expect("nested");
    let first = inner.fencing_token();
    server.advance(secs(1)).await;
    outer.release().await.expect("answered");
    let before = inner.fencing_token();
    assert!(before > first);
    inner.release().await.expect("answered");
    server.restart(Data::Lost);
    server.step_clock_back(secs(3600));
    let after = rw.write().await.expect("free");
    assert!(after.fencing_token() > before);
}

//! Waiting: order, pushes, lost pushes, offers, owners with several attempts.

use std::sync::{Arc, Mutex};

use leasehold_api::{Error, LockClient, MutexGuard, Policy, Refused};
use leasehold_sim::{Call, Fault, SimBackend, SimServer};
use tokio::task::JoinHandle;

use crate::support::{client, contended, held, ms, secs, server, timed_out};

fn wait(locks: &LockClient) -> JoinHandle<Result<MutexGuard, Error>> {
    let mutex = locks.mutex("k").expect("valid");
    tokio::spawn(async move { mutex.lock().await })
}

/// A holder, and a waiter that has its place and listens.
async fn holder_and_waiter(
    server: &SimServer,
) -> (
    MutexGuard,
    JoinHandle<Result<MutexGuard, Error>>,
    SimBackend,
    LockClient,
) {
    let (a, _) = client(server, "a");
    let (b, network) = client(server, "b");
    let guard = a.mutex("k").expect("valid").lock().await.expect("free");
    let waiting = wait(&b);
    server.advance(ms(2_500)).await;
    (guard, waiting, network, b)
}

#[tokio::test(start_paused = true)]
async fn a_short_limit_of_calls_cuts_no_subscription_off() {
    let server = server();
    let (a, _) = client(&server, "a");
    let network = server.client("b");
    let b = LockClient::builder(network.clone()).call_timeout(ms(100));
    let b = b.build().expect("valid");
    for _ in 0..20 {
        network.inject_into(Call::Listen, Fault::DelayReply(ms(300)));
    }
    let guard = a.mutex("k").expect("valid").lock().await.expect("free");
    let waiting = wait(&b);
    server.advance(ms(2_500)).await;
    let released = server.elapsed();
    drop(guard);
    let granted = waiting.await.expect("no panic").expect("granted");
    let took = server.elapsed() - released;
    assert!(took < ms(50), "told by a push: {took:?}");
    drop(granted);
}

#[tokio::test(start_paused = true)]
async fn a_offer_with_little_left_is_confirmed_before_it_is_handed_out() {
    for slow in [false, true] {
        let server = server();
        let (a, _) = client(&server, "a");
        let (b, network) = client(&server, "b");
        let guard = a.mutex("k").expect("valid").lock().await.expect("free");
        let mutex = b.mutex("k").expect("valid");
        let waiting = tokio::spawn(async move { mutex.lock_within(secs(4)).await });
        server.advance(ms(3_930)).await;
        if slow {
            network.inject_into(Call::Renew, Fault::DelayRequest(ms(200)));
        }
        drop(guard);
        let outcome = waiting.await.expect("no panic");
        if slow {
            timed_out(&outcome);
        } else {
            let left = held(outcome).valid_for();
            assert!(left > secs(29), "confirmed: {left:?}");
        }
        server.advance(secs(1)).await;
        assert_eq!(server.left_behind(), "", "slow: {slow}");
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_order() {
    let server = server();
    let (a, _) = client(&server, "a");
    let guard = a.mutex("k").expect("valid").lock().await.expect("free");
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for n in 0..10 {
        let (b, _) = client(&server, &format!("w{n}"));
        let order = Arc::clone(&order);
        waiting.push(tokio::spawn(async move {
            let guard = b.mutex("k").expect("valid").lock().await.expect("granted");
            order.lock().expect("no panic").push(n);
            guard.release().await.expect("answered");
        }));
        server.advance(ms(20)).await;
    }
    drop(guard);
    for task in waiting {
        task.await.expect("no panic");
    }
    assert_eq!(
        *order.lock().expect("no panic"),
        (0..10).collect::<Vec<_>>()
    );
}

#[tokio::test(start_paused = true)]
async fn a_push_hands_over_without_waiting_for_a_poll() {
    let server = server();
    let (guard, waiting, ..) = holder_and_waiter(&server).await;
    let begun = server.elapsed();
    guard.release().await.expect("answered");
    let second = waiting.await.expect("no panic").expect("granted");
    assert!(
        server.elapsed() - begun < ms(15),
        "{:?}",
        server.elapsed() - begun
    );
    assert!(second.is_valid());
    server.advance(secs(100)).await;
    assert!(second.is_valid(), "the offer was confirmed");
}

#[tokio::test(start_paused = true)]
async fn a_lost_push_costs_one_poll_interval() {
    let server = server();
    let (guard, waiting, network, _) = holder_and_waiter(&server).await;
    network.inject(Fault::LosePush);
    let begun = server.elapsed();
    guard.release().await.expect("answered");
    let _held = waiting.await.expect("no panic").expect("granted");
    assert!(
        server.elapsed() - begun < ms(1_100),
        "{:?}",
        server.elapsed() - begun
    );
}

#[tokio::test(start_paused = true)]
async fn a_doubled_or_late_push_changes_nothing() {
    for fault in [Fault::DuplicatePush, Fault::DelayPush(secs(3))] {
        let server = server();
        let (guard, waiting, network, b) = holder_and_waiter(&server).await;
        network.inject(fault);
        guard.release().await.expect("answered");
        let second = waiting.await.expect("no panic").expect("granted");
        let token = second.fencing_token().expect("tokens");
        server.advance(secs(10)).await;
        assert!(second.is_valid());
        assert_eq!(second.fencing_token().expect("tokens"), token);
        second.release().await.expect("answered");
        let _third = held(b.mutex("k").expect("valid").try_lock().await);
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_gap_everyone_polls_at_once() {
    let server = server();
    let (guard, waiting, network, _) = holder_and_waiter(&server).await;
    network.drop_connection();
    let begun = server.elapsed();
    guard.release().await.expect("answered");
    let _held = waiting.await.expect("no panic").expect("granted");
    assert!(
        server.elapsed() - begun < ms(1_100),
        "{:?}",
        server.elapsed() - begun
    );
}

#[tokio::test(start_paused = true)]
async fn a_pushed_grant_whose_offer_is_over_is_not_handed_out() {
    let server = server();
    let (guard, waiting, network, _) = holder_and_waiter(&server).await;
    network.pause();
    guard.release().await.expect("answered");
    server.advance(secs(20)).await;
    let (c, _) = client(&server, "c");
    let third = held(c.mutex("k").expect("valid").try_lock().await);
    network.resume();
    server.advance(secs(5)).await;
    assert!(!waiting.is_finished(), "another holds it");
    third.release().await.expect("answered");
    let _held = waiting.await.expect("no panic").expect("granted");
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_out_of_the_queue_counts_from_its_confirmation() {
    let server = server();
    let (a, _) = client(&server, "a");
    let (b, _) = client(&server, "b");
    let guard = a.mutex("k").expect("valid").lock().await.expect("free");
    let mutex = b.mutex("k").expect("valid").lease(secs(60)).fixed_lease();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    server.advance(secs(2)).await;
    guard.release().await.expect("answered");
    let second = waiting.await.expect("no panic").expect("granted");
    assert!(second.valid_for() > secs(59), "{:?}", second.valid_for());
}

#[tokio::test(start_paused = true)]
async fn a_barging_waiter_is_told_to_try() {
    let server = server();
    let (a, _) = client(&server, "a");
    let (b, _) = client(&server, "b");
    let barging = |locks: &LockClient| locks.mutex("k").expect("valid").policy(Policy::Barging);
    let guard = barging(&a).lock().await.expect("free");
    let mutex = barging(&b);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    server.advance(ms(2_500)).await;
    let begun = server.elapsed();
    guard.release().await.expect("answered");
    let _held = waiting.await.expect("no panic").expect("granted");
    assert!(
        server.elapsed() - begun < ms(30),
        "{:?}",
        server.elapsed() - begun
    );
}

#[tokio::test(start_paused = true)]
async fn what_else_an_owner_has_in_the_queue_becomes_a_nested_hold() {
    let server = server();
    let (a, _) = client(&server, "a");
    let (b, _) = client(&server, "b");
    let guard = b.mutex("k").expect("valid").lock().await.expect("free");
    let shared = a.reentrant_mutex("k").expect("valid");
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let mutex = shared.clone();
            tokio::spawn(async move { mutex.lock().await })
        })
        .collect();
    server.advance(secs(2)).await;
    guard.release().await.expect("answered");
    let mut guards = Vec::new();
    for task in waiting {
        guards.push(task.await.expect("no panic").expect("granted"));
    }
    assert!(
        guards
            .iter()
            .all(|guard| guard.fencing_token().expect("tokens")
                == guards[0].fencing_token().expect("tokens"))
    );
    server.advance(secs(100)).await;
    assert!(guards.iter().all(MutexGuard::is_valid));
    drop(guards);
    server.advance(ms(100)).await;
    assert_eq!(server.left_behind(), "");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_an_error_with_its_reason_in_all_forms() {
    let server = server();
    let (a, _) = client(&server, "a");
    let _mutex = a.mutex("k").expect("valid").lock().await.expect("free");
    let rw = a.rw_lock("k").expect("valid");
    for result in [
        rw.read().await.map(drop),
        rw.try_write().await.map(drop),
        rw.read_within(secs(1)).await.map(drop),
    ] {
        let mismatch = matches!(
            &result,
            Err(Error::Refused {
                reason: Refused::Mismatch { .. },
                ..
            })
        );
        assert!(mismatch, "{result:?}");
    }
    let rw = a.reentrant_rw_lock("r").expect("valid");
    let _read = rw.read().await.expect("free");
    let deadlock = rw.write().await;
    assert!(
        matches!(
            deadlock,
            Err(Error::Refused {
                reason: Refused::WouldDeadlock,
                ..
            })
        ),
        "{deadlock:?}"
    );
    contended(&a.rw_lock("r").expect("valid").try_write().await);
}

/// A dropped guard is released in the background: the request to write overtakes that.
#[tokio::test(start_paused = true)]
async fn who_has_dropped_the_last_read_guard_may_write() {
    let server = server();
    let (a, network) = client(&server, "a");
    let rw = a.reentrant_rw_lock("r").expect("valid");
    for fault in [None, Some(Fault::LoseRequest), Some(Fault::LoseReply)] {
        let reading = rw.read().await.expect("free");
        if let Some(fault) = fault {
            network.inject_into(Call::Release, fault);
        }
        drop(reading);
        let writing = rw.write().await.expect("nobody reads any more");
        assert!(writing.is_valid());
        assert_eq!(network.pending_faults(), 0);
        writing.release().await.expect("answered");
    }
    drop(rw.read().await.expect("free"));
    let tried = rw.try_write().await.expect("answered");
    assert!(tried.is_acquired());
    drop(tried);
    // A try does not wait for a release that is lost on its way.
    let reading = rw.read().await.expect("free");
    network.inject_into(Call::Release, Fault::LoseRequest);
    drop(reading);
    let refused = rw.try_write().await.expect_err("the server knows a reader");
    let reason = Refused::WouldDeadlock;
    let expected = matches!(&refused, Error::Refused { reason: it, .. } if *it == reason);
    assert!(expected, "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_first_request_that_comes_late_is_tried_again() {
    let server = server();
    let (a, network) = client(&server, "a");
    drop(a.mutex("k").expect("valid").lock().await.expect("free"));
    server.advance(secs(1)).await;
    // The clock of the server goes back by an hour: what the client knows of it is useless, and
    // its deliver-before is too far ahead until a reply corrects it.
    server.step_clock_back(secs(3600));
    let guard = held(a.mutex("k").expect("valid").try_lock().await);
    assert!(guard.is_valid());
    network.inject_into(Call::Acquire, Fault::DelayRequest(ms(900)));
    let _other = held(a.mutex("other").expect("valid").try_lock().await);
}

#[tokio::test(start_paused = true)]
async fn many_tasks_of_one_client_share_a_key_without_errors() {
    let server = server();
    let (a, _) = client(&server, "a");
    let mut tasks = Vec::new();
    for _ in 0..30 {
        let mutex = a.mutex("k").expect("valid");
        tasks.push(tokio::spawn(async move {
            for _ in 0..5 {
                let guard = mutex.lock().await.expect("granted");
                assert!(guard.is_valid());
                guard.release().await.expect("answered");
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    server.advance(ms(100)).await;
    assert_eq!(server.left_behind(), "");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_was_overtaken_goes_on_as_a_new_one() {
    let server = server();
    let (a, network) = client(&server, "a");
    let mutex = a.mutex("k").expect("valid");
    let first = mutex.lock().await.expect("free");
    first.release().await.expect("answered");
    network.inject_into(Call::Acquire, Fault::DelayRequest(ms(100)));
    let late = mutex.clone();
    let late = tokio::spawn(async move { late.try_lock().await });
    server.advance(ms(1)).await;
    let quick = held(mutex.try_lock().await);
    quick.release().await.expect("answered");
    assert!(!late.is_finished());
    let guard = held(late.await.expect("no panic"));
    assert!(guard.fencing_token().expect("tokens") > quick.fencing_token().expect("tokens"));
}

#[tokio::test(start_paused = true)]
async fn the_waiter_of_a_waiter_that_died_ends_with_its_own_deadline() {
    let server = server();
    let (a, _) = client(&server, "a");
    let (b, machine) = client(&server, "b");
    let waiter_lease = secs(60);
    let long = |locks: &LockClient| locks.mutex("k").expect("valid").waiter_lease(waiter_lease);
    let _guard = long(&a).lock().await.expect("free");
    let mutex = long(&b);
    let waiting = tokio::spawn(async move { mutex.lock_within(secs(3)).await });
    server.advance(secs(1)).await;
    machine.kill();
    assert_eq!(a.inspect("k").await.expect("answered").waiter_count(), 1);
    server.advance(secs(2)).await;
    assert_eq!(a.inspect("k").await.expect("answered").waiter_count(), 0);
    waiting.abort();
}

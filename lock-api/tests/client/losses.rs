//! The hook for losses: called once for each lost guard, at its moment, and for no other.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_api::{
    FencingToken, ForceHow, Key, Label, LockClient, LockClientBuilder, Loss, LossEvent, Mode,
};
use leasehold_sim::{Data, SimBackend, SimServer};

use crate::support::{held, ms, secs, server};
use crate::wrapped::Wrapped;

/// What the hook was called with, and when.
type Calls = Arc<Mutex<Vec<(Duration, LossEvent)>>>;

fn builder(server: &SimServer, name: &str) -> (LockClientBuilder, SimBackend, Calls) {
    let backend = server.client(name);
    let calls = Calls::default();
    let (seen, clock) = (Arc::clone(&calls), server.clone());
    let builder = LockClient::builder(backend.clone()).on_loss(move |event| {
        let call = (clock.elapsed(), event.clone());
        seen.lock().expect("no panic").push(call);
    });
    (builder, backend, calls)
}

fn client(server: &SimServer, name: &str) -> (LockClient, SimBackend, Calls) {
    let (builder, backend, calls) = builder(server, name);
    (builder.build().expect("valid"), backend, calls)
}

fn taken(calls: &Calls) -> Vec<(Duration, LossEvent)> {
    std::mem::take(&mut *calls.lock().expect("no panic"))
}

/// The reasons and moments alone.
fn reasons(calls: &Calls) -> Vec<(Duration, Loss)> {
    let calls = taken(calls);
    calls.iter().map(|(at, it)| (*at, it.reason)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_missed_deadline_is_told_at_its_moment_though_nobody_waits_for_it() {
    let server = server();
    let (builder, network, calls) = builder(&server, "a");
    let label = Label::new("billing-7").expect("short");
    let a = builder.label(label.clone()).build().expect("valid");
    let mutex = a.mutex("k").expect("valid").lease(secs(10));
    let guard = mutex.lock().await.expect("free");
    let token = guard.fencing_token().expect("tokens");
    let granted = server.elapsed();
    network.isolate();
    let valid = guard.valid_for();
    server.advance(valid - ms(1)).await;
    assert_eq!(taken(&calls), []);
    server.advance(ms(1)).await;
    let [(at, event)] = &taken(&calls)[..] else {
        panic!("called once")
    };
    assert_eq!(*at, granted + valid);
    assert_eq!(event.key, Key::new("k").expect("valid"));
    assert_eq!(event.mode, Mode::Exclusive);
    assert_eq!(event.token, Some(token));
    assert_eq!(event.reason, Loss::Deadline);
    assert_eq!(event.held, valid);
    assert_eq!(event.label, label);
    // Neither time nor the guard's end makes it another loss.
    server.advance(secs(60)).await;
    network.rejoin();
    drop(guard);
    server.advance(secs(60)).await;
    assert_eq!(taken(&calls), []);
}

#[tokio::test(start_paused = true)]
async fn each_reason_is_told_once_and_soon() {
    let server = server();
    let (a, network, calls) = client(&server, "a");
    let operator = LockClient::new(server.client("operator"));
    let lock = |key: &str| a.mutex(key).expect("valid");

    // By force: a push tells it.
    let forced = lock("forced").lock().await.expect("free");
    let tokens = vec![forced.fencing_token().expect("tokens")];
    operator
        .force_release("forced", tokens, ForceHow::Revoke)
        .await
        .expect("answered");
    server.advance(ms(100)).await;
    assert!(matches!(reasons(&calls)[..], [(_, Loss::Forced)]));

    // The server forgot it: the next renewal tells it, by hand or not.
    let by_hand = lock("by-hand").lock().await.expect("free");
    server.remove_key(by_hand.key());
    let now = server.elapsed();
    assert!(by_hand.renew().await.is_err());
    server.advance(ms(1)).await;
    let [(at, Loss::Unknown)] = reasons(&calls)[..] else {
        panic!("called once")
    };
    assert!(at <= now + ms(10), "{at:?}, asked at {now:?}");
    let renewed = lock("renewed").lock().await.expect("free");
    server.remove_key(renewed.key());
    server.advance(secs(10)).await;
    assert!(matches!(reasons(&calls)[..], [(_, Loss::Unknown)]));

    // The server's clock.
    let stepped = lock("stepped").lock().await.expect("free");
    server.step_clock_back(secs(60));
    server.advance(secs(10)).await;
    assert!(matches!(reasons(&calls)[..], [(_, Loss::ClockStepped)]));

    // A restart that kept nothing.
    let restarted = lock("restarted").lock().await.expect("free");
    server.restart(Data::Lost);
    server.advance(secs(10)).await;
    assert!(matches!(reasons(&calls)[..], [(_, Loss::Unknown)]));

    drop((forced, by_hand, renewed, stepped, restarted));
    server.advance(secs(60)).await;
    assert_eq!(taken(&calls), []);
    assert_eq!(network.pending_faults(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_and_a_longest_hold_end_at_their_moments() {
    let server = server();
    let (a, _, calls) = client(&server, "a");
    let lock = |key: &str| a.mutex(key).expect("valid").lease(secs(30));
    let limited = lock("limited").max_hold(secs(45));
    let begun = server.elapsed();
    let limited = limited.lock().await.expect("free");
    let fixed = lock("fixed").fixed_lease().lock().await.expect("free");
    let (now, valid) = (server.elapsed(), fixed.valid_for());
    server.advance(valid - ms(1)).await;
    assert_eq!(taken(&calls), []);
    server.advance(ms(1)).await;
    assert_eq!(reasons(&calls), [(now + valid, Loss::Deadline)]);
    server.advance(secs(60)).await;
    let [(at, Loss::MaxHold)] = reasons(&calls)[..] else {
        panic!("called once")
    };
    assert!(
        at >= begun + secs(45) && at <= begun + secs(45) + ms(5),
        "{at:?}"
    );
    drop((limited, fixed));
}

#[tokio::test(start_paused = true)]
async fn an_end_that_came_first_is_no_loss() {
    let server = server();
    let (a, network, calls) = client(&server, "a");
    let lock = |key: &str| a.mutex(key).expect("valid").lease(secs(10));
    let (one, two) = (lock("one").lock().await, lock("two").lock().await);
    let three = held(lock("three").try_lock().await);
    one.expect("free").release().await.expect("released");
    network.isolate();
    drop(two.expect("free"));
    // The end of a release that has no answer has begun all the same.
    let released = tokio::time::timeout(ms(100), three.release()).await;
    assert!(released.is_err());
    server.advance(secs(60)).await;
    drop(three);
    server.advance(secs(60)).await;
    assert_eq!(taken(&calls), []);
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_dropped_after_its_loss_was_lost() {
    let server = server();
    let backend = server.client("a");
    let wrapped = Wrapped::new(backend);
    let suspended = Arc::clone(&wrapped.suspended);
    let calls = Calls::default();
    let (seen, clock) = (Arc::clone(&calls), server.clone());
    let a = LockClient::builder(wrapped)
        .on_loss(move |event| {
            let call = (clock.elapsed(), event.clone());
            seen.lock().expect("no panic").push(call);
        })
        .build()
        .expect("valid");
    let guard = a.mutex("k").expect("valid").lock().await.expect("free");
    // The machine was suspended, and nothing but this code has run since.
    suspended.store(3_600, std::sync::atomic::Ordering::SeqCst);
    drop(guard);
    drop(a);
    server.advance(ms(1)).await;
    let [(_, event)] = &taken(&calls)[..] else {
        panic!("called once")
    };
    assert_eq!(event.reason, Loss::Deadline);
    assert!(event.held >= secs(3_600));
}

#[tokio::test(start_paused = true)]
async fn nested_guards_are_told_one_by_one() {
    let server = server();
    let (a, network, calls) = client(&server, "a");
    let lock = a.reentrant_rw_lock("k").expect("valid").lease(secs(10));
    let writing = lock.write().await.expect("free");
    let reading = lock.read().await.expect("nested");
    let short = lock.clone().max_hold(secs(3)).read().await.expect("nested");
    drop(reading);
    server.advance(secs(4)).await;
    assert!(matches!(reasons(&calls)[..], [(_, Loss::MaxHold)]));
    network.isolate();
    server.advance(secs(60)).await;
    let calls = taken(&calls);
    let [(_, event)] = &calls[..] else {
        panic!("called for the write guard alone: {calls:?}")
    };
    assert_eq!(
        (event.mode, event.reason),
        (Mode::Exclusive, Loss::Deadline)
    );
    drop((writing, short));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_loses_what_is_in_use() {
    let server = server();
    let (a, _, calls) = client(&server, "a");
    let guard = a.mutex("k").expect("valid").lock().await.expect("free");
    let other = a.mutex("other").expect("valid").lock().await.expect("free");
    other.release().await.expect("released");
    a.shutdown().await.expect("acknowledged");
    server.advance(ms(1)).await;
    assert!(matches!(reasons(&calls)[..], [(_, Loss::ClientClosed)]));
    drop(guard);
    server.advance(secs(60)).await;
    assert_eq!(taken(&calls), []);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_hook_stops_no_renewal() {
    let server = server();
    let backend = server.client("a");
    let a = LockClient::builder(backend)
        .on_loss(|event| {
            // The test runs under a hook that prints; what matters is that it unwinds.
            std::panic::resume_unwind(Box::new(event.key.to_string()));
        })
        .build()
        .expect("valid");
    let lock = |key: &str| a.mutex(key).expect("valid").lease(secs(10));
    let kept = lock("kept").lock().await.expect("free");
    let limited = lock("limited").max_hold(secs(3));
    let limited = limited.lock().await.expect("free");
    server.advance(secs(60)).await;
    assert!(!limited.is_valid());
    assert!(kept.is_valid());
    kept.release().await.expect("released");
}

#[tokio::test(start_paused = true)]
async fn a_backend_without_tokens_brings_none() {
    let server = server();
    let mut wrapped = Wrapped::new(server.client("a"));
    wrapped.capabilities.fencing_tokens = false;
    let tokens: Arc<Mutex<Vec<Option<FencingToken>>>> = Arc::default();
    let seen = Arc::clone(&tokens);
    let a = LockClient::builder(wrapped)
        .on_loss(move |event| seen.lock().expect("no panic").push(event.token))
        .build()
        .expect("valid");
    let lock = a.mutex("k").expect("valid").max_hold(secs(1));
    let guard = lock.lock().await.expect("free");
    server.advance(secs(2)).await;
    assert_eq!(*tokens.lock().expect("no panic"), [None]);
    drop(guard);
}

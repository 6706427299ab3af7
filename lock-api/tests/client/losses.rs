//! The loss hook: it is called once for each lost guard, at the time of the loss.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_api::{
    FencingToken, ForceMode, ForceReply, Key, Label, LockBackend, LockClient, LockClientBuilder,
    Loss, LossEvent, Mode,
};
use leasehold_sim::{Call, Data, Fault, SimBackend, SimServer};

use crate::support::{assert_is, held, lock, ms, mutex_of, reentrant_rw, secs, server};
use crate::wrapped::Wrapped;

/// The time and the event of each call of the hook.
type Calls = Arc<Mutex<Vec<(Duration, LossEvent)>>>;

/// A builder of a client on this backend, and the calls of its hook.
fn on(server: &SimServer, backend: impl LockBackend) -> (LockClientBuilder, Calls) {
    let calls = Calls::default();
    let (seen, clock) = (Arc::clone(&calls), server.clone());
    let builder = LockClient::builder(backend).on_loss(move |event| {
        let call = (clock.elapsed(), event.clone());
        seen.lock().expect("no panic").push(call);
    });
    (builder, calls)
}

/// A server, a client, its network, and the calls of its hook.
fn connected() -> (SimServer, LockClient, SimBackend, Calls) {
    let server = server();
    let network = server.client("a");
    let (builder, calls) = on(&server, network.clone());
    (server, builder.build().expect("valid"), network, calls)
}

fn take_calls(calls: &Calls) -> Vec<(Duration, LossEvent)> {
    std::mem::take(&mut *calls.lock().expect("no panic"))
}

/// The only call since the last look.
#[track_caller]
fn only_call(calls: &Calls) -> (Duration, LossEvent) {
    let mut calls = take_calls(calls);
    assert_eq!(calls.len(), 1, "{calls:?}");
    calls.remove(0)
}

#[tokio::test(start_paused = true)]
async fn missed_deadline_calls_the_hook_in_time() {
    let server = server();
    let network = server.client("a");
    let (builder, calls) = on(&server, network.clone());
    let label = Label::new("billing-7").expect("short");
    let a = builder.label(label.clone()).build().expect("valid");
    let mutex = mutex_of(&a).lease(secs(10));
    let guard = mutex.lock().await.expect("free");
    let token = guard.fencing_token();
    let granted = server.elapsed();
    network.isolate();
    let valid = guard.valid_for();
    server.advance(valid - ms(1)).await;
    assert_eq!(take_calls(&calls), []);
    server.advance(ms(1)).await;
    let (at, event) = only_call(&calls);
    assert_eq!(at, granted + valid);
    assert_eq!(event.key, Key::new("k").expect("valid"));
    assert_eq!(event.mode, Mode::Exclusive);
    assert_eq!(event.token, token);
    assert_eq!(event.reason, Loss::Deadline);
    assert_eq!(event.held, valid);
    assert_eq!(event.label, label);
    // Neither the passing of time nor the drop of the guard is another loss.
    server.advance(secs(60)).await;
    network.rejoin();
    drop(guard);
    server.advance(secs(60)).await;
    assert_eq!(take_calls(&calls), []);
}

#[tokio::test(start_paused = true)]
async fn hook_is_called_once_for_each_reason() {
    let (server, a, network, calls) = connected();
    let operator = LockClient::new(server.client("operator"));
    let lock = |key: &str| a.mutex(key).expect("valid");

    // A forced release: a push announces it.
    let forced = lock("forced").lock().await.expect("free");
    let tokens = vec![forced.fencing_token()];
    let release = operator.force_release("forced", tokens, ForceMode::Revoke);
    assert_is!(release.await => Ok(ForceReply::Forced { .. }));
    server.advance(ms(100)).await;
    assert_eq!(only_call(&calls).1.reason, Loss::Forced);

    // The server lost the key: the next renewal, manual or automatic, reports it.
    let manual = lock("manual").lock().await.expect("free");
    server.remove_key(manual.key());
    let now = server.elapsed();
    assert!(manual.renew().await.is_err());
    server.advance(ms(1)).await;
    let (at, event) = only_call(&calls);
    assert_eq!(event.reason, Loss::Unknown);
    assert!(at <= now + ms(10), "{at:?}, renewed at {now:?}");
    let renewed = lock("renewed").lock().await.expect("free");
    server.remove_key(renewed.key());
    server.advance(secs(10)).await;
    assert_eq!(only_call(&calls).1.reason, Loss::Unknown);

    // The server's clock steps.
    let stepped = lock("stepped").lock().await.expect("free");
    server.step_clock_back(secs(60));
    server.advance(secs(10)).await;
    assert_eq!(only_call(&calls).1.reason, Loss::ClockStepped);

    // A restart without data.
    let restarted = lock("restarted").lock().await.expect("free");
    server.restart(Data::Lost);
    server.advance(secs(10)).await;
    assert_eq!(only_call(&calls).1.reason, Loss::Unknown);

    drop((forced, manual, renewed, stepped, restarted));
    server.advance(secs(60)).await;
    assert_eq!(take_calls(&calls), []);
    assert_eq!(network.pending_faults(), 0);
}

#[tokio::test(start_paused = true)]
async fn forced_release_before_the_subscription_is_noticed_with_it() {
    let (server, a, network, calls) = connected();
    let operator = LockClient::new(server.client("operator"));
    network.inject_into(Call::Listen, Fault::DelayRequest(ms(300)));
    let guard = lock(&a).await;
    let force = async |token: FencingToken| {
        let forced = operator.force_release("k", vec![token], ForceMode::Revoke);
        assert_is!(forced.await => Ok(ForceReply::Forced { .. }));
    };
    force(guard.fencing_token()).await;
    server.advance(ms(100)).await;
    assert_eq!(take_calls(&calls), [], "nobody listens yet");
    server.advance(ms(300)).await;
    assert_eq!(only_call(&calls).1.reason, Loss::Forced);
    guard.release().await.expect("answered");

    // The same after the subscription was lost.
    let guard = lock(&a).await;
    network.drop_connection();
    force(guard.fencing_token()).await;
    server.advance(ms(700)).await;
    assert_eq!(only_call(&calls).1.reason, Loss::Forced);
}

#[tokio::test(start_paused = true)]
async fn fixed_lease_and_max_hold_call_the_hook_in_time() {
    let (server, a, _, calls) = connected();
    let lock = |key: &str| a.mutex(key).expect("valid").lease(secs(30));
    let limited = lock("limited").max_hold(secs(45));
    let start = server.elapsed();
    let limited = limited.lock().await.expect("free");
    let fixed = lock("fixed").fixed_lease().lock().await.expect("free");
    let (now, valid) = (server.elapsed(), fixed.valid_for());
    server.advance(valid - ms(1)).await;
    assert_eq!(take_calls(&calls), []);
    server.advance(ms(1)).await;
    let (at, event) = only_call(&calls);
    assert_eq!((at, event.reason), (now + valid, Loss::Deadline));
    server.advance(secs(60)).await;
    let (at, event) = only_call(&calls);
    assert_eq!(event.reason, Loss::MaxHold);
    let due = start + secs(45);
    assert!(at >= due && at <= due + ms(5), "{at:?}");
    drop((limited, fixed));
}

#[tokio::test(start_paused = true)]
async fn released_guard_is_not_lost() {
    let (server, a, network, calls) = connected();
    let lock = |key: &str| a.mutex(key).expect("valid").lease(secs(10));
    let (one, two) = (lock("one").lock().await, lock("two").lock().await);
    let three = held(lock("three").try_lock().await);
    one.expect("free").release().await.expect("released");
    network.isolate();
    drop(two.expect("free"));
    // A release without a reply counts too.
    let released = tokio::time::timeout(ms(100), three.release()).await;
    assert!(released.is_err());
    server.advance(secs(60)).await;
    drop(three);
    server.advance(secs(60)).await;
    assert_eq!(take_calls(&calls), []);
}

#[tokio::test(start_paused = true)]
async fn guard_dropped_after_its_deadline_is_lost() {
    let server = server();
    let wrapped = Wrapped::new(server.client("a"));
    let suspended = Arc::clone(&wrapped.suspended);
    let (builder, calls) = on(&server, wrapped);
    let a = builder.build().expect("valid");
    let guard = lock(&a).await;
    // The machine was suspended, and no other code has run since.
    suspended.store(3_600, std::sync::atomic::Ordering::SeqCst);
    drop(guard);
    drop(a);
    server.advance(ms(1)).await;
    let (_, event) = only_call(&calls);
    assert_eq!(event.reason, Loss::Deadline);
    assert!(event.held >= secs(3_600));
}

#[tokio::test(start_paused = true)]
async fn hook_is_called_for_each_nested_guard() {
    let (server, a, network, calls) = connected();
    let lock = reentrant_rw(&a).lease(secs(10));
    let writing = lock.write().await.expect("free");
    let reading = lock.read().await.expect("nested");
    let short = lock.clone().max_hold(secs(3)).read().await.expect("nested");
    drop(reading);
    server.advance(secs(4)).await;
    assert_eq!(only_call(&calls).1.reason, Loss::MaxHold);
    network.isolate();
    server.advance(secs(60)).await;
    let (_, event) = only_call(&calls);
    assert_eq!(event.mode, Mode::Exclusive);
    assert_eq!(event.reason, Loss::Deadline);
    drop((writing, short));
}

#[tokio::test(start_paused = true)]
async fn shutdown_loses_live_guards() {
    let (server, a, _, calls) = connected();
    let guard = lock(&a).await;
    let other = a.mutex("other").expect("valid").lock().await.expect("free");
    other.release().await.expect("released");
    a.shutdown().await.expect("acknowledged");
    server.advance(ms(1)).await;
    assert_eq!(only_call(&calls).1.reason, Loss::ClientClosed);
    drop(guard);
    server.advance(secs(60)).await;
    assert_eq!(take_calls(&calls), []);
}

#[tokio::test(start_paused = true)]
async fn panic_in_the_hook_stops_no_renewal() {
    let server = server();
    let builder = LockClient::builder(server.client("a")).on_loss(|event| {
        // Unwinds without the panic hook, which would print.
        std::panic::resume_unwind(Box::new(event.key.to_string()));
    });
    let a = builder.build().expect("valid");
    let lock = |key: &str| a.mutex(key).expect("valid").lease(secs(10));
    let kept = lock("kept").lock().await.expect("free");
    let limited = lock("limited").max_hold(secs(3));
    let limited = limited.lock().await.expect("free");
    server.advance(secs(60)).await;
    assert!(!limited.is_valid());
    assert!(kept.is_valid());
    kept.release().await.expect("released");
}

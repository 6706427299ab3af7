//! The loss hook: it is called once for each lost guard, at the time of the loss.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_api::{
    FencingToken, ForceMode, Key, Label, LockClient, LockClientBuilder, Loss, LossEvent, Mode,
};
use leasehold_sim::{Call, Data, Fault, SimBackend, SimServer};

use crate::support::{held, lock, ms, mutex_of, reentrant_rw, secs, server};
use crate::wrapped::Wrapped;

/// The time and the event of each call of the hook.
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

fn take_calls(calls: &Calls) -> Vec<(Duration, LossEvent)> {
    std::mem::take(&mut *calls.lock().expect("no panic"))
}

/// Returns the times and reasons, and clears the calls.
fn reasons(calls: &Calls) -> Vec<(Duration, Loss)> {
    let calls = take_calls(calls);
    calls.iter().map(|(at, it)| (*at, it.reason)).collect()
}

#[tokio::test(start_paused = true)]
async fn missed_deadline_calls_the_hook_in_time() {
    let server = server();
    let (builder, network, calls) = builder(&server, "a");
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
    let [(at, event)] = &take_calls(&calls)[..] else {
        panic!("expected one call")
    };
    assert_eq!(*at, granted + valid);
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
    let server = server();
    let (a, network, calls) = client(&server, "a");
    let operator = LockClient::new(server.client("operator"));
    let lock = |key: &str| a.mutex(key).expect("valid");

    // A forced release: a push announces it.
    let forced = lock("forced").lock().await.expect("free");
    let tokens = vec![forced.fencing_token()];
    operator
        .force_release("forced", tokens, ForceMode::Revoke)
        .await
        .expect("answered");
    server.advance(ms(100)).await;
    assert!(matches!(reasons(&calls)[..], [(_, Loss::Forced)]));

    // The server lost the key: the next renewal, manual or automatic, reports it.
    let manual = lock("manual").lock().await.expect("free");
    server.remove_key(manual.key());
    let now = server.elapsed();
    assert!(manual.renew().await.is_err());
    server.advance(ms(1)).await;
    let [(at, Loss::Unknown)] = reasons(&calls)[..] else {
        panic!("expected one call")
    };
    assert!(at <= now + ms(10), "{at:?}, renewed at {now:?}");
    let renewed = lock("renewed").lock().await.expect("free");
    server.remove_key(renewed.key());
    server.advance(secs(10)).await;
    assert!(matches!(reasons(&calls)[..], [(_, Loss::Unknown)]));

    // The server's clock steps.
    let stepped = lock("stepped").lock().await.expect("free");
    server.step_clock_back(secs(60));
    server.advance(secs(10)).await;
    assert!(matches!(reasons(&calls)[..], [(_, Loss::ClockStepped)]));

    // A restart without data.
    let restarted = lock("restarted").lock().await.expect("free");
    server.restart(Data::Lost);
    server.advance(secs(10)).await;
    assert!(matches!(reasons(&calls)[..], [(_, Loss::Unknown)]));

    drop((forced, manual, renewed, stepped, restarted));
    server.advance(secs(60)).await;
    assert_eq!(take_calls(&calls), []);
    assert_eq!(network.pending_faults(), 0);
}

#[tokio::test(start_paused = true)]
async fn forced_release_before_the_subscription_is_noticed_with_it() {
    let server = server();
    let (a, network, calls) = client(&server, "a");
    let operator = LockClient::new(server.client("operator"));
    network.inject_into(Call::Listen, Fault::DelayRequest(ms(300)));
    let guard = lock(&a).await;
    let force = async |token: FencingToken| {
        let forced = operator.force_release("k", vec![token], ForceMode::Revoke);
        forced.await.expect("answered");
    };
    force(guard.fencing_token()).await;
    server.advance(ms(100)).await;
    assert_eq!(take_calls(&calls), [], "nobody listens yet");
    server.advance(ms(300)).await;
    assert!(matches!(reasons(&calls)[..], [(_, Loss::Forced)]));
    guard.release().await.expect("answered");

    // The same after the subscription was lost.
    let guard = lock(&a).await;
    network.drop_connection();
    force(guard.fencing_token()).await;
    server.advance(ms(700)).await;
    assert!(matches!(reasons(&calls)[..], [(_, Loss::Forced)]));
}

#[tokio::test(start_paused = true)]
async fn fixed_lease_and_max_hold_call_the_hook_in_time() {
    let server = server();
    let (a, _, calls) = client(&server, "a");
    let lock = |key: &str| a.mutex(key).expect("valid").lease(secs(30));
    let limited = lock("limited").max_hold(secs(45));
    let start = server.elapsed();
    let limited = limited.lock().await.expect("free");
    let fixed = lock("fixed").fixed_lease().lock().await.expect("free");
    let (now, valid) = (server.elapsed(), fixed.valid_for());
    server.advance(valid - ms(1)).await;
    assert_eq!(take_calls(&calls), []);
    server.advance(ms(1)).await;
    assert_eq!(reasons(&calls), [(now + valid, Loss::Deadline)]);
    server.advance(secs(60)).await;
    let [(at, Loss::MaxHold)] = reasons(&calls)[..] else {
        panic!("expected one call")
    };
    assert!(
        at >= start + secs(45) && at <= start + secs(45) + ms(5),
        "{at:?}"
    );
    drop((limited, fixed));
}

#[tokio::test(start_paused = true)]
async fn released_guard_is_not_lost() {
    let server = server();
    let (a, network, calls) = client(&server, "a");
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
    let guard = lock(&a).await;
    // The machine was suspended, and no other code has run since.
    suspended.store(3_600, std::sync::atomic::Ordering::SeqCst);
    drop(guard);
    drop(a);
    server.advance(ms(1)).await;
    let [(_, event)] = &take_calls(&calls)[..] else {
        panic!("expected one call")
    };
    assert_eq!(event.reason, Loss::Deadline);
    assert!(event.held >= secs(3_600));
}

#[tokio::test(start_paused = true)]
async fn hook_is_called_for_each_nested_guard() {
    let server = server();
    let (a, network, calls) = client(&server, "a");
    let lock = reentrant_rw(&a).lease(secs(10));
    let writing = lock.write().await.expect("free");
    let reading = lock.read().await.expect("nested");
    let short = lock.clone().max_hold(secs(3)).read().await.expect("nested");
    drop(reading);
    server.advance(secs(4)).await;
    assert!(matches!(reasons(&calls)[..], [(_, Loss::MaxHold)]));
    network.isolate();
    server.advance(secs(60)).await;
    let calls = take_calls(&calls);
    let [(_, event)] = &calls[..] else {
        panic!("expected one call, for the write guard: {calls:?}")
    };
    assert_eq!(
        (event.mode, event.reason),
        (Mode::Exclusive, Loss::Deadline)
    );
    drop((writing, short));
}

#[tokio::test(start_paused = true)]
async fn shutdown_loses_live_guards() {
    let server = server();
    let (a, _, calls) = client(&server, "a");
    let guard = lock(&a).await;
    let other = a.mutex("other").expect("valid").lock().await.expect("free");
    other.release().await.expect("released");
    a.shutdown().await.expect("acknowledged");
    server.advance(ms(1)).await;
    assert!(matches!(reasons(&calls)[..], [(_, Loss::ClientClosed)]));
    drop(guard);
    server.advance(secs(60)).await;
    assert_eq!(take_calls(&calls), []);
}

#[tokio::test(start_paused = true)]
async fn panic_in_the_hook_stops_no_renewal() {
    let server = server();
    let backend = server.client("a");
    let a = LockClient::builder(backend)
        .on_loss(|event| {
            // Unwinds without the panic hook, which would print.
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
async fn loss_event_has_no_token_without_the_capability() {
    let server = server();
    let mut wrapped = Wrapped::new(server.client("a"));
    wrapped.capabilities.fencing_tokens = false;
    let tokens: Arc<Mutex<Vec<FencingToken>>> = Arc::default();
    let seen = Arc::clone(&tokens);
    let a = LockClient::builder(wrapped)
        .on_loss(move |event| seen.lock().expect("no panic").push(event.token))
        .allow_missing_fencing_tokens()
        .build()
        .expect("valid");
    let lock = mutex_of(&a).max_hold(secs(1));
    let guard = lock.lock().await.expect("free");
    server.advance(secs(2)).await;
    assert_eq!(*tokens.lock().expect("no panic"), [FencingToken::NONE]);
    drop(guard);
}

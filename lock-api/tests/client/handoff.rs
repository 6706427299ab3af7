//! Hand-offs of a hold from one client to another.

use std::time::Duration;

use leasehold_api::{
    Error, ForceMode, Guard, Handoff, HandoffFailed, InvalidInput, LockClient, LockSpec, Loss,
    Mode, MutexGuard, Policy, WriteGuard, guard_kind,
};
use leasehold_sim::{Call, Fault, SimServer};

use crate::support::{
    assert_error, assert_is, clients, connected, force, held, lock, loss, ms, mutex_of, rw_lock_of,
    secs,
};

async fn send(locks: &LockClient) -> Handoff {
    let guard = lock(locks).await;
    guard.into_handoff().await.expect("answered")
}

/// A copy of the hand-off, through its text.
fn copy(handoff: &Handoff) -> Handoff {
    handoff.to_secret_text().parse().expect("its own text")
}

async fn adopt(locks: &LockClient, handoff: Handoff) -> Result<MutexGuard, HandoffFailed<Handoff>> {
    locks.adopt(handoff).await
}

async fn is_free(locks: &LockClient) -> bool {
    let view = locks.inspect("k").await.expect("answered");
    (view.holder_count(), view.waiter_count()) == (0, 0)
}

#[tokio::test(start_paused = true)]
async fn handed_off_hold_is_not_lost() {
    let (_, [a]) = clients();
    let guard = lock(&a).await;
    let (token, lost) = (guard.fencing_token(), guard.lost());
    let handoff = guard.into_handoff().await.expect("answered");
    assert_eq!(handoff.fencing_token(), token);
    assert_eq!(handoff.kind(), LockSpec::mutex().kind());
    assert_eq!(handoff.mode(), Mode::Exclusive);
    let read = a.rw_lock("r").expect("valid").read().await.expect("free");
    let handoff = read.into_handoff().await.expect("answered");
    assert_eq!(handoff.mode(), Mode::Shared);
    let outcome = tokio::time::timeout(secs(100), lost).await;
    assert!(outcome.is_err(), "a hand-off is no loss");
}

#[tokio::test(start_paused = true)]
async fn handoff_is_not_renewed_in_transit() {
    let (server, [a, b]) = clients();
    let guard = lock(&a).await;
    server.advance(secs(9)).await;
    let handoff = guard.into_handoff().await.expect("answered");
    let made = server.elapsed();
    let next = mutex_of(&b).lock().await.expect("granted");
    let took = server.elapsed() - made;
    let one_lease = secs(29)..secs(31);
    assert!(one_lease.contains(&took), "{took:?}");
    let late = adopt(&a, handoff).await.expect_err("its lease has expired");
    assert_error!(late.error(), HandoffSpent);
    assert!(next.is_valid());
}

#[tokio::test(start_paused = true)]
async fn no_lost_message_makes_two_guards_or_none_that_lasts() {
    let calls = [Call::Release, Call::Renew];
    let faults = [
        Fault::LoseRequest,
        Fault::LoseReply,
        Fault::DuplicateRequest(ms(500)),
        Fault::DelayRequest(secs(2)),
        Fault::DelayReply(secs(2)),
    ];
    for (call, fault) in calls.into_iter().flat_map(|call| faults.map(|f| (call, f))) {
        let (server, [(a, _), (b, network)]) = connected();
        let handoff = send(&a).await;
        network.inject_into(call, fault);
        let result = adopt(&b, copy(&handoff)).await;
        assert_eq!(network.pending_faults(), 0, "{call:?} {fault:?}");
        let again = adopt(&a, copy(&handoff)).await;
        assert!(
            again.is_err(),
            "{call:?} {fault:?} gave {result:?} and {again:?}"
        );
        match result {
            Ok(guard) => {
                server.advance(secs(100)).await;
                assert!(guard.is_valid(), "{call:?} {fault:?}");
            }
            Err(failed) => {
                let unknown = matches!(failed.error(), Error::OutcomeUnknown { .. });
                let expected = match fault {
                    Fault::DelayRequest(_) => true,
                    Fault::LoseReply | Fault::DelayReply(_) => call == Call::Release,
                    _ => false,
                };
                assert!(unknown && expected, "{call:?} {fault:?}: {failed}");
                server.advance(secs(31)).await;
                assert!(is_free(&a).await, "the hold expires with its lease");
            }
        }
    }
}

/// A transient error invites a retry, so it must not repeat forever.
#[tokio::test(start_paused = true)]
async fn lost_reply_is_outcome_unknown_once_and_then_spent() {
    let (_, [(a, _), (b, network)]) = connected();
    let handoff = send(&a).await;
    network.inject_into(Call::Release, Fault::LoseReply);
    let failed = adopt(&b, handoff).await.expect_err("no reply");
    assert_error!(failed.error(), OutcomeUnknown);
    let failed = adopt(&b, failed.given_back()).await;
    let failed = failed.expect_err("already adopted");
    let spent = matches!(failed.error(), Error::HandoffSpent { .. });
    assert!(spent && !failed.error().is_transient(), "{failed}");
}

#[tokio::test(start_paused = true)]
async fn returned_handoff_can_be_adopted_again() {
    let (server, [(a, _), (b, network)]) = connected();
    // No request arrived, so the hand-off is unchanged.
    let handoff = send(&a).await;
    let late = copy(&handoff);
    network.isolate();
    let failed = adopt(&b, handoff).await.expect_err("the network is down");
    assert!(failed.error().is_transient(), "{failed}");
    network.rejoin();
    let guard = adopt(&b, failed.given_back()).await.expect("answered");
    guard.release().await.expect("answered");
    let spent = adopt(&b, late).await.expect_err("adopted and released");
    assert_error!(spent.error(), HandoffSpent);
    assert_eq!(loss(spent.error()), Loss::Unknown);

    // The network fails after the adoption took effect. Only this value can continue it.
    let handoff = send(&a).await;
    let text = handoff.to_secret_text();
    let outage = async {
        tokio::time::sleep(ms(3)).await;
        network.isolate();
    };
    let (failed, ()) = tokio::join!(adopt(&b, handoff), outage);
    let failed = failed.expect_err("the network is down");
    network.rejoin();
    let spent = adopt(&a, text.parse().expect("valid")).await;
    let spent = spent.expect_err("b adopted it");
    assert_error!(spent.error(), HandoffSpent);
    let guard = adopt(&b, failed.given_back()).await.expect("answered");
    server.advance(secs(100)).await;
    assert!(guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn dropped_handoff_leaves_at_most_one_holder() {
    for micros in (0..9_000).step_by(500) {
        let (server, [a, b]) = clients();
        let limit = Duration::from_micros(micros);
        let guard = lock(&a).await;
        let sent = tokio::time::timeout(limit, guard.into_handoff()).await;
        let Ok(handoff) = sent else {
            server.advance(ms(20)).await;
            assert!(is_free(&b).await, "{limit:?}: dropped during the hand-off");
            continue;
        };
        let handoff = handoff.expect("answered");
        let text = copy(&handoff);
        let adopted = tokio::time::timeout(limit, adopt(&b, handoff)).await;
        server.advance(ms(20)).await;
        if let Ok(guard) = adopted {
            assert!(guard.expect("answered").is_valid());
        } else if let Ok(guard) = adopt(&a, text).await {
            assert!(guard.is_valid(), "the first adoption did not take effect");
            drop(guard);
        }
        server.advance(secs(31)).await;
        assert!(is_free(&a).await, "{limit:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn handoff_keeps_the_policy_and_waiter_lease() {
    let (_, [a]) = clients();
    let rw = rw_lock_of(&a).policy(Policy::WriterPreference);
    let rw = rw.waiter_lease(secs(3));
    let guard = rw.write().await.expect("free");
    let handoff = guard.into_handoff().await.expect("answered");
    let _guard: WriteGuard = a.adopt(handoff).await.expect("answered");
}

#[tokio::test(start_paused = true)]
async fn handoff_keeps_fixed_lease_and_max_hold() {
    let (server, [a, b]) = clients();
    let mutex = mutex_of(&a);
    let fixed = mutex.clone().lease(secs(10)).fixed_lease().lock().await;
    let fixed = fixed.expect("free");
    let taken = server.elapsed();
    server.advance(secs(2)).await;
    let handoff = fixed.into_handoff().await.expect("answered");
    server.advance(secs(3)).await;
    let guard = adopt(&b, copy(&handoff)).await.expect("answered");
    let left = guard.valid_for();
    assert!(left > ms(4_800) && left < secs(5), "{left:?}");
    assert_eq!(guard.lost().await, Loss::Deadline);
    let held_for = server.elapsed() - taken;
    assert!(held_for <= secs(10) && held_for > ms(9_800), "{held_for:?}");
    drop(guard);
    server.advance(secs(1)).await;

    // A renewal by hand still extends it.
    let fixed = mutex.clone().lease(secs(10)).fixed_lease().lock().await;
    let handoff = fixed.expect("free").into_handoff().await.expect("answered");
    server.advance(secs(5)).await;
    let guard = adopt(&b, handoff).await.expect("answered");
    let left = guard.renew().await.expect("held");
    assert!(left > secs(9) && left < secs(10), "{left:?}");
    drop(guard);
    server.advance(secs(1)).await;

    // A fixed lease that ended in transit is lost.
    let fixed = mutex.clone().lease(secs(10)).fixed_lease().lock().await;
    let fixed = fixed.expect("free");
    server.advance(secs(7)).await;
    let handoff = fixed.into_handoff().await.expect("answered");
    server.advance(secs(4)).await;
    let late = adopt(&b, handoff).await.expect_err("its lease has ended");
    assert_eq!(loss(late.error()), Loss::Deadline);
    server.advance(secs(1)).await;
    assert!(is_free(&b).await, "the adopter released it");

    let limited = mutex.max_hold(secs(60)).lock().await.expect("free");
    let taken = server.elapsed();
    server.advance(secs(20)).await;
    let handoff = limited.into_handoff().await.expect("answered");
    server.advance(secs(20)).await;
    let guard = adopt(&b, copy(&handoff)).await.expect("answered");
    assert_eq!(guard.lost().await, Loss::MaxHold);
    let held_for = server.elapsed() - taken;
    assert!(held_for <= secs(60) && held_for > secs(59), "{held_for:?}");
}

#[tokio::test(start_paused = true)]
async fn wrong_kind_is_named() {
    let (_, [a, b]) = clients();
    let handoff = send(&a).await;
    let failed = b.adopt::<guard_kind::Write>(handoff).await;
    let says = "key \"k\": a hand-off of a mutex guard cannot be adopted as a write guard";
    assert_eq!(failed.expect_err("a mutex").to_string(), says);
}

async fn refused_handoff<K: guard_kind::Transferable>(guard: Guard<K>, expected: &str) -> Guard<K> {
    let key = guard.key().clone();
    let failed = guard.into_handoff().await.expect_err("not supported");
    assert_is!(
        failed.error() => Error::InvalidInput { problem: InvalidInput::HandoffGuard { .. }, .. }
    );
    let expected = format!("key {key:?}: {expected} cannot be handed off");
    assert_eq!(failed.to_string(), expected);
    failed.given_back()
}

#[tokio::test(start_paused = true)]
async fn refused_guard_is_returned_and_the_error_names_its_kind() {
    let (server, [a]) = clients();
    let reentrant = a.mutex("r").expect("valid").reentrant().expect("supported");
    let guard = reentrant.lock().await.expect("free");
    let calls = server.messages().len();
    let guard = refused_handoff(guard, "a guard of a reentrant handle").await;
    assert_eq!(server.messages().len(), calls, "nothing was sent");
    assert!(guard.is_valid());
    let once = adopt(&a, send(&a).await).await.expect("answered");
    let guard = refused_handoff(once, "an adopted guard").await;
    assert!(guard.is_valid());
    let mutex = a.mutex("m").expect("valid");
    let guard = mutex.lock().await.expect("free");
    guard.release().await.expect("answered");
    let failed = guard.into_handoff().await.expect_err("released");
    assert_error!(failed.error(), Released);
}

#[tokio::test(start_paused = true)]
async fn outage_returns_the_guard() {
    let (server, [(a, network)]) = connected();
    let guard = lock(&a).await;
    network.isolate();
    let began = server.elapsed();
    let failed = guard.into_handoff().await.expect_err("the network is down");
    assert!(failed.error().is_transient(), "{failed}");
    assert!(server.elapsed() - began <= secs(3));
    network.rejoin();
    let guard = failed.given_back();
    server.advance(secs(60)).await;
    assert!(guard.is_valid());
    let release = guard.release().await.expect("answered");
    assert_eq!(release, 0, "no transfer hold is left");
}

#[tokio::test(start_paused = true)]
async fn handoff_succeeds_after_a_failed_attempt() {
    let (server, [(a, network), (b, _)]) = connected();
    let guard = lock(&a).await;
    for _ in 0..3 {
        network.inject_into(Call::Acquire, Fault::LoseReply);
    }
    // The transfer hold of the first attempt remains.
    network.inject_into(Call::Release, Fault::LoseRequest);
    let failed = guard.into_handoff().await.expect_err("no reply");
    assert_error!(failed.error(), OutcomeUnknown);
    assert_eq!(network.pending_faults(), 1);
    let handoff = failed.given_back().into_handoff().await.expect("answered");
    let guard = adopt(&b, handoff).await.expect("answered");
    server.advance(secs(60)).await;
    assert_eq!(network.pending_faults(), 0);
    let release = guard.release().await.expect("answered");
    assert_eq!(release, 0, "no transfer hold is left");
}

#[tokio::test(start_paused = true)]
async fn lost_hold_is_not_handed_off() {
    let (server, [a, b]) = clients();
    for taken in [false, true] {
        let guard = lock(&a).await;
        remove_key(&server).await;
        let thief = taken.then(|| mutex_of(&b));
        let thief = match &thief {
            Some(mutex) => Some(held(mutex.try_lock().await)),
            None => None,
        };
        let failed = guard.into_handoff().await.expect_err("the hold is lost");
        assert_eq!(loss(failed.error()), Loss::Unknown);
        assert!(!failed.given_back().is_valid());
        assert!(thief.is_none_or(|guard| guard.is_valid()));
        server.advance(ms(20)).await;
        assert!(is_free(&b).await, "the attempt leaves nothing behind");
    }
}

async fn remove_key(server: &SimServer) {
    server.remove_key("k");
    server.advance(ms(5)).await;
}

#[tokio::test(start_paused = true)]
async fn revoked_hold_is_not_adopted() {
    let (_, [a, b]) = clients();
    let handoff = send(&a).await;
    force(&b, "k", ForceMode::Revoke).await;
    let spent = adopt(&b, handoff).await.expect_err("revoked");
    assert_eq!(loss(spent.error()), Loss::Forced);
}

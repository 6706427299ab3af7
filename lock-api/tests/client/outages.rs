//! Calls without a reply: each operation takes effect once, and each call ends by its deadline.

use std::sync::atomic::Ordering;

use leasehold_api::{Error, LockClient, Loss, MutexGuard, Outcome};
use leasehold_sim::tools::Entry;
use leasehold_sim::{Call, Data, Fault, SimOptions, SimServer, Tail};

use crate::support::{
    assert_error, assert_is, client, clients, connected, contended, held, lock, lost_by, ms,
    mutex_of, reentrant_rw, rw_lock_of, secs, server, timed_out, upgraded, wait,
};
use crate::wrapped::Wrapped;

#[tokio::test(start_paused = true)]
async fn try_lock_ends_after_one_call_with_outcome_unknown() {
    let (server, [(a, network)]) = connected();
    let mutex = mutex_of(&a);
    drop(mutex.lock().await.expect("free"));
    server.advance(secs(1)).await;
    network.isolate();
    let begun = server.elapsed();
    assert_error!(mutex.try_lock().await, OutcomeUnknown);
    assert!(server.elapsed() - begun <= secs(1) + ms(1));
    network.rejoin();
    server.advance(secs(2)).await;
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn server_that_never_answered_is_unavailable() {
    let (server, [(a, network)]) = connected();
    network.isolate();
    assert_error!(mutex_of(&a).try_lock().await, Unavailable);
    let begun = server.elapsed();
    assert_error!(mutex_of(&a).try_lock_for(ms(2_500)).await, Unavailable);
    assert!(server.elapsed() - begun <= ms(2_501));
}

#[tokio::test(start_paused = true)]
async fn lock_succeeds_soon_after_an_outage() {
    let (server, [a]) = clients();
    server.stop();
    let waiting = wait(&a);
    server.advance(secs(60)).await;
    assert!(!waiting.is_finished());
    server.start(Data::Kept);
    let begun = server.elapsed();
    let _held = waiting.await.expect("no panic").expect("granted");
    assert!(server.elapsed() - begun < secs(1));
}

#[tokio::test(start_paused = true)]
async fn contended_wait_times_out_with_a_value() {
    let (server, [a, b]) = clients();
    let _guard = lock(&a).await;
    let mutex = mutex_of(&b);
    for wait in [ms(0), ms(1), ms(3), ms(50), ms(999), secs(4), secs(12)] {
        let begun = server.elapsed();
        let outcome = mutex.try_lock_for(wait).await;
        let took = server.elapsed() - begun;
        if wait.is_zero() {
            contended(&outcome);
        } else {
            timed_out(&outcome, wait);
        }
        assert!(took <= wait.max(ms(10)), "{wait:?} took {took:?}");
    }
    server.advance(ms(100)).await;
    let left = server.left_behind();
    assert_eq!(left.lines().count(), 1, "{left}");
}

#[tokio::test(start_paused = true)]
async fn wait_that_ends_before_its_answer_leaves_nothing() {
    let (server, [(a, network)]) = connected();
    let mutex = mutex_of(&a);
    drop(held(mutex.try_lock().await));
    server.advance(ms(100)).await;
    // The server executed this acquire, but its answer comes after the wait.
    network.inject_into(Call::Acquire, Fault::DelayReply(ms(400)));
    timed_out(&mutex.try_lock_for(ms(300)).await, ms(300));
    server.advance(ms(100)).await;
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn wait_that_ends_during_an_outage_is_an_error_if_a_call_had_its_time() {
    let (server, [(a, network)]) = connected();
    let mutex = mutex_of(&a);
    let unavailable =
        |outcome: &Result<_, Error>| matches!(outcome, Err(Error::Unavailable { .. }));
    for answered_before in [false, true] {
        // The server refuses connections, so each call fails at once.
        server.stop();
        let refused = mutex.try_lock_for(ms(300)).await;
        assert!(unavailable(&refused), "{answered_before}: {refused:?}");
        server.start(Data::Kept);
        // The server is silent. A wait that ends before the call timeout is a timeout; a longer one is an error.
        network.isolate();
        timed_out(&mutex.try_lock_for(ms(900)).await, ms(900));
        let silent = mutex.try_lock_for(ms(1_100)).await;
        let failed = unavailable(&silent) || matches!(silent, Err(Error::OutcomeUnknown { .. }));
        assert!(failed, "{answered_before}: {silent:?}");
        network.rejoin();
        server.advance(secs(2)).await;
        drop(held(mutex.try_lock().await));
        server.advance(secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn wait_continues_after_the_queue_was_lost() {
    let (server, [a, b]) = clients();
    let guard = lock(&a).await;
    let waiting = wait(&b);
    server.advance(secs(2)).await;
    server.restart(Data::Lost);
    let _held = waiting.await.expect("no panic").expect("granted");
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn conversions_survive_a_lost_reply() {
    let (_, [(a, network), (b, _)]) = connected();
    let reader = rw_lock_of(&a).read().await.expect("free");
    network.inject_into(Call::Convert, Fault::LoseReply);
    let before = reader.fencing_token();
    let writer = upgraded(reader.try_upgrade().await);
    assert!(writer.fencing_token() > before);
    contended(&rw_lock_of(&b).try_read().await);
    let before = writer.fencing_token();
    network.inject_into(Call::Convert, Fault::LoseReply);
    let reader = writer.downgrade().await.expect("answered");
    assert!(reader.fencing_token() > before);
    let joined = held(rw_lock_of(&b).try_read().await);
    assert_eq!(joined.fencing_token(), reader.fencing_token());
}

#[tokio::test(start_paused = true)]
async fn conversion_during_an_outage_ends_with_the_lease() {
    let (server, [(a, network)]) = connected();
    let rw = rw_lock_of(&a).lease(secs(5));
    let writer = rw.write().await.expect("free");
    network.isolate();
    let begun = server.elapsed();
    assert_error!(writer.downgrade().await, Lost);
    assert!(server.elapsed() - begun <= secs(6));
}

#[tokio::test(start_paused = true)]
async fn backend_without_a_queue_is_retried() {
    let server = server();
    let mut backend = Wrapped::new(server.client("a"));
    backend.capabilities.queue = false;
    backend.capabilities.push = false;
    let a = LockClient::new(backend);
    let (b, _) = client(&server, "b");
    let guard = lock(&b).await;
    let mutex = mutex_of(&a);
    assert_is!(mutex.try_lock().await => Ok(Outcome::Contended(_)));
    let Ok(Outcome::Contended(late)) = mutex.try_lock_for(ms(700)).await else {
        panic!("{}", server.timeline());
    };
    assert!(late.timed_out && late.waited >= ms(700), "{late:?}");
    assert_eq!(late.holder.as_ref().map(|label| label.as_str()), Some("b"));
    assert_eq!(late.ahead, None);
    // It counts from the end of the call, not from the last reply.
    let lease_left = secs(30) - server.elapsed();
    assert!(late.retry_after.abs_diff(lease_left) < ms(10), "{late:?}");
    let acquires_sent = || {
        let acquire = |entry: &&Entry| format!("{:?}", entry.event).contains("Acquire");
        server.log().iter().filter(acquire).count()
    };
    let before = acquires_sent();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    server.advance(secs(5)).await;
    let retries = acquires_sent() - before;
    assert!((10..200).contains(&retries), "{retries} in 5 s");
    drop(guard);
    server.advance(ms(600)).await;
    assert!(waiting.is_finished());
    let _held = waiting.await.expect("no panic").expect("granted");
}

/// Nobody can fence with token 0. The grant is given back, whether it comes at once or after a wait.
#[tokio::test(start_paused = true)]
async fn grant_without_a_token_is_an_error() {
    let server = server();
    let mut backend = Wrapped::new(server.client("a"));
    backend.has_tokens = false;
    // Without a subscription, polls bring the grant.
    backend.refusals.store(usize::MAX, Ordering::SeqCst);
    let (a, b) = (
        LockClient::new(backend),
        LockClient::new(server.client("b")),
    );
    let no_tokens = |result: Result<MutexGuard, Error>| match result {
        Err(Error::Unsupported { what, .. }) => assert_eq!(what, "fencing tokens"),
        other => panic!("{other:?}"),
    };
    no_tokens(mutex_of(&a).lock().await);
    let held = mutex_of(&b).lock().await.expect("given back");
    let waiting = tokio::spawn({
        let mutex = mutex_of(&a);
        async move { mutex.lock().await }
    });
    server.advance(secs(2)).await;
    held.release().await.expect("held");
    no_tokens(waiting.await.expect("no panic"));
    let all = a.lock_all(["k", "l"]).await;
    assert!(matches!(all, Err(Error::Unsupported { .. })), "{all:?}");
    server.advance(secs(1)).await;
    let again = mutex_of(&b).try_lock().await.expect("answered");
    assert!(again.is_acquired(), "{}", server.timeline());
}

#[tokio::test(start_paused = true)]
async fn upgrade_without_a_reply_is_recognised_after_renewals() {
    let (server, [(a, network), (b, _)]) = connected();
    let rw = rw_lock_of(&a).lease(secs(2));
    let reader = rw.read().await.expect("free");
    let writer = rw_lock_of(&b);
    let waiting = tokio::spawn(async move { writer.write().await });
    server.advance(ms(100)).await;
    network.inject_into(Call::Convert, Fault::LoseReply);
    // Two renewals return the new token while the client waits for the reply.
    let guard = upgraded(reader.try_upgrade().await);
    let shown = b.inspect("k").await.expect("answered");
    assert!(shown.is_write_locked());
    assert_eq!(shown.held_tokens(), [guard.fencing_token()]);
    guard.release().await.expect("answered");
    let _next = waiting.await.expect("no panic").expect("granted");
}

/// The first try arrives when the other reader has left.
#[tokio::test(start_paused = true)]
async fn refused_upgrade_in_doubt_releases_the_lock() {
    let (server, [(a, network), (b, _)]) = connected();
    let reader = rw_lock_of(&a).read().await.expect("free");
    let other = rw_lock_of(&b).read().await.expect("shared");
    network.inject_into(Call::Convert, Fault::DelayRequest(secs(3)));
    assert_is!(reader.try_upgrade().await => Err(Error::OutcomeUnknown { .. }));
    other.release().await.expect("answered");
    server.advance(secs(4)).await;
    assert!(!b.inspect("k").await.expect("answered").is_held());
}

#[tokio::test(start_paused = true)]
async fn nested_downgrade_without_a_reply_converts_its_hold() {
    let (_, [(a, network), (b, _)]) = connected();
    let rw = reentrant_rw(&a);
    let outer = rw.write().await.expect("free");
    let inner = rw.write().await.expect("nested");
    network.inject_into(Call::Convert, Fault::LoseReply);
    let inner = inner.downgrade().await.expect("answered");
    contended(&rw_lock_of(&b).try_read().await);
    assert_eq!(outer.fencing_token(), inner.fencing_token());
    outer.release().await.expect("answered");
    let other_reader = held(rw_lock_of(&b).try_read().await);
    assert_eq!(other_reader.fencing_token(), inner.fencing_token());
}

/// The mode in the reply comes from another hold, which was dropped but not released yet.
#[tokio::test(start_paused = true)]
async fn upgrade_is_not_inferred_from_a_hold_being_released() {
    let (server, [(a, network), (b, _)]) = connected();
    let rw = reentrant_rw(&a);
    let one = rw.read().await.expect("free");
    let two = rw.read().await.expect("nested");
    network.inject_into(Call::Convert, Fault::LoseRequest);
    let upgrading = tokio::spawn(two.try_upgrade());
    server.advance(ms(100)).await;
    let one = upgraded(one.try_upgrade().await);
    for _ in 0..3 {
        network.inject_into(Call::Release, Fault::LoseRequest);
    }
    drop(one);
    let two = upgraded(upgrading.await.expect("no panic"));
    server.advance(secs(5)).await;
    assert!(two.is_valid());
    contended(&rw_lock_of(&b).try_read().await);
}

#[tokio::test(start_paused = true)]
async fn first_hello_does_not_extend_a_wait() {
    for limit in [ms(0), ms(1_000)] {
        let (server, [(a, network)]) = connected();
        network.inject_into(Call::Hello, Fault::DelayReply(ms(700)));
        network.inject_into(Call::Acquire, Fault::DelayReply(ms(900)));
        let begun = server.elapsed();
        let outcome = mutex_of(&a).try_lock_for(limit).await;
        let took = server.elapsed() - begun;
        assert!(took <= ms(1_000), "{took:?}");
        assert!(outcome.is_err(), "{outcome:?}");
    }
}

/// The server has lost a downgrade, and with it the epoch of the other readers. The hold is a write hold there.
#[tokio::test(start_paused = true)]
async fn upgrade_by_an_old_copy_of_the_data_ends_the_guard() {
    let server = SimServer::with_options(SimOptions::new(1).journal(100));
    let ((a, _), (b, network)) = (client(&server, "a"), client(&server, "b"));
    let lock = |locks: &LockClient| rw_lock_of(locks);
    let writer = lock(&a).write().await.expect("free");
    let reader = writer.downgrade().await.expect("answered");
    let other = lock(&b).read().await.expect("shared");
    network.isolate();
    server.fail_over(Tail::Commands(2));
    let upgraded = reader.try_upgrade().await;
    assert!(other.is_valid());
    assert_eq!(lost_by(&upgraded), Loss::Unknown);
}

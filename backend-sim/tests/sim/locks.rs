//! Lock clients on the simulator, at exact times.
//!
//! The latency is 1 ms each way. The first acquire of a client takes 4 ms, because the client asks
//! for the server's time first. With a lease of 30 s and a drift allowance of 310 ms, a guard whose
//! request was sent at t is valid until t + 29.69 s.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join;
use leasehold_api::{Error, ForceMode, LockClient, Loss, Mutex, MutexGuard, Outcome};
use leasehold_sim::{Call, Data, Fault, Latency, SimBackend, SimServer};

use crate::support::{key, ms, secs};

pub(crate) const VALIDITY: Duration = ms(29_690);

pub(crate) fn client(server: &SimServer, name: &str) -> (SimBackend, LockClient) {
    let backend = server.client(name);
    (backend.clone(), LockClient::new(backend))
}

/// A server and a client, `a`.
pub(crate) fn one_client() -> (SimServer, (SimBackend, LockClient)) {
    let server = SimServer::new(1);
    let a = client(&server, "a");
    (server, a)
}

/// A server and two clients, `a` and `b`.
pub(crate) fn two_clients() -> (
    SimServer,
    (SimBackend, LockClient),
    (SimBackend, LockClient),
) {
    let (server, a) = one_client();
    let b = client(&server, "b");
    (server, a, b)
}

pub(crate) fn job(locks: &LockClient) -> Mutex {
    locks.mutex("job").expect("a valid key")
}

pub(crate) async fn hold(locks: &LockClient) -> MutexGuard {
    job(locks).lock().await.expect("no failure")
}

pub(crate) fn released(release: &Result<u32, Error>) -> bool {
    matches!(release, Ok(0))
}

#[tokio::test(start_paused = true)]
async fn validity_counts_from_the_request() {
    let server = SimServer::new(1);
    let (_, locks) = client(&server, "a");
    let guard = hold(&locks).await;
    assert_eq!(server.elapsed(), ms(4));
    assert_eq!(guard.valid_for(), VALIDITY - ms(2));
    assert_eq!(guard.fencing_token().get(), 1_000_000_000_003_000);
    assert!(released(&guard.release().await));
    assert_eq!(server.elapsed(), ms(6));
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn contended_try_names_the_holder() {
    let (server, (_, a), (_, b)) = two_clients();
    let _guard = hold(&a).await;
    let asked = server.elapsed();
    let Outcome::Contended(held) = job(&b).try_lock().await.expect("an answer") else {
        panic!("{}", server.timeline());
    };
    assert_eq!(held.holder.expect("a label").as_str(), "a");
    // Granted at 3 ms, tried at 7 ms.
    assert_eq!(held.retry_after, secs(30) - ms(4));
    assert_eq!(server.elapsed() - asked, ms(4));
}

#[tokio::test(start_paused = true)]
async fn grants_take_one_round_trip_and_keep_the_order() {
    let server = SimServer::new(1);
    let (_, first) = client(&server, "first");
    let guard = hold(&first).await;
    let mut waiters = Vec::new();
    for n in 0..5 {
        let (_, locks) = client(&server, &format!("waiter {n}"));
        let time = server.clone();
        waiters.push(tokio::spawn(async move {
            let guard = hold(&locks).await;
            let got = time.elapsed();
            time.advance(ms(98)).await;
            assert!(released(&guard.release().await));
            (got, guard.fencing_token())
        }));
        server.advance(ms(50)).await;
    }
    let mut expected = server.elapsed();
    let mut token = guard.fencing_token();
    assert!(released(&guard.release().await));
    for waiter in waiters {
        let (got, its_token) = waiter.await.expect("no panic");
        expected += ms(2);
        assert_eq!(got, expected, "{}", server.timeline());
        assert!(its_token > token);
        token = its_token;
        expected += ms(98);
    }
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn timed_out_wait_leaves_no_waiter() {
    let (server, (_, a), (_, b)) = two_clients();
    let guard = hold(&a).await;
    let asked = server.elapsed();
    let outcome = job(&b).try_lock_for(secs(7)).await.expect("no failure");
    assert!(matches!(outcome, Outcome::Contended(late) if late.waited == secs(7)));
    assert_eq!(server.elapsed() - asked, secs(7));
    assert!(released(&guard.release().await));
    server.advance(ms(10)).await;
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn wait_times_out_even_if_it_polls_all_the_time() {
    let (server, (_, a), (backend, b)) = two_clients();
    let guard = hold(&a).await;
    // With this rate, the 500 ms end between two milliseconds, and timers end at the later one.
    backend.set_clock_rate(-1_000);
    let chaos = server.clone();
    let breaks = server.spawn(async move {
        chaos.sleep(ms(501)).await;
        loop {
            // The waiter polls at once.
            backend.drop_connection();
            chaos.sleep(ms(1)).await;
        }
    });
    let asked = server.elapsed();
    let outcome = job(&b).try_lock_for(ms(500)).await;
    assert_eq!(server.elapsed() - asked, ms(501), "{outcome:?}");
    drop((breaks, guard));
}

#[tokio::test(start_paused = true)]
async fn renewal_keeps_a_lock_for_hours() {
    let (server, (_, a)) = one_client();
    let guard = hold(&a).await;
    for _ in 0..6 {
        server.advance(secs(3_600)).await;
        assert!(guard.valid_for() > secs(19), "{:?}", guard.valid_for());
    }
    assert!(guard.lost().now_or_never().is_none());
    assert!(released(&guard.release().await));
}

#[tokio::test(start_paused = true)]
async fn fixed_lease_is_lost_at_its_local_deadline() {
    let (server, (_, a)) = one_client();
    let guard = job(&a).fixed_lease().lock().await.expect("no failure");
    let token = guard.fencing_token();
    assert_eq!(guard.lost().await, Loss::Deadline);
    // Requested at 2 ms. At the server, the lease expires at 30.003 s.
    assert_eq!(server.elapsed(), ms(2) + VALIDITY);
    assert!(!guard.is_valid());
    assert_eq!(guard.valid_for(), Duration::ZERO);
    assert_eq!(guard.fencing_token(), token);
}

#[tokio::test(start_paused = true)]
async fn paused_holder_loses_its_lock_and_cannot_release_the_next() {
    let (server, (process, a), (_, b)) = two_clients();
    let first = hold(&a).await;
    let waiting = tokio::spawn(async move { (hold(&b).await, b) });
    server.advance(ms(100)).await;
    process.pause();
    server.advance(secs(28)).await;
    assert!(first.is_valid(), "lost before its deadline");
    server.advance(secs(2)).await;
    // The client is still paused, so only the clock can tell.
    assert!(!first.is_valid(), "valid after its deadline");
    let (second, _b) = waiting.await.expect("no panic");
    // The lease expired at 30.003 s. The next poll of the waiter is granted.
    assert!(server.elapsed() <= ms(31_010), "{}", server.timeline());
    assert!(second.fencing_token() > first.fencing_token());
    process.resume();
    assert!(matches!(first.release().await, Err(Error::Lost { .. })));
    server.advance(secs(60)).await;
    assert!(second.is_valid(), "{}", server.timeline());
    assert!(released(&second.release().await));
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_counts_once() {
    let (server, (process, a)) = one_client();
    process.inject_into(Call::Acquire, Fault::LoseReply);
    let guard = hold(&a).await;
    assert_eq!(process.pending_faults(), 0);
    assert!(server.elapsed() <= ms(1_200), "{:?}", server.elapsed());
    assert!(released(&guard.release().await));
    server.assert_idle();
    insta::assert_snapshot!(server.timeline());
}

#[tokio::test(start_paused = true)]
async fn lost_request_is_sent_again() {
    let (server, (process, a)) = one_client();
    process.inject_into(Call::Acquire, Fault::LoseRequest);
    let guard = hold(&a).await;
    assert_eq!(process.pending_faults(), 0);
    assert!(server.elapsed() <= ms(1_200), "{:?}", server.elapsed());
    assert!(released(&guard.release().await));
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn try_with_a_lost_reply_leaves_nothing() {
    let (server, (process, a)) = one_client();
    let mutex = job(&a);
    drop(mutex.try_lock().await.expect("an answer"));
    server.advance(secs(1)).await;
    process.inject_into(Call::Acquire, Fault::LoseReply);
    let asked = server.elapsed();
    let result = mutex.try_lock().await;
    assert_eq!(server.elapsed() - asked, secs(1));
    assert!(
        matches!(result, Err(Error::OutcomeUnknown { .. })),
        "{result:?}"
    );
    server.advance(ms(10)).await;
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn release_with_a_lost_reply_is_not_a_loss() {
    let (server, (process, a)) = one_client();
    let guard = hold(&a).await;
    process.inject_into(Call::Release, Fault::LoseReply);
    let lost = guard.lost();
    let release = guard.release().await;
    assert!(release.is_ok(), "{release:?}");
    assert_eq!(process.pending_faults(), 0);
    assert!(lost.now_or_never().is_none());
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn late_release_does_not_touch_the_next_holder() {
    let (server, (process, a), (_, b)) = two_clients();
    let guard = job(&a).lease(secs(2)).lock().await.expect("no failure");
    process.inject_into(Call::Release, Fault::DelayRequest(secs(20)));
    drop(guard);
    let next = hold(&b).await;
    server.advance(secs(30)).await;
    assert_eq!(process.pending_faults(), 0);
    assert!(next.is_valid());
    assert!(
        server.left_behind().contains("\"b\" holds it"),
        "{}",
        server.left_behind()
    );
    assert!(released(&next.release().await));
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn duplicate_release_does_not_touch_the_next_holder() {
    let (server, (process, a), (_, b)) = two_clients();
    let guard = hold(&a).await;
    process.inject_into(Call::Release, Fault::DuplicateRequest(secs(5)));
    assert!(released(&guard.release().await));
    let next = hold(&b).await;
    server.advance(secs(10)).await;
    assert!(
        server.timeline().contains("(delivered again)"),
        "{}",
        server.timeline()
    );
    assert!(next.is_valid());
    assert!(server.left_behind().contains("\"b\" holds it"));
}

#[tokio::test(start_paused = true)]
async fn duplicate_acquire_leaves_no_second_hold() {
    let (server, (process, a)) = one_client();
    process.inject_into(Call::Acquire, Fault::DuplicateRequest(secs(3)));
    assert!(released(&hold(&a).await.release().await));
    server.advance(secs(5)).await;
    assert!(
        server.timeline().contains("(delivered again)"),
        "{}",
        server.timeline()
    );
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn failed_renewal_is_not_a_loss() {
    for fault in [
        Fault::LoseRequest,
        Fault::LoseReply,
        Fault::DelayReply(secs(4)),
    ] {
        let (server, (process, a)) = one_client();
        let guard = hold(&a).await;
        for _ in 0..3 {
            process.inject_into(Call::Renew, fault);
        }
        server.advance(secs(120)).await;
        assert_eq!(process.pending_faults(), 0);
        assert!(guard.is_valid(), "{fault:?}: {}", server.timeline());
    }
}

#[tokio::test(start_paused = true)]
async fn isolated_holder_is_lost_before_its_lease_expires() {
    let (server, (process, a), (_, b)) = two_clients();
    let guard = hold(&a).await;
    let waiting = tokio::spawn(async move { (hold(&b).await, b) });
    server.advance(secs(1)).await;
    process.isolate();
    assert_eq!(guard.lost().await, Loss::Deadline);
    assert_eq!(server.elapsed(), ms(2) + VALIDITY);
    let (next, _b) = waiting.await.expect("no panic");
    assert!(server.elapsed() >= ms(30_003) && server.elapsed() <= ms(31_010));
    assert!(next.is_valid());
}

#[tokio::test(start_paused = true)]
async fn restart_with_its_data_loses_no_lock() {
    let (server, (_, a)) = one_client();
    let guard = hold(&a).await;
    for _ in 0..5 {
        server.advance(secs(13)).await;
        server.restart(Data::Kept);
    }
    server.advance(secs(60)).await;
    assert!(guard.is_valid(), "{}", server.timeline());
    assert!(released(&guard.release().await));
}

#[tokio::test(start_paused = true)]
async fn restart_without_its_data_is_noticed_at_the_next_renewal() {
    let (server, (_, a)) = one_client();
    let guard = hold(&a).await;
    server.restart(Data::Lost);
    assert_eq!(guard.lost().await, Loss::Unknown);
    assert!(server.elapsed() <= secs(11), "{:?}", server.elapsed());
    let again = hold(&a).await;
    assert!(again.fencing_token() > guard.fencing_token());
}

#[tokio::test(start_paused = true)]
async fn wait_survives_an_outage() {
    let (server, (_, a)) = one_client();
    server.stop();
    let waiting = tokio::spawn(async move { (hold(&a).await, a) });
    server.advance(secs(60)).await;
    server.start(Data::Kept);
    let (guard, _a) = waiting.await.expect("no panic");
    assert!(server.elapsed() <= secs(61), "{:?}", server.elapsed());
    assert!(guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn try_during_an_outage_fails_in_time() {
    let (server, (_, a)) = one_client();
    server.stop();
    let result = job(&a).try_lock().await;
    assert!(
        matches!(result, Err(Error::Unavailable { .. })),
        "{result:?}"
    );
    assert!(server.elapsed() <= secs(1), "{:?}", server.elapsed());
}

#[tokio::test(start_paused = true)]
async fn waiter_is_granted_after_a_lost_doubled_or_late_push() {
    for (fault, within) in [
        (Fault::LosePush, ms(1_010)),
        (Fault::DuplicatePush, ms(2)),
        (Fault::DelayPush(ms(400)), ms(402)),
    ] {
        let (server, (_, a), (process, b)) = two_clients();
        let guard = hold(&a).await;
        let waiting = tokio::spawn(async move { (hold(&b).await, b) });
        server.advance(ms(100)).await;
        process.inject(fault);
        let freed = server.elapsed();
        assert!(released(&guard.release().await));
        let (next, _b) = waiting.await.expect("no panic");
        let took = server.elapsed() - freed;
        assert!(took <= within, "{fault:?}: {took:?}\n{}", server.timeline());
        server.advance(secs(60)).await;
        assert!(next.is_valid(), "{fault:?}");
        assert!(released(&next.release().await));
        server.assert_idle();
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_keeps_its_ticket_after_a_broken_connection() {
    let (server, (_, a), (process, b)) = two_clients();
    let (_, c) = client(&server, "c");
    let guard = hold(&a).await;
    let second = tokio::spawn(async move { (hold(&b).await, b) });
    server.advance(ms(100)).await;
    let third = tokio::spawn(async move { (hold(&c).await, c) });
    server.advance(ms(100)).await;
    process.drop_connection();
    server.advance(ms(100)).await;
    let freed = server.elapsed();
    assert!(released(&guard.release().await));
    let (guard, _b) = second.await.expect("no panic");
    assert_eq!(server.elapsed() - freed, ms(2), "{}", server.timeline());
    assert!(!third.is_finished());
    assert!(released(&guard.release().await));
    let (_guard, _c) = third.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn waiter_polls_at_once_after_a_broken_connection() {
    let (server, (_, a), (process, b)) = two_clients();
    let guard = hold(&a).await;
    let waiting = tokio::spawn(async move { (hold(&b).await, b) });
    server.advance(ms(100)).await;
    process.set_latency(Latency::fixed(ms(50)));
    process.drop_connection();
    let broken = server.elapsed();
    assert!(released(&guard.release().await));
    let (_guard, _b) = waiting.await.expect("no panic");
    // One round trip: the waiter polled as soon as the connection broke.
    assert_eq!(server.elapsed() - broken, ms(100), "{}", server.timeline());
}

#[tokio::test(start_paused = true)]
async fn stepped_clock_ends_a_guard() {
    for forward in [true, false] {
        let (server, (_, a)) = one_client();
        let guard = hold(&a).await;
        server.advance(secs(1)).await;
        if forward {
            server.step_clock_forward(secs(5));
        } else {
            server.step_clock_back(secs(5));
        }
        let loss = guard.lost().await;
        assert_eq!(loss, Loss::ClockStepped, "{}", server.timeline());
        assert!(server.elapsed() <= secs(11), "{:?}", server.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn forced_release_notifies_the_holder_at_once() {
    let (server, (_, a)) = one_client();
    let (_, admin) = client(&server, "admin");
    let guard = hold(&a).await;
    server.advance(secs(1)).await;
    let seen = admin.inspect("job").await.expect("an answer");
    let asked = server.elapsed();
    let forced = admin.force_release("job", seen.held_tokens(), ForceMode::Revoke);
    let (loss, forced) = join(guard.lost(), forced).await;
    forced.expect("an answer");
    assert_eq!(loss, Loss::Forced);
    assert_eq!(server.elapsed() - asked, ms(2));
    // The holder is revoked, and stays until its lease expires.
    assert!(server.left_behind().contains("\"a\" holds it"));
}

#[tokio::test(start_paused = true)]
async fn killed_holder_blocks_until_its_lease_expires() {
    let (server, (process, a), (_, b)) = two_clients();
    let _guard = hold(&a).await;
    process.kill();
    let _next = hold(&b).await;
    assert!(server.elapsed() >= ms(30_003) && server.elapsed() <= ms(31_010));
}

#[tokio::test(start_paused = true)]
async fn dead_waiters_cost_one_waiter_lease_together() {
    let (server, (_, a)) = one_client();
    let guard = hold(&a).await;
    let mut dead = Vec::new();
    for n in 0..50 {
        let (process, locks) = client(&server, &format!("dead {n}"));
        dead.push((process, tokio::spawn(async move { hold(&locks).await })));
    }
    server.advance(ms(100)).await;
    let (_, b) = client(&server, "b");
    let waiting = tokio::spawn(async move { (hold(&b).await, b) });
    server.advance(ms(100)).await;
    for (process, _) in &dead {
        process.kill();
    }
    let died = server.elapsed();
    assert!(released(&guard.release().await));
    let (_next, _b) = waiting.await.expect("no panic");
    let took = server.elapsed() - died;
    assert!(took <= secs(6), "{took:?}: a waiter lease and a poll");
    dead.iter().for_each(|(_, task)| task.abort());
}

#[tokio::test(start_paused = true)]
async fn resumed_client_queues_again() {
    let (server, (_, a), (process, b)) = two_clients();
    let guard = hold(&a).await;
    let waiting = tokio::spawn(async move { (hold(&b).await, b) });
    server.advance(ms(100)).await;
    process.pause();
    server.advance(secs(20)).await;
    assert!(
        !server.left_behind().contains("waits"),
        "{}",
        server.left_behind()
    );
    process.resume();
    server.advance(ms(100)).await;
    assert!(
        server.left_behind().contains("\"b\" waits"),
        "{}",
        server.timeline()
    );
    assert!(released(&guard.release().await));
    let (_guard, _b) = waiting.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn with_stops_its_body_when_the_lock_is_lost() {
    let (server, (process, a)) = one_client();
    let time = server.clone();
    let result = job(&a)
        .with(async |_| {
            process.isolate();
            time.advance(secs(3_600)).await;
        })
        .await;
    assert!(
        matches!(
            result,
            Err(Error::Lost {
                reason: Loss::Deadline,
                ..
            })
        ),
        "{result:?}"
    );
    // The release then got no reply within its limit of 3 s.
    assert!(
        server.elapsed() <= ms(2) + VALIDITY + secs(3),
        "{:?}",
        server.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn foreign_value_is_an_error_and_stays() {
    let (server, (_, a)) = one_client();
    server.plant_foreign(key(), "string");
    let result = job(&a).lock().await;
    assert!(matches!(&result, Err(Error::ForeignValue { found, .. }) if found == "string"));
    assert_eq!(server.foreign(key()).as_deref(), Some("string"));
}

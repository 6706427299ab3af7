//! Tokens that are cancelled with a guard.

use std::time::Duration;

use leasehold_api::{ForceMode, Loss};
use leasehold_sim::Data;

use crate::support::{clients, connected, force, lock, ms, mutex_of, secs};

#[tokio::test(start_paused = true)]
async fn token_is_cancelled_at_the_deadline_and_the_other_a_margin_before() {
    let (server, [(a, network)]) = connected();
    let guard = mutex_of(&a).lease(secs(9)).lock().await.expect("free");
    let (at_the_end, before) = (guard.cancellation(), guard.cancellation_before(secs(4)));
    server.advance(secs(100)).await;
    let renewed = !at_the_end.is_cancelled() && !before.is_cancelled();
    assert!(renewed, "renewals put it off: {:?}", guard.valid_for());
    network.isolate();
    let (isolated, valid_for) = (server.elapsed(), guard.valid_for());
    before.cancelled().await;
    assert_eq!(server.elapsed() - isolated, valid_for - secs(4));
    assert!(guard.is_valid() && !at_the_end.is_cancelled());
    at_the_end.cancelled().await;
    assert_eq!(server.elapsed() - isolated, valid_for);
    assert_eq!(guard.loss_reason(), Some(Loss::Deadline));
}

#[tokio::test(start_paused = true)]
async fn loss_without_a_warning_cancels_it_at_once() {
    let (server, [a, b]) = clients();
    let guard = lock(&a).await;
    let token = guard.cancellation_before(secs(5));
    server.advance(secs(1)).await;
    force(&b, "k", ForceMode::Revoke).await;
    server.advance(ms(20)).await;
    assert!(token.is_cancelled());
    assert_eq!(guard.loss_reason(), Some(Loss::Forced));
    assert!(guard.cancellation().is_cancelled(), "made after the loss");
}

#[tokio::test(start_paused = true)]
async fn release_drop_and_shutdown_cancel_it() {
    let (server, [a]) = clients();
    let mutex = mutex_of(&a);
    let guard = mutex.lock().await.expect("free");
    let token = guard.cancellation();
    guard.release().await.expect("answered");
    server.advance(ms(1)).await;
    assert!(token.is_cancelled() && guard.cancellation().is_cancelled());
    assert_eq!(guard.loss_reason(), None);

    let guard = mutex.lock().await.expect("free");
    let (token, child) = (guard.cancellation(), guard.cancellation().child_token());
    server.advance(secs(60)).await;
    assert!(!token.is_cancelled() && !child.is_cancelled());
    drop(guard);
    server.advance(ms(1)).await;
    assert!(token.is_cancelled() && child.is_cancelled());

    let guard = mutex.lock().await.expect("free");
    let token = guard.cancellation();
    a.shutdown().await.expect("answered");
    assert!(token.is_cancelled());
    assert_eq!(guard.loss_reason(), Some(Loss::ClientClosed));
}

#[tokio::test(start_paused = true)]
async fn guard_moves_into_a_task_that_its_token_stops() {
    let (server, [a, b]) = clients();
    let guard = lock(&a).await;
    let token = guard.cancellation();
    let working = tokio::spawn(async move {
        let work = token.run_until_cancelled(std::future::pending::<()>());
        let stopped = work.await.is_none();
        (stopped, guard.loss_reason())
    });
    server.advance(secs(60)).await;
    assert!(!working.is_finished());
    force(&b, "k", ForceMode::Revoke).await;
    assert_eq!(working.await.expect("no panic"), (true, Some(Loss::Forced)));
}

#[tokio::test(start_paused = true)]
async fn token_of_several_keys_ends_with_the_first() {
    let (server, [a, b]) = clients();
    let many = a.mutexes(["a", "b"]).expect("valid");
    let guard = many.lock().await.expect("free");
    let (token, early) = (guard.cancellation(), guard.cancellation_before(secs(10)));
    server.advance(secs(60)).await;
    assert!(!token.is_cancelled() && !early.is_cancelled());
    force(&b, "b", ForceMode::Revoke).await;
    server.advance(ms(20)).await;
    assert!(token.is_cancelled() && early.is_cancelled());
    let (key, loss) = guard.loss_reason().expect("lost");
    assert_eq!((key.as_str(), loss), ("b", Loss::Forced));
    drop(guard);

    let guard = many.lock().await.expect("free");
    let token = guard.cancellation();
    guard.release().await.expect("answered");
    server.advance(ms(1)).await;
    assert!(token.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn term_is_cancelled_a_margin_before_its_end() {
    let (server, [(a, network)]) = connected();
    let election = a.election("leader").expect("valid").lease(secs(9));
    let term = election.campaign().await.expect("free");
    let token = term.cancellation_before(secs(2));
    server.advance(secs(60)).await;
    assert!(!token.is_cancelled());
    network.isolate();
    token.cancelled().await;
    assert!(term.is_leader() && term.valid_for() <= secs(2));
    assert!(term.valid_for() > Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn token_does_not_keep_the_client_alive() {
    let (server, [a]) = clients();
    let guard = lock(&a).await;
    let token = guard.cancellation();
    drop((guard, a));
    server.advance(secs(1)).await;
    assert!(token.is_cancelled());
    server.restart(Data::Lost);
    server.advance(secs(100)).await;
    server.assert_idle();
}

/// What a waiter gets is an offer, which lasts for 5 s at most until its first renewal.
#[tokio::test(start_paused = true)]
async fn token_of_a_waiter_is_not_cancelled_before_the_first_renewal() {
    let (server, [(a, _), (b, network)]) = connected();
    let first = a.election("leader").expect("valid");
    let first = first.campaign().await.expect("free");
    let second = b.election("leader").expect("valid").lease(secs(20));
    let second = tokio::spawn(async move { second.campaign().await });
    server.advance(secs(1)).await;
    drop(first);
    let term = second.await.expect("no panic").expect("granted");
    assert!(term.valid_for() <= secs(5), "an offer");
    let token = term.cancellation_before(secs(8));
    for _ in 0..120 {
        assert!(!token.is_cancelled(), "{:?}", term.valid_for());
        server.advance(ms(10)).await;
    }
    network.isolate();
    let (isolated, valid_for) = (server.elapsed(), term.valid_for());
    token.cancelled().await;
    assert_eq!(server.elapsed() - isolated, valid_for - secs(8));
}

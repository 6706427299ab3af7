//! Nothing is left behind: by drops, cancellations, shutdowns, forks.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::Poll;

use futures_util::FutureExt as _;
use leasehold_api::{Error, LockBackend as _, LockClient, Loss, ReleaseOutcome};
use leasehold_sim::{Call, Fault};

use crate::support::{client, contended, held, ms, secs, server};
use crate::wrapped::Wrapped;

/// Drops an acquire after each number of polls that it can take.
#[tokio::test(start_paused = true)]
async fn an_acquire_dropped_at_any_await_point_leaves_nothing() {
    let mut granted = 0;
    for contended in [false, true] {
        for polls in 1..40 {
            let server = server();
            let (a, _) = client(&server, "a");
            let (b, _) = client(&server, "b");
            let blocker = held(b.mutex("k").expect("valid").try_lock().await);
            let mutex = a.mutex("k").expect("valid");
            let mut left = polls;
            let mut blocker = contended.then_some(blocker);
            {
                let mut acquire = pin!(mutex.lock());
                let done = poll_fn(|cx| {
                    if left == 10 {
                        blocker = None;
                    }
                    left -= 1;
                    match acquire.as_mut().poll(cx) {
                        Poll::Ready(_) => Poll::Ready(true),
                        Poll::Pending if left == 0 => Poll::Ready(false),
                        Poll::Pending => Poll::Pending,
                    }
                });
                let limit = server.advance(secs(20)).map(|()| false);
                granted += usize::from(
                    futures_util::future::select(done, pin!(limit))
                        .await
                        .factor_first()
                        .0,
                );
            }
            drop(blocker);
            server.advance(ms(100)).await;
            assert_eq!(
                server.left_behind(),
                "",
                "contended: {contended}, polls: {polls}"
            );
        }
    }
    assert!(granted >= 20, "{granted} ran to their end");
}

#[tokio::test(start_paused = true)]
async fn an_acquire_dropped_while_its_request_is_late_leaves_nothing() {
    let server = server();
    let (a, network) = client(&server, "a");
    let mutex = a.mutex("k").expect("valid");
    drop(mutex.lock().await.expect("free"));
    server.advance(secs(1)).await;
    network.inject_into(Call::Acquire, Fault::DelayRequest(ms(800)));
    let acquire = tokio::time::timeout(ms(100), mutex.lock()).await;
    assert!(acquire.is_err());
    server.advance(secs(2)).await;
    assert_eq!(server.left_behind(), "");
}

#[tokio::test(start_paused = true)]
async fn a_guard_may_be_dropped_in_a_thread_without_a_runtime() {
    let server = server();
    let (a, _) = client(&server, "a");
    let guard = a.mutex("k").expect("valid").lock().await.expect("free");
    std::thread::spawn(move || drop(guard))
        .join()
        .expect("no panic");
    server.advance(ms(100)).await;
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn the_last_guard_outlives_its_client_and_is_still_ended() {
    let server = server();
    let (a, _) = client(&server, "a");
    let guard = a.mutex("k").expect("valid").lock().await.expect("free");
    drop(a);
    server.advance(secs(100)).await;
    assert!(guard.is_valid(), "renewal goes on");
    drop(guard);
    server.advance(ms(100)).await;
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn an_end_is_repeated_until_it_is_acknowledged() {
    let server = server();
    let (a, network) = client(&server, "a");
    let guard = a.mutex("k").expect("valid").lock().await.expect("free");
    network.isolate();
    drop(guard);
    server.advance(secs(5)).await;
    assert_ne!(server.left_behind(), "");
    network.rejoin();
    server.advance(secs(2)).await;
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn a_release_dropped_midway_goes_on() {
    let server = server();
    let (a, network) = client(&server, "a");
    let guard = a.mutex("k").expect("valid").lock().await.expect("free");
    network.inject_into(Call::Release, Fault::LoseRequest);
    assert!(tokio::time::timeout(ms(10), guard.release()).await.is_err());
    assert!(!guard.is_valid());
    server.advance(secs(3)).await;
    server.assert_idle();
    guard.release().await.expect("acknowledged by now");
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_was_lost_was_not_released_though_an_end_without_an_answer_came_first() {
    let server = server();
    let (a, network) = client(&server, "a");
    let mutex = a.mutex("k").expect("valid").lease(secs(1)).fixed_lease();
    let guard = mutex.lock().await.expect("free");
    server.advance(secs(2)).await;
    network.inject_into(Call::Release, Fault::LoseReply);
    let released = guard.release().await;
    assert!(
        matches!(released, Ok(ReleaseOutcome::NotHeld(_))),
        "{released:?}"
    );
    // The first end of this one has released it.
    let guard = mutex.lock().await.expect("free");
    network.inject_into(Call::Release, Fault::LoseReply);
    let released = guard.release().await;
    assert!(
        matches!(released, Ok(ReleaseOutcome::Released { holds_left: 0 })),
        "{released:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_holds_and_waits_and_closes_the_client() {
    let server = server();
    let (a, _) = client(&server, "a");
    let (b, _) = client(&server, "b");
    let held_by_b = b.mutex("busy").expect("valid").lock().await.expect("free");
    let handle = a.mutex("busy").expect("valid");
    let waiting = tokio::spawn(async move { handle.lock().await });
    let handle = a.mutex("k").expect("valid");
    let guard = handle.lock().await.expect("free");
    let lost = tokio::spawn(guard.lost());
    server.advance(secs(2)).await;
    a.shutdown().await.expect("drained");
    assert!(matches!(
        waiting.await.expect("no panic"),
        Err(Error::Closed)
    ));
    assert_eq!(lost.await.expect("no panic"), Loss::ClientClosed);
    assert!(!guard.is_valid());
    drop(held_by_b);
    server.advance(ms(100)).await;
    assert_eq!(server.left_behind(), "");
    assert!(matches!(handle.lock().await, Err(Error::Closed)));
    assert!(matches!(a.mutex("k"), Err(Error::Closed)));
    a.shutdown().await.expect("again");
}

#[tokio::test(start_paused = true)]
async fn shutdown_is_bounded_when_the_server_is_gone() {
    let server = server();
    let (a, network) = client(&server, "a");
    let _guard = a.mutex("k").expect("valid").lock().await.expect("free");
    network.isolate();
    let begun = server.elapsed();
    assert!(matches!(
        a.shutdown().await,
        Err(Error::OutcomeUnknown { .. })
    ));
    assert!(server.elapsed() - begun <= secs(5) + ms(1));
}

#[tokio::test(start_paused = true)]
async fn a_fork_draws_a_new_session_and_leaves_the_parents_holds_alone() {
    let server = server();
    let backend = Wrapped::new(server.client("a"));
    let process = backend.process.clone();
    let locks = LockClient::new(backend);
    let mutex = locks.reentrant_mutex("k").expect("valid");
    let guard = mutex.lock().await.expect("free");
    process.store(2, Ordering::SeqCst);
    // The child's copy of the handle is another owner, and dropping its copy of the guard ends
    // nothing.
    contended(&mutex.try_lock().await);
    drop(guard);
    server.advance(secs(1)).await;
    contended(&mutex.try_lock().await);
}

#[tokio::test(start_paused = true)]
async fn idle_clients_leave_no_task_that_calls() {
    let server = server();
    let (a, backend) = client(&server, "a");
    drop(a.mutex("k").expect("valid").lock().await.expect("free"));
    server.advance(secs(1)).await;
    let calls = server.log().len();
    server.advance(secs(3600)).await;
    assert_eq!(server.log().len(), calls);
    drop(a);
    assert!(backend.hello().await.is_ok(), "the backend stays open");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_a_release_under_way() {
    let server = server();
    let (a, network) = client(&server, "a");
    let guard = a.mutex("k").expect("valid").lock().await.expect("free");
    network.inject_into(Call::Release, Fault::DelayRequest(ms(800)));
    let releasing = tokio::spawn(async move { guard.release().await });
    server.advance(ms(100)).await;
    a.shutdown().await.expect("all is acknowledged");
    assert_eq!(server.left_behind(), "");
    releasing.await.expect("no panic").expect("answered");
}

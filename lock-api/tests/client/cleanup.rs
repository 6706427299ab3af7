//! Drops, cancellations, shutdowns and forks leave nothing behind.

use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_api::{LockBackend as _, LockClient, Loss, Refused};
use leasehold_sim::{Call, Fault};

use crate::support::{
    assert_error, assert_is, client, connected, contended, held, lock, lost_by, ms, mutex_of,
    reentrant_mutex, refused_by, rw_lock_of, secs, server,
};
use crate::wrapped::Wrapped;

#[tokio::test(start_paused = true)]
async fn acquire_dropped_before_its_late_request_leaves_nothing() {
    let (server, [(a, network)]) = connected();
    let mutex = mutex_of(&a);
    drop(mutex.lock().await.expect("free"));
    server.advance(secs(1)).await;
    network.inject_into(Call::Acquire, Fault::DelayRequest(ms(800)));
    let acquire = tokio::time::timeout(ms(100), mutex.lock()).await;
    assert!(acquire.is_err());
    server.advance(secs(2)).await;
    assert_eq!(server.left_behind(), "");
}

#[tokio::test(start_paused = true)]
async fn release_is_retried_until_acknowledged() {
    let (server, [(a, network)]) = connected();
    let guard = lock(&a).await;
    network.isolate();
    drop(guard);
    server.advance(secs(5)).await;
    assert_ne!(server.left_behind(), "");
    network.rejoin();
    server.advance(secs(2)).await;
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn dropped_release_continues() {
    let (server, [(a, network)]) = connected();
    let guard = lock(&a).await;
    network.inject_into(Call::Release, Fault::LoseRequest);
    assert!(tokio::time::timeout(ms(10), guard.release()).await.is_err());
    assert!(!guard.is_valid());
    server.advance(secs(3)).await;
    server.assert_idle();
    assert_is!(guard.release().await => Ok(()));
}

#[tokio::test(start_paused = true)]
async fn release_with_a_lost_reply_reports_an_expired_guard() {
    let (server, [(a, network)]) = connected();
    let mutex = mutex_of(&a).lease(secs(1)).fixed_lease();
    let guard = mutex.lock().await.expect("free");
    server.advance(secs(2)).await;
    network.inject_into(Call::Release, Fault::LoseReply);
    assert_error!(guard.release().await, Lost);
    // The first attempt to release this guard succeeded.
    let guard = mutex.lock().await.expect("free");
    network.inject_into(Call::Release, Fault::LoseReply);
    assert_is!(guard.release().await => Ok(()));
}

/// When another task of the client asks for the key, the server forgets how the first attempt to release ended.
#[tokio::test(start_paused = true)]
async fn release_with_a_lost_reply_is_no_loss_beside_other_tasks() {
    let (server, [(a, network)]) = connected();
    let guard = lock(&a).await;
    network.inject_into(Call::Release, Fault::LoseReply);
    let sibling = async {
        server.advance(ms(100)).await;
        held(mutex_of(&a).try_lock().await)
    };
    let (released, _sibling) = tokio::join!(guard.release(), sibling);
    assert_is!(released => Ok(()));
}

/// The shutdown ended the guard while it was in use, and others may have had the key since.
#[tokio::test(start_paused = true)]
async fn release_after_a_shutdown_reports_the_loss() {
    for reply_is_lost in [false, true] {
        let (_, [(a, network)]) = connected();
        let guard = lock(&a).await;
        if reply_is_lost {
            network.inject_into(Call::Release, Fault::LoseReply);
        }
        a.shutdown().await.expect("acknowledged");
        let released = guard.release().await;
        assert_eq!(lost_by(&released), Loss::ClientClosed);
    }
}

/// The request of the new lock overtakes the release of the dropped guard, on its way or because
/// the release is lost at first.
#[tokio::test(start_paused = true)]
async fn another_kind_of_lock_waits_for_the_release_of_a_dropped_guard() {
    for release_lost in [false, true] {
        let (server, [(a, network)]) = connected();
        let mutex = mutex_of(&a);
        let rw_lock = rw_lock_of(&a);
        let permits = a.semaphore("k", 3).expect("valid");
        let lose_next = || {
            if release_lost {
                network.inject_into(Call::Release, Fault::LoseRequest);
            }
        };
        lose_next();
        drop(mutex.lock().await.expect("free"));
        // The client sends a lost release again after a call timeout.
        let reading = rw_lock.try_read_for(secs(3)).await;
        lose_next();
        drop(held(reading));
        let permit = permits.permits(2).acquire().await.expect("free");
        if !release_lost {
            drop(permit);
            drop(held(mutex.try_lock().await));
            drop(held(rw_lock.try_write().await));
        }
        server.advance(secs(5)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn another_kind_of_lock_is_refused_at_once_if_another_client_has_the_key() {
    let (server, [(a, network), (b, _)]) = connected();
    // Releases of this key that were acknowledged, and one of another key, make no difference.
    for fault in [None, Some(Fault::LoseReply)] {
        let guard = lock(&a).await;
        if let Some(fault) = fault {
            network.inject_into(Call::Release, fault);
        }
        drop(guard);
        server.advance(secs(5)).await;
    }
    let _theirs = lock(&b).await;
    let other = a.mutex("other").expect("valid").lock().await.expect("free");
    network.inject_into(Call::Release, Fault::LoseRequest);
    drop(other);
    let begun = server.elapsed();
    let refused = rw_lock_of(&a).try_write_for(secs(5)).await;
    assert_is!(refused_by(&refused) => Refused::Mismatch { .. });
    assert!(server.elapsed() - begun < ms(10), "refused at once");
}

/// A limit of zero doesn't wait, so it ends as a call without a limit does: its time is not over, the key has another
/// kind.
#[tokio::test(start_paused = true)]
async fn try_with_a_limit_of_zero_tells_a_refusal() {
    let (_, [(a, network)]) = connected();
    let guard = lock(&a).await;
    for _ in 0..3 {
        network.inject_into(Call::Release, Fault::LoseRequest);
    }
    drop(guard);
    for _ in 0..2 {
        let lock = rw_lock_of(&a);
        assert_error!(lock.try_write_for(Duration::ZERO).await, Refused);
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_during_an_outage_is_bounded() {
    let (server, [(a, network)]) = connected();
    let _guard = lock(&a).await;
    network.isolate();
    let begun = server.elapsed();
    assert_error!(a.shutdown().await, OutcomeUnknown);
    assert!(server.elapsed() - begun <= secs(5) + ms(1));
}

#[tokio::test(start_paused = true)]
async fn fork_uses_a_new_session_and_keeps_the_parents_holds() {
    let server = server();
    let backend = Wrapped::new(server.client("a"));
    let process = backend.process.clone();
    let locks = LockClient::new(backend);
    let mutex = reentrant_mutex(&locks);
    let guard = mutex.lock().await.expect("free");
    process.store(2, Ordering::SeqCst);
    // The child's copy of the handle is another owner. Dropping its copy of the guard releases
    // nothing.
    contended(&mutex.try_lock().await);
    drop(guard);
    server.advance(secs(1)).await;
    contended(&mutex.try_lock().await);
}

/// A fork copies the guards and the calls of its parent.
#[tokio::test(start_paused = true)]
async fn nothing_in_a_forked_child_ends_what_its_parent_has() {
    let server = server();
    let backend = Wrapped::new(server.client("parent"));
    let process = backend.process.clone();
    let locks = LockClient::new(backend);
    let (other, _) = client(&server, "other");
    let guard = lock(&locks).await;
    let both = locks.lock_all(["x", "y"]).await.expect("free");
    let written = locks.rw_lock("written").expect("valid");
    let writer = written.write().await.expect("free");
    let queued = locks.mutex("queued").expect("valid");
    let _ahead = other.mutex("queued").expect("valid").lock().await;
    let mut waiting = Box::pin(queued.lock());
    assert!(tokio::time::timeout(secs(1), &mut waiting).await.is_err());

    process.store(2, Ordering::SeqCst);
    assert!(!guard.is_valid() && !both.is_valid() && !writer.is_valid());
    assert_error!(guard.renew().await, Released);
    assert_error!(guard.release().await, Released);
    let failed = both.release().await.expect_err("it is the parent's");
    assert_eq!(failed.failed().len(), 2, "{failed}");
    assert_error!(writer.downgrade().await, Released);
    drop(waiting);
    locks.shutdown().await.expect("it has nothing to release");
    server.advance(secs(2)).await;
    for key in ["k", "x", "y", "written"] {
        let shown = other.inspect(key).await.expect("answered");
        assert!(shown.is_held() && !shown.is_read_locked(), "{key}: {shown}");
    }
    let shown = other.inspect("queued").await.expect("answered");
    assert_eq!(shown.waiters().len(), 1, "{shown}");

    process.store(1, Ordering::SeqCst);
    assert!(guard.is_valid() && both.is_valid());
}

#[tokio::test(start_paused = true)]
async fn idle_client_makes_no_calls() {
    let (server, [(a, backend)]) = connected();
    drop(lock(&a).await);
    server.advance(secs(1)).await;
    let calls = server.log().len();
    server.advance(secs(3600)).await;
    assert_eq!(server.log().len(), calls);
    drop(a);
    assert!(backend.hello().await.is_ok(), "the backend is still open");
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_a_release_in_flight() {
    let (server, [(a, network)]) = connected();
    let guard = lock(&a).await;
    network.inject_into(Call::Release, Fault::DelayRequest(ms(800)));
    let releasing = tokio::spawn(async move { guard.release().await });
    server.advance(ms(100)).await;
    a.shutdown().await.expect("acknowledged");
    assert_eq!(server.left_behind(), "");
    releasing.await.expect("no panic").expect("answered");
}

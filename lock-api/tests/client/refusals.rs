//! The server refuses a client for a while, as after a changed password or a revoked right. What the client lets go
//! meanwhile is free soon after.

use std::time::Duration;

use leasehold_api::{Error, LockClient};
use leasehold_sim::{Call, Fault, SimBackend, SimServer};

use crate::support::{
    assert_error, assert_is, connected, held, lock, ms, mutex_of, reentrant_mutex, secs, wait,
};

/// How soon a lock is free after the server serves its client again.
const SOON: Duration = Duration::from_secs(1);

/// Refuses the client's calls for 5 s, and then expects that nothing is left on the server.
async fn until_admitted(server: &SimServer, network: &SimBackend) {
    server.advance(secs(5)).await;
    assert_ne!(server.left_behind(), "", "it was not refused");
    network.admit();
    server.advance(SOON).await;
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn refused_release_is_told_at_once_and_goes_on() {
    let (server, [(a, network)]) = connected();
    let guard = lock(&a).await;
    network.deny();
    let begun = server.elapsed();
    assert_error!(guard.release().await, Rejected);
    assert_error!(guard.release().await, Rejected);
    assert!(server.elapsed() - begun < ms(10), "told at once");
    until_admitted(&server, &network).await;
    assert_is!(guard.release().await => Ok(()));
}

/// The first attempt has released it, whose reply was lost.
#[tokio::test(start_paused = true)]
async fn release_that_is_refused_after_a_lost_reply_is_no_loss() {
    let (server, [(a, network)]) = connected();
    let guard = lock(&a).await;
    network.inject_into(Call::Release, Fault::LoseReply);
    let deny = async {
        server.advance(ms(500)).await;
        network.deny();
    };
    let (released, ()) = tokio::join!(guard.release(), deny);
    assert_error!(released, Rejected);
    server.advance(secs(5)).await;
    network.admit();
    server.advance(SOON).await;
    assert_is!(guard.release().await => Ok(()));
}

#[tokio::test(start_paused = true)]
async fn dropped_guards_are_free_after_a_refusal() {
    let (server, [(a, network)]) = connected();
    let mutex = lock(&a).await;
    let rw_lock = a.rw_lock("rw").expect("valid");
    let readers = [rw_lock.read().await, rw_lock.read().await];
    let permit = a.semaphore("s", 2).expect("valid").acquire().await;
    let many = a.lock_all(["x", "y"]).await.expect("free");
    let term = a.election("e").expect("valid").campaign().await;
    network.deny();
    drop((mutex, readers, permit, many, term));
    until_admitted(&server, &network).await;
}

#[tokio::test(start_paused = true)]
async fn each_key_of_a_refused_release_is_free_after_it() {
    let (server, [(a, network)]) = connected();
    let guard = a.lock_all(["x", "y"]).await.expect("free");
    network.deny();
    let failed = guard.release().await.expect_err("refused");
    assert_is!(failed.failed()[..] => [(_, Error::Rejected { .. }), (_, Error::Rejected { .. })]);
    until_admitted(&server, &network).await;
    assert_is!(guard.release().await => Ok(()));
}

#[tokio::test(start_paused = true)]
async fn refused_resignation_goes_on() {
    let (server, [(a, network)]) = connected();
    let election = a.election("e").expect("valid");
    let term = election.campaign().await.expect("alone");
    network.deny();
    assert_error!(term.resign().await, Rejected);
    until_admitted(&server, &network).await;
}

#[tokio::test(start_paused = true)]
async fn grant_that_nobody_waits_for_is_free_after_a_refusal() {
    let (server, [(a, network)]) = connected();
    drop(lock(&a).await);
    server.advance(secs(1)).await;
    network.inject_into(Call::Acquire, Fault::DelayReply(ms(500)));
    let waiting = wait(&a);
    server.advance(ms(100)).await;
    network.deny();
    waiting.abort();
    until_admitted(&server, &network).await;
}

/// A call that fails for good leaves the queue.
#[tokio::test(start_paused = true)]
async fn refused_waiter_leaves_the_queue_after_it() {
    let (server, [(a, network), (b, _)]) = connected();
    let theirs = lock(&b).await;
    let waiting = wait(&a);
    server.advance(ms(100)).await;
    network.deny();
    assert_error!(waiting.await.expect("no panic"), Rejected);
    // The lock is offered to it.
    theirs.release().await.expect("released");
    assert_ne!(server.left_behind(), "");
    network.admit();
    server.advance(SOON).await;
    server.assert_idle();
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_refused_releases() {
    for (refused_for, is_released) in [(secs(2), true), (secs(60), false)] {
        let (server, [(a, network)]) = connected();
        drop(lock(&a).await);
        let _used = a.mutex("used").expect("valid").lock().await.expect("free");
        network.deny();
        let admit = async {
            server.advance(refused_for).await;
            network.admit();
        };
        let begun = server.elapsed();
        let shutdown = async {
            let result = a.shutdown().await;
            (result, server.elapsed() - begun)
        };
        let ((result, took), ()) = tokio::join!(shutdown, admit);
        if is_released {
            assert_is!(result => Ok(()));
            server.assert_idle();
        } else {
            assert_error!(result, OutcomeUnknown);
        }
        assert!(took <= secs(5) + ms(1), "{took:?}");
    }
}

/// Nothing of the operation is left then, so the client has nothing to do, and can end.
#[tokio::test(start_paused = true)]
async fn refused_release_ends_after_its_lease() {
    let (server, [(a, network), (b, _)]) = connected();
    let guard = mutex_of(&a).lease(secs(2)).lock().await.expect("free");
    network.deny();
    drop(guard);
    server.advance(secs(60)).await;
    let calls = server.log().len();
    server.advance(secs(60)).await;
    assert_eq!(server.log().len(), calls);
    drop(held(mutex_of(&b).try_lock().await));
}

/// The server keeps a nested hold for as long as the one around it. It may be one that only the server knows.
#[tokio::test(start_paused = true)]
async fn refused_release_of_a_nested_hold_goes_on_while_its_holder_lasts() {
    for reply_is_lost in [false, true] {
        let (server, [(a, network)]) = connected();
        let outer = reentrant_mutex(&a).lease(secs(300));
        let short = outer.clone().lease(secs(2));
        let outer = outer.lock().await.expect("free");
        if reply_is_lost {
            network.inject_into(Call::Acquire, Fault::LoseReply);
            let waiting = tokio::spawn(async move { short.lock().await.map(drop) });
            server.advance(ms(50)).await;
            network.deny();
            waiting.abort();
        } else {
            let inner = short.lock().await.expect("nested");
            network.deny();
            drop(inner);
        }
        server.advance(secs(60)).await;
        network.admit();
        server.advance(secs(60)).await;
        assert_is!(outer.release().await => Ok(()));
        assert_eq!(outer.holds_left(), Some(0), "{reply_is_lost}");
        server.assert_idle();
    }
}

/// The last handle of the client goes, and its task goes on.
#[tokio::test(start_paused = true)]
async fn refused_release_outlives_its_client() {
    let server = crate::support::server();
    let network = server.client("a");
    let guard = lock(&LockClient::new(network.clone())).await;
    network.deny();
    drop(guard);
    until_admitted(&server, &network).await;
}

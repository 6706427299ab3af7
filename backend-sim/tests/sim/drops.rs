//! Futures that are dropped: at every await point, on either side of it, nothing is left behind.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use futures_util::future::join;
use leasehold_api::LockClient;
use leasehold_sim::{Call, Fault, SimServer};

use crate::locks::{client, hold, job, released};
use crate::support::{ms, secs};

/// Where a future is dropped.
#[derive(Clone, Copy, Debug)]
enum Drop {
    /// After so many polls, each of which did not end it.
    After(u32),
    /// When it was woken for the poll after so many, before that poll: what woke it is there, but
    /// it has not seen it.
    Before(u32),
}

/// Polls a future until it ends, or until it is to be dropped; `None` if it was dropped.
async fn dropped<F: Future>(at: Drop, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|cx| {
        if matches!(at, Drop::Before(limit) if polls == limit) {
            return Poll::Ready(None);
        }
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if matches!(at, Drop::After(limit) if polls == limit) => {
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// What surrounds an attempt.
#[derive(Clone, Copy, Debug)]
enum Case {
    Free,
    /// Somebody holds the lock for 2.5 s more.
    Held,
    /// The same, and the push of the grant is lost.
    PushLost,
    /// The server executes the acquire, but its reply is lost.
    ReplyLost,
    RequestLost,
    /// The acquire arrives after 300 ms.
    RequestLate,
    /// It arrives again after 300 ms.
    RequestDoubled,
}

/// Drops an attempt in one way, in one case; true if it ended before it was dropped.
async fn attempt(case: Case, at: Drop, first_use: bool) -> bool {
    let server = SimServer::new(7);
    let (_, other) = client(&server, "other");
    let (process, locks) = client(&server, "dropper");
    if !first_use {
        assert!(released(&hold(&locks).await.release().await));
    }
    match case {
        Case::Free => {}
        Case::Held => hold_for_a_while(&server, other).await,
        Case::PushLost => {
            hold_for_a_while(&server, other).await;
            process.inject(Fault::LosePush);
        }
        Case::ReplyLost => process.inject_into(Call::Acquire, Fault::LoseReply),
        Case::RequestLost => process.inject_into(Call::Acquire, Fault::LoseRequest),
        Case::RequestLate => process.inject_into(Call::Acquire, Fault::DelayRequest(ms(300))),
        Case::RequestDoubled => {
            process.inject_into(Call::Acquire, Fault::DuplicateRequest(ms(300)));
        }
    }
    let mutex = job(&locks);
    let ended = dropped(at, mutex.lock()).await;
    let done = ended.is_some();
    drop(ended);
    // The other's hold, a call time-out for a lost reply, and its retry.
    server.advance(ms(2_500 + 1_500)).await;
    let left = server.left_behind();
    assert_eq!(left, "", "{case:?} {at:?}\n{}", server.timeline());
    done
}

async fn hold_for_a_while(server: &SimServer, other: LockClient) {
    let guard = hold(&other).await;
    let time = server.clone();
    tokio::spawn(async move {
        time.advance(ms(2_500)).await;
        assert!(released(&guard.release().await));
        drop(other);
    });
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_dropped_anywhere_leaves_nothing() {
    let mut drops = 0;
    for case in [
        Case::Free,
        Case::Held,
        Case::PushLost,
        Case::ReplyLost,
        Case::RequestLost,
        Case::RequestLate,
        Case::RequestDoubled,
    ] {
        for first_use in [true, false] {
            for at in [Drop::After as fn(u32) -> Drop, Drop::Before] {
                // From 1: a future that was never polled has done nothing.
                let mut polls = 1;
                while !attempt(case, at(polls), first_use).await {
                    polls += 1;
                    drops += 1;
                    assert!(polls < 1_000, "{case:?} never ends");
                }
            }
        }
    }
    assert!(drops > 60, "only {drops} await points");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_dropped_anywhere_goes_on() {
    for lost in [None, Some(Fault::LoseReply), Some(Fault::LoseRequest)] {
        for at in [Drop::After as fn(u32) -> Drop, Drop::Before] {
            for polls in 1.. {
                let server = SimServer::new(7);
                let (process, locks) = client(&server, "a");
                let guard = hold(&locks).await;
                if let Some(fault) = lost {
                    process.inject_into(Call::End, fault);
                }
                let ended = dropped(at(polls), guard.release()).await;
                drop(guard);
                server.advance(ms(1_500)).await;
                assert_eq!(server.left_behind(), "", "{lost:?} {:?}", at(polls));
                if ended.is_some() {
                    break;
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_dropped_anywhere_loses_nothing() {
    for at in [Drop::After as fn(u32) -> Drop, Drop::Before] {
        for polls in 1.. {
            let server = SimServer::new(7);
            let (_, locks) = client(&server, "a");
            let guard = hold(&locks).await;
            server.advance(secs(5)).await;
            let ended = dropped(at(polls), guard.renew()).await;
            server.advance(secs(60)).await;
            assert!(guard.is_valid(), "{:?}", at(polls));
            assert!(released(&guard.release().await));
            server.assert_idle();
            if ended.is_some() {
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_dropped_lets_the_next_one_pass() {
    let server = SimServer::new(1);
    let (_, a) = client(&server, "a");
    let (_, b) = client(&server, "b");
    let (_, c) = client(&server, "c");
    let guard = hold(&a).await;
    let mutex = job(&b);
    let mut second = Box::pin(mutex.lock());
    let third = tokio::spawn(async move { (hold(&c).await, c) });
    assert!(dropped(Drop::Before(5), &mut second).await.is_none());
    server.advance(ms(100)).await;
    // Dropped in the same instant as the lock is released.
    let freed = server.elapsed();
    let (release, ()) = join(guard.release(), async { drop(second) }).await;
    assert!(released(&release));
    let (_guard, _c) = third.await.expect("no panic");
    assert!(server.elapsed() - freed <= ms(5), "{}", server.timeline());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_is_released_in_the_background() {
    let server = SimServer::new(1);
    let (_, locks) = client(&server, "a");
    drop(hold(&locks).await);
    server.advance(ms(1)).await;
    server.assert_idle();
}

#[test]
fn a_guard_may_be_dropped_outside_of_any_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let (server, locks, guard) = runtime.block_on(async {
        let server = SimServer::new(1);
        let (_, locks) = client(&server, "a");
        let guard = hold(&locks).await;
        (server, locks, guard)
    });
    drop(guard);
    assert_ne!(server.left_behind(), "");
    runtime.block_on(server.advance(ms(10)));
    server.assert_idle();
    drop(locks);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_leaves_nothing() {
    let server = SimServer::new(1);
    let (process, locks) = client(&server, "a");
    let kept = hold(&locks).await;
    let dropped = locks.mutex("other").expect("valid").lock().await;
    let waiting = job(&locks);
    let waiting = tokio::spawn(async move { waiting.lock().await });
    server.advance(ms(100)).await;
    drop(dropped.expect("held"));
    process.inject_into(Call::End, Fault::LoseReply);
    locks.shutdown().await.expect("all acknowledged");
    server.assert_idle();
    assert!(!kept.is_valid());
    assert!(waiting.await.expect("no panic").is_err());
}

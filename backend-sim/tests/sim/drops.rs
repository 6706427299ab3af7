//! Futures and guards that are dropped at critical points.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use futures_util::future::join;
use leasehold_sim::{Call, Fault, SimServer};

use crate::locks::{client, hold, job, released, two_clients};
use crate::support::{ms, paused, secs};

/// The point at which a future is dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Drop {
    /// After this many polls that returned `Pending`.
    After(u32),
    /// After this many polls and one more wake-up, before the future is polled again. The result is
    /// there, but the future has not seen it.
    Before(u32),
}

/// Polls a future until it completes, or drops it. Returns `None` if the future was dropped.
pub(crate) async fn dropped<F: Future>(at: Drop, future: F) -> Option<F::Output> {
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

#[tokio::test(start_paused = true)]
async fn dropped_renewal_loses_nothing() {
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
async fn dropped_waiter_frees_the_next() {
    let (server, (_, a), (_, b)) = two_clients();
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
async fn dropped_guard_is_released_in_the_background() {
    let server = SimServer::new(1);
    let (_, locks) = client(&server, "a");
    drop(hold(&locks).await);
    server.advance(ms(1)).await;
    server.assert_idle();
}

#[test]
fn guard_may_be_dropped_outside_of_a_runtime() {
    let runtime = paused();
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
async fn shutdown_leaves_nothing() {
    let server = SimServer::new(1);
    let (process, locks) = client(&server, "a");
    let kept = hold(&locks).await;
    let dropped = locks.mutex("other").expect("valid").lock().await;
    let waiting = job(&locks);
    let waiting = tokio::spawn(async move { waiting.lock().await });
    server.advance(ms(100)).await;
    drop(dropped.expect("held"));
    process.inject_into(Call::Release, Fault::LoseReply);
    locks.shutdown().await.expect("all acknowledged");
    server.assert_idle();
    assert!(!kept.is_valid());
    assert!(waiting.await.expect("no panic").is_err());
}

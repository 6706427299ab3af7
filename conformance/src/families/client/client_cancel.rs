//! Dropped futures leave nothing behind, whenever they are dropped.

use futures_util::future::join;
use leasehold_api::{Error, LockClient};

use crate::case::{Case, cases};
use crate::failure::{Verdict, ensure, want_eq};
use crate::holding::{busy, free_within, got, polled, released};
use crate::world::World;

pub(super) const CASES: &[Case] = cases!("client_cancel";
    dropped_wait_leaves_nothing: ["rule 11", "L1"], [Queue, Inspect];
    dropped_when_granted_leaves_nothing: ["rule 11", "L1"], [Queue, Inspect];
    dropped_try_leaves_nothing: ["rule 11", "L1"], [Inspect];
    dropped_release_goes_on: ["S3", "L1"], [Inspect];
    refused_release_goes_on: ["rule 11", "L1"], [];
    dropped_without_an_answer_leaves_nothing: ["rule 11", "rule 12"], [Inspect];
    dropped_conversion_leaves_nothing: ["rule 6", "L1"], [RwLocks, Convert, Inspect];
);

/// The maximum number of polls after which a future is dropped.
const POLLS: u32 = 8;

/// Polls a future at most `polls` times, then drops it, and its output. Returns whether it completed.
async fn dropped_after(polls: u32, future: impl Future) -> bool {
    polled(polls, future).await.is_some()
}

/// Expects that within ten units the key has `holders` holders and no waiters.
async fn left(world: &World, locks: &LockClient, holders: u32, when: &str) -> Verdict {
    let mut counts = (u32::MAX, u32::MAX);
    for _ in 0..40 {
        let view = locks.inspect("k").await?;
        counts = (view.holder_count(), view.waiter_count());
        if counts == (holders, 0) {
            return Ok(());
        }
        world.pass_for(world.units(1) / 4).await;
    }
    want_eq!(counts, (holders, 0)).promised(format!(
        "rule 11: a dropped operation is released in the background: {when}"
    ))
}

async fn dropped_wait_leaves_nothing(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let _held = a.mutex("k")?.lock().await?;
    let mutex = b.mutex("k")?;
    for polls in 0..POLLS {
        // A wait is only polled again when something happens, so the last counts may not occur.
        let dropped = dropped_after(polls, mutex.lock());
        let _ended = world.within(12, dropped).await;
        left(world, &a, 1, &format!("a wait after {polls} polls")).await?;
    }
    Ok(())
}

async fn dropped_when_granted_leaves_nothing(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let mutex = b.mutex("k")?;
    for polls in 0..POLLS {
        let held = got(a.mutex("k")?.try_lock_for(world.units(60)).await, "L2")?;
        let dropped = dropped_after(polls, mutex.lock());
        // `join` polls the release first, so in the last rounds the future is dropped after its grant.
        let releases = async {
            world.pass(1).await;
            released(&held, "S3").await
        };
        let (done, _ended) = join(releases, world.within(12, dropped)).await;
        done?;
        left(world, &a, 0, &format!("a grant after {polls} polls")).await?;
    }
    Ok(())
}

async fn dropped_try_leaves_nothing(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    for polls in 0..POLLS {
        let mutex = b.mutex("k")?;
        dropped_after(polls, mutex.try_lock()).await;
        left(world, &a, 0, &format!("a try after {polls} polls")).await?;
    }
    Ok(())
}

async fn dropped_release_goes_on(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    for polls in 0..POLLS {
        let guard = b.mutex("k")?.lock().await?;
        dropped_after(polls, guard.release()).await;
        if polls > 0 {
            left(world, &a, 0, &format!("a release after {polls} polls")).await?;
        }
        drop(guard);
        left(world, &a, 0, "the guard").await?;
    }
    Ok(())
}

/// The client has no right to release for a while.
async fn refused_release_goes_on(world: &World) -> Verdict {
    let ((a, proxy), b) = (world.client_on_proxy().await?, world.client().await?);
    for is_dropped in [true, false] {
        let guard = got(a.mutex("k")?.try_lock_for(world.units(60)).await, "L2")?;
        proxy.refuse_releases(true);
        if is_dropped {
            drop(guard);
        } else {
            let told = guard.release().await;
            ensure!(matches!(told, Err(Error::Rejected { .. })), told)
                .promised("rule 11: the caller of a release hears that the server refuses it")?;
        }
        // Not for long: a lock from the queue that nobody has confirmed yet is free after 5 s.
        world.pass(4).await;
        busy(b.mutex("k")?.try_lock().await, "S1")?;
        proxy.refuse_releases(false);
        let promise = "rule 11: a refused release goes on in the background";
        free_within(&b, world.units(60), promise).await?;
    }
    Ok(())
}

/// The server granted the lock, but the client doesn't know.
async fn dropped_without_an_answer_leaves_nothing(world: &World) -> Verdict {
    let a = world.client().await?;
    let (b, proxy) = world.client_on_proxy().await?;
    let mutex = b.mutex("k")?;
    proxy.hold_replies(true);
    for units in 1..4 {
        let waited = world.within(units, mutex.lock()).await;
        want_eq!(waited.is_none(), true).promised("rule 11: no reply arrived")?;
        left(world, &a, 0, "an attempt without an answer").await?;
    }
    Ok(())
}

async fn dropped_conversion_leaves_nothing(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    for polls in 0..POLLS {
        let guard = b.rw_lock("k")?.write().await?;
        dropped_after(polls, guard.downgrade()).await;
        left(world, &a, 0, &format!("a downgrade after {polls} polls")).await?;
        let guard = b.rw_lock("k")?.read().await?;
        dropped_after(polls, guard.try_upgrade()).await;
        left(world, &a, 0, &format!("an upgrade after {polls} polls")).await?;
    }
    Ok(())
}

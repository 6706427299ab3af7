//! Late and duplicate commands of waiters, nested holds, conversions and forced releases.

use leasehold_api::{AcquireReply, ConvertReply, ForceMode, ForceReply, Stamped};

use super::redelivery::stale;
use crate::case::{Case, cases};
use crate::failure::{Verdict, want, want_eq};
use crate::world::{Lock, World};

pub(super) const CASES: &[Case] = cases!("redelivery_queue";
    queued_acquire_again_only_reports: ["rule 12"], [Queue];
    granted_acquire_again_reports_the_offer: ["rule 12", "rule 10"], [Queue, Clock];
    acquire_after_leaving_is_stale: ["rule 12"], [Queue];
    poll_after_the_release_creates_nothing: ["rule 12"], [Queue];
    poll_of_the_unknown_creates_nothing: ["rule 12"], [Queue];
    poll_twice_is_granted_once: ["rule 12", "rule 10"], [Queue];
    permit_acquired_twice_is_taken_once: ["rule 12"], [Semaphores];
    inner_hold_acquired_twice_counts_once: ["rule 12", "rule 5"], [Reentrancy];
    inner_hold_released_twice_counts_once: ["rule 12", "rule 5"], [Reentrancy];
    doubled_downgrade_undoes_no_upgrade: ["rule 6", "S3"], [RwLocks, Convert, FencingTokens];
    doubled_upgrade_undoes_no_downgrade: ["rule 6", "S3"], [RwLocks, Convert, FencingTokens];
    late_conversion_after_the_release: ["rule 6", "S3"], [RwLocks, Convert];
    doubled_force_spares_the_next_holder: ["S3", "rule 12"], [ForceRelease, FencingTokens];
);

async fn queued_acquire_again_only_reports(world: &World) -> Verdict {
    let lock = Lock::mutex("k").waiter_lease(world.units(30));
    let (a, b, lock, held) = world.held(lock).await?;
    let (waiter, queued) = b.ask(&lock).wait().queued("rule 7").await?;
    let end = waiter.stamp.at.saturating_add(queued.waiter_remaining);
    world.pass(2).await;
    let Stamped { stamp, reply } = waiter.again().await?;
    let again = want!(reply, AcquireReply::Queued(queued) => queued)
        .promised("rule 12: a second delivery of a waiting acquire reports the waiter")?;
    world
        .ends_at((stamp, again.waiter_remaining), end)
        .promised("rule 12: a redelivered acquire doesn't refresh its waiter")?;
    let (next, queued) = a.ask(&lock).wait().queued("rule 7").await?;
    want_eq!(queued.ahead, 1).promised("rule 12: one attempt has one waiter")?;
    held.released("S3").await?;
    waiter.released("rule 8").await?;
    next.poll_granted("rule 12").await
}

async fn granted_acquire_again_reports_the_offer(world: &World) -> Verdict {
    let lock = Lock::mutex("k").waiter_lease(world.units(30));
    let (_, b, lock, held) = world.held(lock).await?;
    let (waiter, queued) = b.ask(&lock).wait().queued("rule 7").await?;
    let end = waiter.stamp.at.saturating_add(queued.waiter_remaining);
    held.released("S3").await?;
    world.pass(1).await;
    let Stamped { stamp, reply } = waiter.again().await?;
    let acquired = want!(reply, AcquireReply::Acquired(acquired) => acquired)
        .promised("rule 12: a redelivered acquire reports a grant that came in the meantime")?;
    want_eq!(acquired.holds, 1).promised("rule 12: a redelivery adds no hold")?;
    world
        .ends_at((stamp, acquired.remaining), end)
        .promised("rule 10: an offer expires when its waiter would have")
}

async fn acquire_after_leaving_is_stale(world: &World) -> Verdict {
    let (a, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let (waiter, _) = b.ask(&lock).wait().queued("rule 7").await?;
    waiter.leaves("S3").await?;
    stale(&waiter).await?;
    held.released("S3").await?;
    stale(&waiter).await?;
    a.ask(&lock).granted("rule 12").await
}

async fn poll_after_the_release_creates_nothing(world: &World) -> Verdict {
    let (a, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let (waiter, _) = b.ask(&lock).wait().queued("rule 7").await?;
    waiter.leaves("S3").await?;
    let promise = "rule 12: a poll after the release finds nothing";
    waiter.poll_gone(promise).await?;
    held.released("S3").await?;
    let promise = "rule 12: a poll never creates a waiter or a hold";
    waiter.poll_gone(promise).await?;
    a.ask(&lock).granted("rule 12").await
}

async fn poll_of_the_unknown_creates_nothing(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    held.released("S3").await?;
    let promise = "rule 12: a poll of a released attempt finds nothing";
    held.poll_gone(promise).await?;
    b.ask(&lock).granted("rule 12").await
}

async fn poll_twice_is_granted_once(world: &World) -> Verdict {
    let (a, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let (waiter, _) = b.ask(&lock).wait().queued("rule 7").await?;
    held.released("S3").await?;
    let first = waiter.poll_granted_at("rule 8").await?.reply;
    let second = waiter.poll_granted_at("rule 8").await?.reply;
    want_eq!(second.token, first.token)
        .promised("rule 12: a duplicate poll reports the same epoch")?;
    want_eq!(second.holds, 1).promised("rule 12: a duplicate poll adds no hold")?;
    waiter.released("rule 12").await?;
    a.ask(&lock).granted("rule 12").await
}

async fn permit_acquired_twice_is_taken_once(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::semaphore("k", 2)).await?;
    held.again().await?;
    b.ask(&lock).acquired("rule 12").await?;
    b.ask(&lock).finds_contention("S1").await?;
    held.released("rule 12").await?;
    b.ask(&lock).granted("rule 12").await
}

async fn inner_hold_acquired_twice_counts_once(world: &World) -> Verdict {
    let (_, b, lock, outer) = world.held(Lock::mutex("k")).await?;
    let inner = outer.nested().acquired("rule 5").await?;
    want!(inner.again().await?.reply, AcquireReply::Acquired(acquired) if acquired.holds == 2)
        .promised("rule 12: two attempts are two holds, however often each is delivered")?;
    let promise = "rule 12: one release undoes all deliveries of its attempt";
    inner.release_leaves(1, promise).await?;
    outer.released("rule 12").await?;
    b.ask(&lock).granted("rule 12").await
}

async fn inner_hold_released_twice_counts_once(world: &World) -> Verdict {
    let (_, b, lock, outer) = world.held(Lock::mutex("k")).await?;
    let inner = outer.nested().acquired("rule 5").await?;
    let promise = "rule 5: a release of one of two holds leaves one";
    inner.release_leaves(1, promise).await?;
    let promise = "rule 12: a duplicate release doesn't release the other hold";
    inner.not_held(promise).await?;
    b.ask(&lock).finds_contention("S3").await?;
    outer.released("S3").await
}

async fn doubled_downgrade_undoes_no_upgrade(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::rw("k")).await?;
    let reading = held.downgraded(held.token()).await?;
    let writing = held.upgraded(reading).await?;
    want!(
        held.downgrade(held.token()).await?.reply,
        ConvertReply::WrongEpoch(view) if view.token == writing
    )
    .promised("rule 6: a late copy of the downgrade names a past epoch and changes nothing")?;
    b.ask(&lock).shared().finds_contention("S1").await
}

async fn doubled_upgrade_undoes_no_downgrade(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held_shared(Lock::rw("k")).await?;
    let writing = held.upgraded(held.token()).await?;
    held.downgraded(writing).await?;
    let reply = held.upgrade(held.token()).await?.reply;
    want!(reply, ConvertReply::WrongEpoch(_))
        .promised("rule 6: a late copy of the upgrade names a past epoch and changes nothing")?;
    b.ask(&lock).shared().granted("rule 6").await
}

async fn late_conversion_after_the_release(world: &World) -> Verdict {
    let (a, b, lock, held) = world.held(Lock::rw("k")).await?;
    held.released("S3").await?;
    let next = b.ask(&lock).acquired("S1").await?;
    for token in [held.token(), next.token()] {
        want!(held.downgrade(token).await?.reply, ConvertReply::Lost(_))
            .promised("S3: a conversion touches only the hold that it names")?;
    }
    a.ask(&lock).shared().finds_contention("S3").await
}

async fn doubled_force_spares_the_next_holder(world: &World) -> Verdict {
    let (a, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let how = ForceMode::Now;
    let forced = b.force(&held, how).await?;
    want!(forced, ForceReply::Forced { holders: 1 })
        .promised("S3: the forced release removes the holder that was seen")?;
    let next = b.ask(&lock).acquired("S1").await?;
    want!(b.force(&held, how).await?, ForceReply::WrongEpoch)
        .promised("S3: a duplicate forced release never affects a later epoch")?;
    a.ask(&lock).finds_contention("S3").await?;
    next.released("S3").await
}

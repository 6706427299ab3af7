//! Limits of an attempt, and attempts that use a key as another kind of lock.

use leasehold_api::{AcquireReply, InspectReply, Limits, LockSpec, Refused, Stamped};

use crate::case::{Case, cases};
use crate::failure::{Verdict, want, want_eq};
use crate::world::{Lock, World};

pub(super) const CASES: &[Case] = cases!("limits";
    queue_full: ["rule 10", "rule 13"], [Queue];
    expired_waiters_are_removed_before_the_queue_is_full: ["rule 10"], [Queue];
    limits_bind_their_own_attempt_only: ["rule 10"], [Queue];
    holders_full: ["rule 13"], [RwLocks];
    expired_holders_leave_room: ["rule 4"], [RwLocks];
    other_kind_is_told_what_lives_there: ["rule 13"], [RwLocks];
    other_waiter_lease_is_told_what_lives_there: ["rule 13"], [Queue, WaiterLease];
    other_capacity_is_told_what_lives_there: ["rule 13"], [Semaphores];
    waiters_keep_the_key_as_it_is: ["rule 13"], [RwLocks, Queue];
    idle_key_takes_the_newcomers_terms: ["rule 13"], [RwLocks, Semaphores, FencingTokens];
    expired_key_takes_the_newcomers_terms: ["rule 13", "rule 4"], [RwLocks];
    refused_attempt_changes_nothing: ["rule 13"], [RwLocks, Inspect];
);

fn waiters(n: u32) -> Limits {
    Limits {
        waiters: n,
        ..Limits::default()
    }
}

async fn queue_full(world: &World) -> Verdict {
    let (_, b, lock, _held) = world.held(Lock::mutex("k")).await?;
    let ask = |limit| b.ask(&lock).wait().limits(waiters(limit));
    let (first, _) = ask(2).queued("rule 7").await?;
    ask(2).queued("rule 7").await?;
    for limit in [2, 1, 0] {
        want_eq!(ask(limit).refused("rule 10").await?, Refused::QueueFull).promised(format!(
            "rule 10: a limit of {limit} allows two waiters and no more"
        ))?;
    }
    // A try doesn't queue, so the limit of waiters doesn't apply.
    b.ask(&lock)
        .limits(waiters(0))
        .finds_contention("rule 10")
        .await?;
    first.release().await?;
    ask(2).queued("rule 10").await.map(drop)
}

async fn expired_waiters_are_removed_before_the_queue_is_full(world: &World) -> Verdict {
    let lock = Lock::mutex("k").waiter_lease(world.units(8));
    let (_, b, lock, _held) = world.held(lock).await?;
    // The first waiter polls, the others are dead.
    let (alive, _) = b.ask(&lock).wait().queued("rule 7").await?;
    for _ in 0..3 {
        b.ask(&lock).wait().queued("rule 7").await?;
    }
    world.pass(5).await;
    alive.poll_queued("rule 10").await?;
    world.pass(5).await;
    let ask = b.ask(&lock).wait().limits(waiters(2));
    ask.queued("rule 10").await.map(drop)
}

async fn limits_bind_their_own_attempt_only(world: &World) -> Verdict {
    let (_, b, lock, _held) = world.held(Lock::mutex("k")).await?;
    let ask = b.ask(&lock).wait().limits(waiters(1));
    ask.queued("rule 7").await?;
    b.ask(&lock).wait().queued("rule 10").await.map(drop)
}

fn holders(n: u32) -> Limits {
    Limits {
        holders: n,
        ..Limits::default()
    }
}

async fn holders_full(world: &World) -> Verdict {
    let (a, _, lock, first) = world.held_shared(Lock::rw("k")).await?;
    a.ask(&lock).shared().acquired("S1").await?;
    let limited = || a.ask(&lock).shared().limits(holders(2));
    want_eq!(limited().refused("rule 13").await?, Refused::HoldersFull)
        .promised("rule 13: the attempt allows two readers and no more")?;
    first.released("S3").await?;
    limited().granted("rule 13").await
}

async fn expired_holders_leave_room(world: &World) -> Verdict {
    let lock = Lock::rw("k");
    let a = world.session().await?;
    for _ in 0..3 {
        let ask = a.ask(&lock).shared().lease(world.units(3));
        ask.acquired("S1").await?;
    }
    world.pass(4).await;
    let ask = a.ask(&lock).shared().limits(holders(1));
    ask.granted("rule 4").await
}

/// Expects that `other` is refused because the key is in use as `lock`.
async fn mismatch(world: &World, lock: &Lock, other: LockSpec) -> Verdict {
    let b = world.session().await?;
    let other = Lock::new(lock.key.as_str(), other);
    let lives_with = lock.spec;
    for ask in [b.ask(&other), b.ask(&other).wait()] {
        let refused = ask.refused("rule 13").await?;
        want_eq!(refused, Refused::Mismatch { lives_with })
            .promised("rule 13: the refusal reports what the key is in use as")?;
    }
    Ok(())
}

async fn other_kind_is_told_what_lives_there(world: &World) -> Verdict {
    let (mutex, rw) = (Lock::mutex("k1"), Lock::rw("k2"));
    for (lock, other) in [(&mutex, rw.spec), (&rw, mutex.spec)] {
        let held = world.session().await?.ask(lock).acquired("S1").await?;
        mismatch(world, lock, other).await?;
        held.released("S3").await?;
    }
    Ok(())
}

async fn other_waiter_lease_is_told_what_lives_there(world: &World) -> Verdict {
    let lock = Lock::mutex("k");
    let _held = world.session().await?.ask(&lock).acquired("S1").await?;
    let lease = world.units(7);
    mismatch(world, &lock, lock.spec.with_waiter_lease(lease)?).await
}

async fn other_capacity_is_told_what_lives_there(world: &World) -> Verdict {
    let lock = Lock::semaphore("k", 3);
    let _held = world.session().await?.ask(&lock).acquired("S1").await?;
    mismatch(world, &lock, LockSpec::semaphore(4)?).await?;
    mismatch(world, &lock, LockSpec::semaphore(2)?).await
}

async fn waiters_keep_the_key_as_it_is(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held_for(3).await?;
    let (waiter, _) = b.ask(&lock).wait().queued("rule 7").await?;
    world.pass(4).await;
    mismatch(world, &lock, LockSpec::rw_lock()).await?;
    held.release().await?;
    waiter.poll_granted("rule 7").await
}

async fn idle_key_takes_the_newcomers_terms(world: &World) -> Verdict {
    let a = world.session().await?;
    let mut last = None;
    for spec in [
        LockSpec::mutex(),
        LockSpec::rw_lock(),
        LockSpec::semaphore(3)?,
        LockSpec::semaphore(2)?,
        LockSpec::mutex().with_waiter_lease(world.units(7))?,
        LockSpec::mutex(),
    ] {
        let lock = Lock::new("k", spec);
        let held = a.ask(&lock).acquired("rule 13").await?;
        let token = Some(held.token());
        want_eq!(token > last, true).promised(
            "S4: tokens increase over the epochs of a key, whatever kind of lock it is",
        )?;
        last = token;
        held.released("S3").await?;
    }
    Ok(())
}

async fn expired_key_takes_the_newcomers_terms(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let ask = a.ask(&Lock::mutex("k")).lease(world.units(3));
    ask.acquired("S1").await?;
    world.pass(4).await;
    b.ask(&Lock::rw("k")).shared().acquired("rule 4").await?;
    a.ask(&Lock::rw("k")).shared().granted("rule 13").await
}

async fn refused_attempt_changes_nothing(world: &World) -> Verdict {
    let (_, b, lock, reading) = world.held_shared(Lock::rw("k")).await?;
    let before = b.inspect(&lock).await?;
    let (_, reply) = b.ask(&Lock::mutex("k")).send().await?;
    want!(reply, AcquireReply::Refused(Refused::Mismatch { .. }))
        .promised("rule 13: another kind")?;
    let ask = b.ask(&lock).shared().limits(holders(1));
    want_eq!(ask.refused("rule 13").await?, Refused::HoldersFull).promised("rule 13: too many")?;
    world.pass(1).await;
    let Stamped { stamp, reply } = b.inspect(&lock).await?;
    let left = reply.holders.first().map(|holder| holder.remaining);
    world
        .ends_at((stamp, left.unwrap_or_default()), reading.end_time())
        .promised("rule 13: refused attempts don't change the holder's lease")?;
    let counts = |it: &InspectReply| (it.holder_count, it.waiter_count, it.token, it.spec);
    want_eq!(counts(&reply), counts(&before.reply))
        .promised("rule 13: refused attempts leave nothing behind")
}

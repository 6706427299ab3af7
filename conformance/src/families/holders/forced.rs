//! Forced release: takes a key away from the holders that an inspection showed.

use leasehold_api::{
    AcquireReply, EndReason, FencingToken, ForceMode, ForceRelease, ForceReply, RenewReply,
};

use crate::case::{Case, cases};
use crate::failure::{Verdict, want, want_eq};
use crate::world::{Attempt, Lock, Session, World, next_epoch};

pub(super) const CASES: &[Case] = cases!("forced";
    revoked_holder_cannot_renew: ["S1", "S3"], [ForceRelease];
    revoked_holder_keeps_its_lease: ["S1"], [ForceRelease];
    revoked_holder_may_release: ["S3"], [ForceRelease];
    revoked_owner_cannot_nest_longer: ["S1", "rule 5"], [ForceRelease, Reentrancy];
    now_frees_at_once: ["S3"], [ForceRelease, FencingTokens];
    now_tells_its_holder: ["S3"], [ForceRelease];
    now_grants_to_the_waiter: ["rule 8"], [ForceRelease, Queue];
    never_a_later_epoch: ["S3"], [ForceRelease, FencingTokens];
    idle_key_has_nothing_to_force: ["S3"], [ForceRelease];
    all_readers_of_the_epoch: ["S3", "rule 15"], [ForceRelease, RwLocks];
    only_the_permit_that_was_named: ["S3"], [ForceRelease, Semaphores, FencingTokens];
);

/// Forces the release of the holders that have the token of `seen`, and expects that there are `holders`.
async fn forced(session: &Session, seen: &Attempt, how: ForceMode, holders: u32) -> Verdict {
    want_eq!(
        session.force(seen, how).await?,
        ForceReply::Forced { holders }
    )
    .promised("S3: the holders with the named token are released")
}

async fn revoked_holder_cannot_renew(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held_for(5).await?;
    forced(&b, &held, ForceMode::Revoke, 1).await?;
    let reply = held.renew(world.units(50)).await?.reply;
    want!(reply, RenewReply::Lost(EndReason::Forced))
        .promised("S3: a revoked holder can't renew, and the reply has the reason")?;
    world.pass(6).await;
    b.ask(&lock).granted("L1").await
}

async fn revoked_holder_keeps_its_lease(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    forced(&b, &held, ForceMode::Revoke, 1).await?;
    // The holder may rely on its deadline, so nobody else is granted before.
    b.ask(&lock).finds_contention("S1").await?;
    want!(held.again().await?.reply, AcquireReply::Acquired(_))
        .promised("S1: a revoked holder keeps the key until its lease ends")
}

async fn revoked_holder_may_release(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    forced(&b, &held, ForceMode::Revoke, 1).await?;
    held.released("S3").await?;
    b.ask(&lock).granted("S3").await
}

async fn revoked_owner_cannot_nest_longer(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held_for(5).await?;
    forced(&b, &held, ForceMode::Revoke, 1).await?;
    held.nested().lease(world.units(500)).send().await?;
    world.pass(6).await;
    b.ask(&lock).granted("S1").await
}

async fn now_frees_at_once(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    forced(&b, &held, ForceMode::Now, 1).await?;
    let next = b.ask(&lock).acquired("S3").await?;
    next_epoch(next.token(), held.token())
}

async fn now_tells_its_holder(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    forced(&b, &held, ForceMode::Now, 1).await?;
    want!(
        held.renew(world.units(50)).await?.reply,
        RenewReply::Lost(EndReason::Forced | EndReason::Unknown)
    )
    .promised("S3: a holder that was released by force has lost the key")?;
    let promise = "S3: a holder that was released by force can't release";
    held.not_held(promise).await?;
    b.ask(&lock).granted("S3").await
}

async fn now_grants_to_the_waiter(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let c = world.session().await?;
    let (waiter, _) = b.ask(&lock).wait().queued("rule 7").await?;
    forced(&c, &held, ForceMode::Now, 1).await?;
    waiter.renewed(world.units(50), "rule 8").await?;
    c.ask(&lock).finds_contention("S1").await
}

async fn never_a_later_epoch(world: &World) -> Verdict {
    let (a, b, lock, seen) = world.held(Lock::mutex("k")).await?;
    seen.released("S3").await?;
    let held = a.ask(&lock).acquired("S1").await?;
    for how in [ForceMode::Revoke, ForceMode::Now] {
        want_eq!(b.force(&seen, how).await?, ForceReply::WrongEpoch)
            .promised("S3: a forced release of a past token doesn't affect a later holder")?;
    }
    held.renewed(world.units(300), "S3").await?;
    b.ask(&lock).finds_contention("S3").await
}

async fn idle_key_has_nothing_to_force(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let (lock, seen) = (Lock::mutex("k"), vec![FencingToken::new(5)]);
    let request = ForceRelease::new(lock.key.clone(), seen).with_how(ForceMode::Now);
    let reply = b.backend.force_release(&request).await?.reply;
    want_eq!(reply, ForceReply::WrongEpoch).promised("S3: never used")?;
    let held = a.ask(&lock).lease(world.units(3)).acquired("S1").await?;
    world.pass(4).await;
    want_eq!(
        b.force(&held, ForceMode::Now).await?,
        ForceReply::WrongEpoch
    )
    .promised("S3: an expired holder can't be released by force")
}

async fn all_readers_of_the_epoch(world: &World) -> Verdict {
    let lock = Lock::rw("k");
    let readers = world.readers(&lock, 2).await?;
    let c = world.session().await?;
    forced(&c, &readers[0], ForceMode::Now, 2).await?;
    for reader in &readers {
        let promise = "S3: overlapping readers share the epoch that was released by force";
        reader.renewal_lost(world.units(5), promise).await?;
    }
    c.ask(&lock).granted("S3").await
}

async fn only_the_permit_that_was_named(world: &World) -> Verdict {
    let (a, b, lock, first) = world.held(Lock::semaphore("k", 2)).await?;
    let second = a.ask(&lock).acquired("S1").await?;
    forced(&b, &first, ForceMode::Now, 1).await?;
    second.renewed(world.units(300), "S3").await?;
    b.ask(&lock).acquired("S3").await?;
    b.ask(&lock).finds_contention("S1").await
}

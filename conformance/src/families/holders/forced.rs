//! Forced release: takes a key away from the holders that an inspection showed.

use leasehold_api::{
    AcquireReply, EndReason, FencingToken, ForceMode, ForceRelease, ForceReply, RenewReply,
};

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, want, want_eq};
use crate::world::{Lock, Session, World, next_epoch};

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

async fn force(
    session: &Session,
    lock: &Lock,
    token: FencingToken,
    how: ForceMode,
) -> Result<ForceReply, Failure> {
    let request = ForceRelease::new(lock.key.clone(), vec![token]).with_how(how);
    session.force(&request).await
}

async fn forced(
    session: &Session,
    lock: &Lock,
    token: FencingToken,
    how: ForceMode,
    holders: u32,
) -> Verdict {
    want_eq!(
        force(session, lock, token, how).await?,
        ForceReply::Forced { holders }
    )
    .promised("S3: the holders with the named token are released")
}

async fn revoked_holder_cannot_renew(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held_for(5).await?;
    forced(&b, &lock, held.token(), ForceMode::Revoke, 1).await?;
    want!(
        held.renew(world.units(50)).await?.reply,
        RenewReply::Lost(EndReason::Forced)
    )
    .promised("S3: a revoked holder can't renew, and the reply has the reason")?;
    world.pass(6).await;
    b.ask(&lock).granted("L1").await
}

async fn revoked_holder_keeps_its_lease(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    forced(&b, &lock, held.token(), ForceMode::Revoke, 1).await?;
    // The holder may rely on its deadline, so nobody else is granted before.
    b.ask(&lock).held("S1").await?;
    want!(held.again().await?.reply, AcquireReply::Acquired(_))
        .promised("S1: a revoked holder keeps the key until its lease ends")
}

async fn revoked_holder_may_release(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    forced(&b, &lock, held.token(), ForceMode::Revoke, 1).await?;
    held.released("S3").await?;
    b.ask(&lock).granted("S3").await
}

async fn revoked_owner_cannot_nest_longer(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let (lock, owner) = (Lock::mutex("k"), a.owner());
    let held = a
        .ask(&lock)
        .owner(owner)
        .lease(world.units(5))
        .acquired("S1")
        .await?;
    forced(&b, &lock, held.token(), ForceMode::Revoke, 1).await?;
    a.ask(&lock)
        .owner(owner)
        .lease(world.units(500))
        .send()
        .await?;
    world.pass(6).await;
    b.ask(&lock).granted("S1").await
}

async fn now_frees_at_once(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    forced(&b, &lock, held.token(), ForceMode::Now, 1).await?;
    let next = b.ask(&lock).acquired("S3").await?;
    next_epoch(next.token(), held.token())
}

async fn now_tells_its_holder(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    forced(&b, &lock, held.token(), ForceMode::Now, 1).await?;
    want!(
        held.renew(world.units(50)).await?.reply,
        RenewReply::Lost(EndReason::Forced | EndReason::Unknown)
    )
    .promised("S3: a holder that was released by force has lost the key")?;
    held.not_held("S3: a holder that was released by force can't release")
        .await?;
    b.ask(&lock).granted("S3").await
}

async fn now_grants_to_the_waiter(world: &World) -> Verdict {
    let [a, b, c] = world.sessions().await?;
    let lock = Lock::mutex("k");
    let held = a.ask(&lock).acquired("S1").await?;
    let (waiter, _) = b.ask(&lock).wait().queued("rule 7").await?;
    forced(&c, &lock, held.token(), ForceMode::Now, 1).await?;
    waiter.renewed(world.units(50), "rule 8").await?;
    c.ask(&lock).held("S1").await
}

async fn never_a_later_epoch(world: &World) -> Verdict {
    let (a, b, lock, seen) = world.held(Lock::mutex("k")).await?;
    seen.released("S3").await?;
    let held = a.ask(&lock).acquired("S1").await?;
    for how in [ForceMode::Revoke, ForceMode::Now] {
        want_eq!(
            force(&b, &lock, seen.token(), how).await?,
            ForceReply::WrongEpoch
        )
        .promised("S3: a forced release of a past token doesn't affect a later holder")?;
    }
    held.renewed(world.units(300), "S3").await?;
    b.ask(&lock).held("S3").await
}

async fn idle_key_has_nothing_to_force(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let lock = Lock::mutex("k");
    let seen = FencingToken::new(5);
    let how = ForceMode::Now;
    want_eq!(force(&b, &lock, seen, how).await?, ForceReply::WrongEpoch)
        .promised("S3: never used")?;
    let held = a.ask(&lock).lease(world.units(3)).acquired("S1").await?;
    world.pass(4).await;
    want_eq!(
        force(&b, &lock, held.token(), how).await?,
        ForceReply::WrongEpoch
    )
    .promised("S3: an expired holder can't be released by force")
}

async fn all_readers_of_the_epoch(world: &World) -> Verdict {
    let [a, b, c] = world.sessions().await?;
    let lock = Lock::rw("k");
    let first = a.ask(&lock).shared().acquired("S1").await?;
    let second = b.ask(&lock).shared().acquired("S1").await?;
    forced(&c, &lock, first.token(), ForceMode::Now, 2).await?;
    for reader in [&first, &second] {
        reader
            .renewal_lost(
                world.units(5),
                "S3: overlapping readers share the epoch that was released by force",
            )
            .await?;
    }
    c.ask(&lock).granted("S3").await
}

async fn only_the_permit_that_was_named(world: &World) -> Verdict {
    let (a, b, lock, first) = world.held(Lock::semaphore("k", 2)).await?;
    let second = a.ask(&lock).acquired("S1").await?;
    forced(&b, &lock, first.token(), ForceMode::Now, 1).await?;
    second.renewed(world.units(300), "S3").await?;
    b.ask(&lock).acquired("S3").await?;
    b.ask(&lock).held("S1").await
}

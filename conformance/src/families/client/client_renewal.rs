//! Renewal, and how a holder learns that its lock is lost.

use std::sync::atomic::{AtomicBool, Ordering};

use leasehold_api::{Error, ForceMode, ForceReply, LockClient, Loss, MutexGuard};

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, ensure, want, want_eq};
use crate::holding::{busy, free, free_within, got, not_valid, released, valid};
use crate::world::{Lock, World};

pub(super) const CASES: &[Case] = cases!("client_renewal";
    renewal_keeps_a_lock: ["L4", "rule 2"], [];
    fixed_lease_ends: ["S2", "L1"], [];
    renewing_by_hand_keeps_a_fixed_lease: ["rule 2", "S2"], [];
    release_stops_renewal: ["S3", "L1"], [];
    late_release_spares_the_next_holder: ["S3"], [];
    lost_guard_cannot_be_renewed: ["S2", "S3"], [];
    lost_tells_of_the_deadline: ["S2"], [];
    lost_is_silent_after_a_release: ["S3"], [];
    longest_hold_ends: ["S2", "L1"], [];
    with_runs_and_releases: ["S3"], [];
    with_stops_its_body: ["S2"], [];
    forced_now_is_noticed: ["S3"], [ForceRelease, FencingTokens];
    revoked_guard_is_lost: ["S1", "S3"], [ForceRelease, FencingTokens];
    revoked_before_the_subscription_is_noticed: ["rule 11"], [ForceRelease, Inspect, Push];
    force_spares_later_holders: ["S3"], [ForceRelease, Inspect, FencingTokens];
    forced_release_stops_a_body: ["S2", "S3"], [ForceRelease, FencingTokens];
);

async fn renewal_keeps_a_lock(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let guard = a.mutex("k")?.lease(world.units(20)).lock().await?;
    let token = guard.fencing_token();
    for _ in 0..4 {
        world.pass(15).await;
        let promise = "rule 2: renewal keeps the lock for longer than its lease";
        valid(&guard, promise)?;
        busy(b.mutex("k")?.try_lock().await, "S1")?;
    }
    want_eq!(guard.fencing_token(), token).promised("S4: renewals don't start an epoch")?;
    released(&guard, "S3").await
}

/// Acquires a guard with a fixed lease of `units` units.
async fn fixed(world: &World, client: &LockClient, units: u32) -> Result<MutexGuard, Failure> {
    let mutex = client.mutex("k")?.lease(world.units(units));
    Ok(mutex.fixed_lease().lock().await?)
}

async fn fixed_lease_ends(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let guard = fixed(world, &a, 8).await?;
    world.pass(9).await;
    not_valid(&guard, "S2: a fixed lease is not renewed")?;
    want_eq!(guard.valid_for().as_micros(), 0)
        .promised("S2: an expired guard is valid for no time")?;
    free(&b, "k", "L1").await
}

async fn renewing_by_hand_keeps_a_fixed_lease(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let guard = fixed(world, &a, 20).await?;
    for _ in 0..3 {
        world.pass(12).await;
        let left = guard.valid_for();
        let renewed = guard.renew().await?;
        ensure!(renewed > left && renewed < world.units(20), (left, renewed)).promised(
            "rule 2: a renewal extends the validity to a full lease, less the drift allowance",
        )?;
    }
    busy(b.mutex("k")?.try_lock().await, "S1")?;
    released(&guard, "S3").await
}

async fn release_stops_renewal(world: &World) -> Verdict {
    let (a, b) = (world.client().await?, world.session().await?);
    let guard = a.mutex("k")?.lease(world.units(9)).lock().await?;
    world.pass(4).await;
    released(&guard, "S3").await?;
    let ask = b.ask(&Lock::mutex("k")).lease(world.units(5));
    ask.acquired("S3").await?;
    // A renewal that continued after the release might extend another hold.
    world.pass(6).await;
    free(&a, "k", "L1").await
}

async fn late_release_spares_the_next_holder(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let late = fixed(world, &a, 5).await?;
    world.pass(6).await;
    let next = got(b.mutex("k")?.try_lock().await, "L1")?;
    want!(late.release().await, Err(Error::Lost { .. }))
        .promised("S3: a late release reports that the lock was no longer held")?;
    valid(&next, "S3: the next holder is not affected")?;
    busy(a.mutex("k")?.try_lock().await, "S3")?;
    released(&next, "S3").await
}

async fn lost_guard_cannot_be_renewed(world: &World) -> Verdict {
    let a = world.client().await?;
    let guard = fixed(world, &a, 5).await?;
    world.pass(6).await;
    want!(guard.renew().await, Err(Error::Lost { .. }))
        .promised("S2: a deadline in the past never moves again")?;
    not_valid(&guard, "S2: a lost guard never becomes valid again")
}

async fn lost_tells_of_the_deadline(world: &World) -> Verdict {
    let a = world.client().await?;
    let guard = fixed(world, &a, 5).await?;
    let early = world.within(2, guard.lost()).await;
    want_eq!(early, None).promised("S2: `lost` doesn't complete while the guard is valid")?;
    let late = world.within(20, guard.lost()).await;
    want!(late, Some(Loss::Deadline | Loss::Expired))
        .promised("S2: a guard is lost at its deadline, without a reply from the server")
}

async fn lost_is_silent_after_a_release(world: &World) -> Verdict {
    let a = world.client().await?;
    let guard = fixed(world, &a, 5).await?;
    let lost = guard.lost();
    released(&guard, "S3").await?;
    let reason = world.within(10, lost).await;
    want_eq!(reason, None).promised("S3: `lost` doesn't complete after a release")
}

async fn longest_hold_ends(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let mutex = a.mutex("k")?.lease(world.units(10));
    let guard = mutex.max_hold(world.units(15)).lock().await?;
    world.pass(8).await;
    valid(&guard, "S2: the lock is valid until the maximum hold")?;
    let lost = world.within(20, guard.lost()).await;
    want_eq!(lost, Some(Loss::MaxHold))
        .promised("S2: a holder loses the lock after the maximum hold")?;
    let promise = "L1: the key is free when the lease ends";
    free_within(&b, world.units(30), promise).await
}

async fn with_runs_and_releases(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let mutex = a.mutex("k")?;
    let other = b.mutex("k")?;
    let inside = mutex.with(async |_| other.try_lock().await).await?;
    busy(inside, "S1")?;
    let next = got(other.try_lock().await, "S3")?;
    released(&next, "S3").await
}

async fn with_stops_its_body(world: &World) -> Verdict {
    let a = world.client().await?;
    let mutex = a.mutex("k")?.lease(world.units(5)).fixed_lease();
    let ended = AtomicBool::new(false);
    let body = mutex.with(async |_| {
        world.pass(50).await;
        ended.store(true, Ordering::SeqCst);
    });
    let result = body.await;
    want!(result, Err(Error::Lost { .. }))
        .promised("S2: `with` stops its body when the lock is lost")?;
    let ended = ended.load(Ordering::SeqCst);
    ensure!(!ended, ended).promised("S2: the body doesn't complete")
}

/// Forces the release of `guard` by another client. Returns the reason of the loss.
async fn forced(
    world: &World,
    how: ForceMode,
) -> Result<(MutexGuard, Option<Loss>, LockClient), Failure> {
    let [a, b] = world.clients().await?;
    let guard = a.mutex("k")?.lease(world.units(15)).lock().await?;
    let seen = vec![guard.fencing_token()];
    want!(
        b.force_release("k", seen, how).await?,
        ForceReply::Forced { .. }
    )
    .promised("S3: a forced release ends the holders that it names")?;
    // The next renewal notices it at the latest.
    let lost = world.within(14, guard.lost()).await;
    Ok((guard, lost, b))
}

async fn forced_now_is_noticed(world: &World) -> Verdict {
    let (guard, lost, b) = forced(world, ForceMode::Now).await?;
    want!(lost, Some(Loss::Forced | Loss::Unknown))
        .promised("S3: a holder learns of a forced release")?;
    not_valid(&guard, "S3: the guard is not valid")?;
    free(&b, "k", "S3").await
}

async fn revoked_guard_is_lost(world: &World) -> Verdict {
    let (guard, lost, b) = forced(world, ForceMode::Revoke).await?;
    want_eq!(lost, Some(Loss::Forced)).promised("S3: a revoked holder learns the reason")?;
    not_valid(&guard, "S3: the guard is not valid")?;
    let promise = "L1: the key is free when the lease ends";
    free_within(&b, world.units(40), promise).await
}

/// The subscription of a client begins with its first lock, so the notification of a forced release
/// at that moment may have no listener.
async fn revoked_before_the_subscription_is_noticed(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    b.inspect("k").await?;
    // The first renewal that is due by itself comes after 30 units.
    let guard = a.mutex("k")?.lease(world.units(90)).lock().await?;
    let seen = b.inspect("k").await?.held_tokens();
    want!(
        b.force_release("k", seen, ForceMode::Revoke).await?,
        ForceReply::Forced { .. }
    )
    .promised("S3: a forced release ends the holders that it names")?;
    let lost = world.within(20, guard.lost()).await;
    want_eq!(lost, Some(Loss::Forced))
        .promised("rule 11: a client asks once, after it has subscribed, what it missed")
}

async fn force_spares_later_holders(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let seen = a.mutex("k")?.lock().await?;
    let tokens = b.inspect("k").await?.held_tokens();
    released(&seen, "S3").await?;
    let guard = a.mutex("k")?.lock().await?;
    let forced = b.force_release("k", tokens, ForceMode::Now).await?;
    want!(forced, ForceReply::WrongEpoch)
        .promised("S3: a forced release of a past token doesn't affect a later holder")?;
    guard.renew().await?;
    released(&guard, "S3").await
}

async fn forced_release_stops_a_body(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let mutex = a.mutex("k")?.lease(world.units(15));
    let body = mutex.with(async |guard| {
        let tokens = vec![guard.fencing_token()];
        let forced = b.force_release("k", tokens, ForceMode::Now).await;
        world.pass(100).await;
        forced.is_ok()
    });
    want!(body.await, Err(Error::Lost { .. }))
        .promised("S3: `with` stops its body when the lock is lost")
}

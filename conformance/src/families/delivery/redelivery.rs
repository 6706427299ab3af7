//! A command that arrives twice or late has one effect, and its reply describes the current state.

use std::time::Duration;

use leasehold_api::{AcquireReply, Acquired, RenewReply, ServerTime, Stamped};

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, want, want_eq};
use crate::world::{Attempt, Lock, World};

pub(super) const CASES: &[Case] = cases!("redelivery";
    acquire_twice_holds_once: ["rule 12"], [];
    acquire_again_says_the_time_left: ["rule 2"], [Clock];
    acquire_again_extends_nothing: ["rule 2", "rule 12"], [];
    acquire_after_its_release_is_stale: ["rule 12"], [];
    release_before_acquire_makes_it_stale: ["rule 12"], [];
    older_sequence_is_stale: ["rule 12"], [];
    each_session_has_its_own_sequences: ["rule 12"], [];
    expired_acquire_is_stale: ["rule 12", "S3"], [];
    acquire_after_its_window_is_too_late: ["rule 12"], [];
    acquire_too_far_ahead_is_too_late: ["rule 12"], [];
    too_late_changes_nothing: ["rule 12", "rule 13"], [];
    renewal_twice_is_true_now: ["rule 2", "rule 12"], [];
    renewal_after_the_release_revives_nothing: ["S3", "rule 12"], [];
    late_release_of_a_retried_acquire: ["rule 12", "S3"], [];
    try_again_after_held_is_stale: ["rule 12"], [];
);

async fn reported(attempt: &Attempt) -> Result<Stamped<Acquired>, Failure> {
    let Stamped { stamp, reply } = attempt.again().await?;
    let reply = want!(reply, AcquireReply::Acquired(acquired) => acquired)
        .promised("rule 12: a second delivery of a granted acquire reports the hold")?;
    Ok(Stamped { stamp, reply })
}

/// Expects that a redelivered acquire is stale.
pub(super) async fn stale(attempt: &Attempt) -> Verdict {
    let reply = attempt.again().await?.reply;
    want!(reply, AcquireReply::Stale).promised(
        "rule 12: an acquire at or below the highest sequence seen that is not live is stale",
    )
}

async fn acquire_twice_holds_once(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    for _ in 0..3 {
        let acquired = reported(&held).await?.reply;
        want_eq!(acquired.holds, 1).promised("rule 12: deliveries are not counted")?;
        want_eq!(acquired.token, held.token()).promised("rule 12: a redelivery starts no epoch")?;
    }
    held.released("rule 12").await?;
    b.ask(&lock).granted("rule 12").await
}

async fn acquire_again_says_the_time_left(world: &World) -> Verdict {
    let a = world.session().await?;
    // Much longer than a busy machine may stall.
    let ask = a.ask(&Lock::mutex("k")).lease(world.units(300));
    let held = ask.acquired("S1").await?;
    for _ in 0..3 {
        world.pass(3).await;
        let Stamped { stamp, reply } = reported(&held).await?;
        let promise = "rule 2: a redelivery reports the time that is left now, not what was left";
        world
            .ends_at((stamp, reply.remaining), held.end_time())
            .promised(promise)?;
    }
    Ok(())
}

async fn acquire_again_extends_nothing(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held_for(5).await?;
    world.pass(3).await;
    held.again().await?;
    world.pass(3).await;
    b.ask(&lock).granted("rule 2").await
}

async fn acquire_after_its_release_is_stale(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    held.released("S3").await?;
    stale(&held).await?;
    b.ask(&lock).granted("rule 12").await
}

async fn release_before_acquire_makes_it_stale(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let lock = Lock::mutex("k");
    let ask = a.ask(&lock);
    let request = ask.build().await?;
    let promise = "rule 12: a release that overtakes its acquire finds nothing";
    a.releases_nothing(&lock, request.operation, promise)
        .await?;
    let (_, reply) = Attempt::send(a, request).await?;
    want!(reply, AcquireReply::Stale)
        .promised("rule 12: an acquire that arrives after its release is stale")?;
    b.ask(&lock).granted("rule 12").await
}

async fn older_sequence_is_stale(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let lock = Lock::mutex("k");
    let delayed = a.ask(&lock).build().await?;
    a.ask(&lock).acquired("S1").await?.released("S3").await?;
    let (_, reply) = Attempt::send(a, delayed).await?;
    want!(reply, AcquireReply::Stale)
        .promised("rule 12: an attempt is stale if the session has already sent a later one")?;
    b.ask(&lock).granted("rule 12").await
}

async fn each_session_has_its_own_sequences(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let lock = Lock::mutex("k");
    let first_of_b = b.ask(&lock);
    for _ in 0..5 {
        a.ask(&lock).acquired("S1").await?.released("S3").await?;
    }
    first_of_b.granted("rule 12").await
}

async fn expired_acquire_is_stale(world: &World) -> Verdict {
    let (_, b, lock, late) = world.held_for(3).await?;
    world.pass(4).await;
    // A delayed copy must not acquire the key a second time.
    stale(&late).await?;
    let held = b.ask(&lock).acquired("rule 12").await?;
    stale(&late).await?;
    held.released("S3").await
}

/// Sends an acquire to be delivered before `now + ahead - behind`.
async fn sent_for(
    world: &World,
    lock: &Lock,
    ahead: Duration,
    behind: Duration,
) -> Result<AcquireReply, Failure> {
    let a = world.session().await?;
    let now = a.now().await?.saturating_add(ahead).as_micros();
    let behind = u64::try_from(behind.as_micros()).unwrap_or(u64::MAX);
    let until = ServerTime::from_micros(now.saturating_sub(behind));
    let request = a.ask(lock).build_until(until)?;
    Ok(Attempt::send(a, request).await?.1)
}

async fn acquire_after_its_window_is_too_late(world: &World) -> Verdict {
    let lock = Lock::mutex("k");
    for behind in [Duration::from_micros(1), Duration::from_secs(60)] {
        world.pass_for(Duration::from_millis(1)).await;
        let reply = sent_for(world, &lock, Duration::ZERO, behind).await?;
        want!(reply, AcquireReply::TooLate).promised(format!(
            "rule 12: an acquire is not executed after its deliver-before ({behind:?} ago)"
        ))?;
    }
    world.session().await?.ask(&lock).granted("rule 12").await
}

async fn acquire_too_far_ahead_is_too_late(world: &World) -> Verdict {
    let lock = Lock::mutex("k");
    for ahead in [Duration::from_secs(12), Duration::from_secs(3_600)] {
        let reply = sent_for(world, &lock, ahead, Duration::ZERO).await?;
        want!(reply, AcquireReply::TooLate).promised(format!(
            "rule 12: watermarks expire, so an acquire is deliverable for at most 10 s, not {ahead:?}"
        ))?;
    }
    world.session().await?.ask(&lock).granted("rule 12").await
}

async fn too_late_changes_nothing(world: &World) -> Verdict {
    let a = world.session().await?;
    let lock = Lock::mutex("k");
    let ask = a.ask(&lock);
    let request = ask.build_until(ServerTime::from_micros(1))?;
    let (_, reply) = Attempt::send(a.clone(), request).await?;
    want!(reply, AcquireReply::TooLate)
        .promised("rule 12: an acquire is not executed after its deliver-before")?;
    // The client corrects its clock by the stamp and retries: the attempt is still usable.
    ask.granted("rule 13").await
}

async fn renewal_twice_is_true_now(world: &World) -> Verdict {
    let a = world.session().await?;
    let held = a.ask(&Lock::mutex("k")).acquired("S1").await?;
    let lease = world.units(400);
    for _ in 0..3 {
        let Stamped { stamp, reply } = held.renew(lease).await?;
        let remaining = want!(reply, RenewReply::Renewed { remaining, .. } => remaining)
            .promised("rule 12: a duplicate renewal has the same result as the first")?;
        let promise = "rule 2: each delivery of a renewal extends the lease from its own execution";
        world
            .ends_at((stamp, remaining), stamp.at.saturating_add(lease))
            .promised(promise)?;
        world.pass(1).await;
    }
    Ok(())
}

async fn renewal_after_the_release_revives_nothing(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    held.released("S3").await?;
    let promise = "S3: a renewal that arrives after the release revives nothing";
    held.renewal_lost(world.units(500), promise).await?;
    b.ask(&lock).granted("S3").await
}

async fn late_release_of_a_retried_acquire(world: &World) -> Verdict {
    // The caller gave up its first attempt and made another. The release of the first one comes late.
    let (a, b, lock, first) = world.held(Lock::mutex("k")).await?;
    first.released("S3").await?;
    let second = a.ask(&lock).acquired("S1").await?;
    let promise = "S3: the release of one attempt doesn't release the next";
    first.not_held(promise).await?;
    let acquired = reported(&second).await?.reply;
    want_eq!(acquired.holds, 1).promised("rule 12: the later attempt still holds the key")?;
    b.ask(&lock).finds_contention("S3").await
}

async fn try_again_after_held_is_stale(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let (tried, reply) = b.ask(&lock).send().await?;
    want!(reply, AcquireReply::Contended(_)).promised("S1: the key is held")?;
    held.released("S3").await?;
    // A delayed copy of the attempt must not acquire the key, because the caller has given up.
    stale(&tried).await?;
    b.ask(&lock).granted("rule 12").await
}

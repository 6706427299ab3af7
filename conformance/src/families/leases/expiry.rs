//! Expiry: a lease that nobody renews ends at its time, and not before.

use std::time::Duration;

use futures_util::future::try_join_all;
use leasehold_api::{AcquireReply, EndReason, PollReply, ReleaseReply, RenewReply, ServerTime};

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, ensure, want, want_eq};
use crate::world::{Attempt, Lock, Session, World};

pub(super) const CASES: &[Case] = cases!("expiry";
    unattended_lease_frees_the_key: ["rule 1", "L1"], [];
    not_a_moment_early: ["rule 1", "S1"], [];
    free_at_the_very_end: ["rule 1", "S1"], [];
    expired_holder_cannot_renew: ["rule 4", "S3"], [];
    expired_holder_cannot_release: ["rule 4", "S3"], [];
    renewal_moves_the_end: ["rule 2"], [];
    renewal_never_shortens: ["rule 5", "rule 2"], [Clock];
    short_lease_after_a_long_one: ["rule 1", "L1"], [];
    holder_expires_while_another_waits: ["L1", "L2"], [Queue];
    waiter_is_told_when_to_come_back: ["rule 3"], [Queue];
    one_reader_of_several: ["rule 4"], [RwLocks];
    short_reader_never_cuts_a_long_one: ["rule 4"], [RwLocks];
    renewing_one_reader_extends_no_other: ["rule 4"], [RwLocks];
    dead_permit_comes_back_alone: ["rule 4", "L1"], [Semaphores];
);

async fn unattended_lease_frees_the_key(world: &World) -> Verdict {
    let (_, b, lock, _held) = world.held_for(3).await?;
    world.pass(4).await;
    b.ask(&lock).granted("L1").await
}

/// Sends attempts around the end of the lease and checks each answer by its own stamp.
async fn not_a_moment_early(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held_for(2).await?;
    let end = held.end_time();
    for _ in 0..2_000 {
        let (attempt, reply) = b.ask(&lock).send().await?;
        let at = attempt.stamp.at;
        let over = at >= end;
        // Both are zero on a server with a clock.
        let (skew, late) = (world.skew(), world.late_ends());
        match reply {
            AcquireReply::Contended(_) if at < end.saturating_add(late) => {}
            AcquireReply::Acquired(_) if at.saturating_add(skew) >= end => return Ok(()),
            other => {
                let expected = if over { "Acquired" } else { "Contended" };
                let promise = format!("rule 1: expired means now >= expiry; the expiry is {end:?}");
                return Err(Failure::new(promise, expected, (attempt.stamp, other)));
            }
        }
        let left = end.saturating_since(attempt.stamp.at);
        world
            .pass_for((left / 2).max(Duration::from_millis(1)))
            .await;
    }
    let promise = "L1: the key is free when the lease is over";
    Err(Failure::new(promise, "Acquired", "Contended"))
}

/// Sends attempts every millisecond across the end of the lease. The first one executed at or after
/// the end is granted. Several leases make it likely that an attempt is executed at the very end.
async fn free_at_the_very_end(world: &World) -> Verdict {
    for name in ["a", "b", "c", "d"] {
        free_at_the_end_of(world, &Lock::mutex(name)).await?;
    }
    Ok(())
}

async fn free_at_the_end_of(world: &World, lock: &Lock) -> Verdict {
    let [a, b] = world.sessions().await?;
    let held = a.ask(lock).lease(world.units(3)).acquired("S1").await?;
    let end = held.end_time();
    let mut requests = Vec::new();
    let now = b.now().await?;
    for n in 0..30 {
        let session = Session::on(b.backend.clone());
        let request = session.ask(lock).build_from(now)?;
        requests.push((n, session, request));
    }
    let left = end.saturating_since(now);
    world
        .pass_for(left.saturating_sub(Duration::from_millis(15)))
        .await;
    let attempts = requests
        .into_iter()
        .map(|(n, session, request)| async move {
            world.pass_for(Duration::from_millis(n)).await;
            let (attempt, reply) = Attempt::send(session, request).await?;
            Ok::<_, Failure>((attempt.stamp.at, reply))
        });
    let answers = try_join_all(attempts).await?;
    // Zero, unless several servers vote.
    let skew = world.skew();
    let early = answers
        .iter()
        .filter(|(at, _)| at.saturating_add(skew) < end);
    for (at, reply) in early {
        let held = matches!(reply, AcquireReply::Contended(_));
        ensure!(held, (at, reply)).promised(format!("S1: nobody is granted before {end:?}"))?;
    }
    let is_late = |(at, _): &&(ServerTime, _)| at.saturating_add(skew) >= end;
    let late: Vec<_> = answers.iter().filter(is_late).collect();
    let first = late.iter().map(|(at, _)| *at).min();
    let latest = first.map(|first| first.saturating_add(skew * 2));
    let granted = |(at, reply): &&&(ServerTime, AcquireReply)| {
        Some(*at) <= latest && matches!(reply, AcquireReply::Acquired(_))
    };
    let won = late.iter().filter(granted).count();
    // Several servers may split their votes, and without a clock, a lease ends a moment late.
    let none = won == 0 && !world.late_ends().is_zero();
    ensure!(late.is_empty() || won == 1 || none, (first, &late)).promised(format!(
        "rule 1: expired means now >= expiry: the first attempt at or after {end:?} is granted"
    ))
}

async fn expired_holder_cannot_renew(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held_for(3).await?;
    world.pass(4).await;
    want!(
        held.renew(world.units(50)).await?.reply,
        RenewReply::Lost(EndReason::Expired | EndReason::Unknown)
    )
    .promised("rule 4: a renewal never revives an expired lease")?;
    b.ask(&lock).granted("L1").await
}

async fn expired_holder_cannot_release(world: &World) -> Verdict {
    let (.., held) = world.held_for(3).await?;
    world.pass(4).await;
    want!(
        held.release().await?,
        ReleaseReply::NotHeld(EndReason::Expired | EndReason::Unknown)
    )
    .promised("S3: an expired hold can't be released")
}

async fn renewal_moves_the_end(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held_for(10).await?;
    world.pass(5).await;
    let (token, end) = held.renewed(world.units(10), "rule 2").await?;
    want_eq!(token, held.token()).promised("S4: a renewal doesn't start an epoch")?;
    let moved = end.saturating_since(held.end_time());
    ensure!(moved >= world.units(5), moved).promised(
        "rule 2: a renewal extends the lease to its full length from the renewal's execution",
    )?;
    world.pass(7).await;
    b.ask(&lock).finds_contention("S1").await?;
    world.pass(5).await;
    b.ask(&lock).granted("L1").await
}

async fn renewal_never_shortens(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held_for(30).await?;
    let renewed = held.renew(world.units(1)).await?;
    let remaining = want!(renewed.reply, RenewReply::Renewed { remaining, .. } => remaining)
        .promised("rule 2: a valid lease is renewed")?;
    world
        .ends_at((renewed.stamp, remaining), held.end_time())
        .promised("rule 5: a renewal with a shorter lease doesn't move the end")?;
    world.pass(3).await;
    b.ask(&lock).finds_contention("S1").await
}

/// A backend may cache the earliest end of a key. The cached value must not outlive its holder.
async fn short_lease_after_a_long_one(world: &World) -> Verdict {
    let (a, b, lock, long) = world.held_for(500).await?;
    long.released("S3").await?;
    a.ask(&lock).lease(world.units(3)).acquired("S1").await?;
    world.pass(4).await;
    b.ask(&lock).granted("L1").await
}

async fn holder_expires_while_another_waits(world: &World) -> Verdict {
    let (_, b, lock, _held) = world.held_for(4).await?;
    let (waiter, queued) = b.ask(&lock).wait().queued("rule 7").await?;
    want_eq!(queued.ahead, 0).promised("rule 7: the first waiter has nobody ahead")?;
    waiter.poll_queued("S1").await?;
    world.pass(5).await;
    waiter.poll_granted("L1").await
}

async fn waiter_is_told_when_to_come_back(world: &World) -> Verdict {
    let (_, b, lock, _held) = world.held_for(5).await?;
    let (waiter, queued) = b.ask(&lock).wait().queued("rule 7").await?;
    let mut poll_after = queued.poll_after;
    // A store may have a shorter interval than the rule. A client polls at most every 10 ms.
    let polls = 8 + world.units(5).as_millis() / 10;
    for _ in 0..polls {
        let interval = lock.spec.poll_interval();
        ensure!(!poll_after.is_zero() && poll_after <= interval, poll_after).promised(format!(
            "rule 3: `poll_after` is at most the poll interval of {interval:?}"
        ))?;
        world.pass_for(poll_after).await;
        match waiter.poll().await?.reply {
            PollReply::Queued(queued) => poll_after = queued.poll_after,
            other => {
                want!(other, PollReply::Acquired(_)).promised(
                    "rule 3: the first waiter gets the expired key if it polls after `poll_after`",
                )?;
                return Ok(());
            }
        }
    }
    let promise = "rule 3: `poll_after` is the time to the earliest change";
    Err(Failure::new(promise, "Acquired", "Queued"))
}

async fn readers(world: &World, lock: &Lock, units: &[u32]) -> Result<Vec<Attempt>, Failure> {
    let mut all = Vec::new();
    for n in units {
        let session = world.session().await?;
        let ask = session.ask(lock).shared().lease(world.units(*n));
        all.push(ask.acquired("rule 4").await?);
    }
    Ok(all)
}

async fn one_reader_of_several(world: &World) -> Verdict {
    let lock = Lock::rw("k");
    let all = readers(world, &lock, &[300, 3, 300]).await?;
    let writer = world.session().await?;
    world.pass(4).await;
    let promise = "rule 4: a reader whose lease is over is gone";
    all[1].renewal_lost(world.units(300), promise).await?;
    for long in [&all[0], &all[2]] {
        long.renewed(world.units(300), "rule 4").await?;
        writer.ask(&lock).finds_contention("S1").await?;
        long.released("S3").await?;
    }
    writer.ask(&lock).granted("rule 4").await
}

async fn short_reader_never_cuts_a_long_one(world: &World) -> Verdict {
    let lock = Lock::rw("k");
    readers(world, &lock, &[20, 2]).await?;
    let writer = world.session().await?;
    world.pass(4).await;
    writer.ask(&lock).finds_contention("rule 4").await?;
    world.pass(17).await;
    writer.ask(&lock).granted("L1").await
}

async fn renewing_one_reader_extends_no_other(world: &World) -> Verdict {
    let lock = Lock::rw("k");
    let all = readers(world, &lock, &[4, 4]).await?;
    world.pass(1).await;
    all[0].renewed(world.units(300), "rule 4").await?;
    world.pass(4).await;
    let promise = "rule 4: a reader that didn't renew is gone, even if others did";
    all[1].renewal_lost(world.units(300), promise).await?;
    all[0].released("S3").await?;
    world.session().await?.ask(&lock).granted("L1").await
}

async fn dead_permit_comes_back_alone(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let lock = Lock::semaphore("k", 2);
    a.ask(&lock).lease(world.units(3)).acquired("S1").await?;
    let long = a.ask(&lock).lease(world.units(300)).acquired("S1").await?;
    b.ask(&lock).finds_contention("S1").await?;
    world.pass(4).await;
    b.ask(&lock).acquired("L1").await?;
    b.ask(&lock).finds_contention("S1").await?;
    long.renewed(world.units(300), "rule 4").await.map(drop)
}

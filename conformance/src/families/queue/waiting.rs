//! The queue: the order of waiters, their expiry, and their turn.

use std::time::Duration;

use leasehold_api::{AcquireReply, EndReason, PollReply, bounds};

use crate::case::{Case, cases};
use crate::failure::{Verdict, ensure, want, want_eq};
use crate::world::{Lock, World};

pub(super) const CASES: &[Case] = cases!("waiting";
    free_key_is_not_waited_for: ["rule 7"], [Queue];
    waiters_know_their_position: ["rule 7"], [Queue];
    waiter_expires_after_one_waiter_lease: ["rule 10"], [Queue];
    first_come_first_served: ["rule 7", "L3"], [Queue];
    many_waiters_are_served_in_order: ["rule 7", "L3"], [Queue];
    nobody_overtakes_a_waiter: ["rule 7", "L3"], [Queue];
    release_grants_in_the_same_step: ["rule 8"], [Queue, FencingTokens];
    polls_alone_bring_the_turn: ["L2", "rule 3"], [Queue];
    try_does_not_queue: ["rule 7"], [Queue];
    poll_refreshes_the_waiter: ["rule 10"], [Queue];
    waiter_without_polls_expires: ["rule 10", "L1"], [Queue];
    waiter_expires_at_its_own_deadline: ["rule 10"], [Queue];
    deadline_bounds_the_offer_too: ["rule 10"], [Queue];
    deadline_in_the_past_is_a_try: ["rule 10"], [Queue];
    leaving_lets_the_next_move_up: ["rule 7"], [Queue];
    advice_stays_within_the_poll_interval: ["rule 3"], [Queue];
    waiters_of_one_session_queue_too: ["rule 7"], [Queue];
);

async fn free_key_is_not_waited_for(world: &World) -> Verdict {
    let a = world.session().await?;
    a.ask(&Lock::mutex("k")).wait().granted("rule 7").await
}

async fn waiters_know_their_position(world: &World) -> Verdict {
    let lock = Lock::mutex("k");
    world.session().await?.ask(&lock).acquired("S1").await?;
    for ahead in 0..5 {
        let session = world.session().await?;
        let (_, queued) = session.ask(&lock).wait().queued("rule 7").await?;
        want_eq!(queued.ahead, ahead)
            .promised("rule 7: each new waiter joins the end of the queue")?;
    }
    Ok(())
}

async fn waiter_expires_after_one_waiter_lease(world: &World) -> Verdict {
    let lock = Lock::mutex("k").waiter_lease(world.units(20));
    let (_, b, lock, _held) = world.held(lock).await?;
    let (_, queued) = b.ask(&lock).wait().queued("rule 7").await?;
    want_eq!(queued.waiter_remaining, world.units(20))
        .promised("rule 10: a waiter lasts for one waiter lease from its acquire")
}

/// More waiters than a backend may store inline with the key.
const CROWD: usize = 80;

async fn many_waiters_are_served_in_order(world: &World) -> Verdict {
    let lock = Lock::mutex("k").waiter_lease(Duration::from_secs(60));
    let (a, b, lock, mut holder) = world.held(lock).await?;
    let mut waiters = Vec::new();
    for n in 0..CROWD {
        let session = if n % 2 == 0 { &a } else { &b };
        let (waiter, queued) = session.ask(&lock).wait().queued("rule 7").await?;
        let ahead = usize::try_from(queued.ahead).unwrap_or(usize::MAX);
        want_eq!(ahead, n).promised("rule 7: every earlier waiter is ahead")?;
        waiters.push(waiter);
    }
    for waiter in waiters {
        holder.released("S3").await?;
        waiter.poll_granted("rule 7").await?;
        holder = waiter;
    }
    Ok(())
}

async fn first_come_first_served(world: &World) -> Verdict {
    let (.., lock, mut holder) = world.held(Lock::mutex("k")).await?;
    let mut waiters = world.queue(&lock, "wwwwww").await?;
    while !waiters.is_empty() {
        for waiter in &waiters {
            waiter.poll_queued("rule 7").await?;
        }
        holder.released("S3").await?;
        // The last waiter polls first and still isn't served first.
        for waiter in waiters.iter().skip(1).rev() {
            waiter.poll_queued("rule 7").await?;
        }
        holder = waiters.remove(0);
        holder.poll_granted("rule 7").await?;
    }
    Ok(())
}

async fn nobody_overtakes_a_waiter(world: &World) -> Verdict {
    let c = world.session().await?;
    let (a, b, lock, held) = world.held_for(4).await?;
    let (waiter, _) = b.ask(&lock).wait().queued("rule 7").await?;
    world.pass(5).await;
    // The key is free, but it's the waiter's turn: neither a try nor the last holder gets it.
    c.ask(&lock).finds_contention("rule 7").await?;
    a.ask(&lock).finds_contention("rule 7").await?;
    held.not_held("S3: the lease is over").await?;
    waiter.poll_granted("rule 7").await
}

async fn release_grants_in_the_same_step(world: &World) -> Verdict {
    let (a, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let (waiter, _) = b.ask(&lock).wait().queued("rule 7").await?;
    held.released("S3").await?;
    // The waiter hasn't sent anything since. A renewal would not create a hold.
    let (token, _) = waiter.renewed(world.units(50), "rule 8").await?;
    ensure!(token > held.token(), token).promised("S4: a grant starts an epoch")?;
    a.ask(&lock).finds_contention("S1").await
}

async fn polls_alone_bring_the_turn(world: &World) -> Verdict {
    let lock = Lock::mutex("k").waiter_lease(world.units(9));
    let (_, b, lock, held) = world.held(lock).await?;
    let (waiter, _) = b.ask(&lock).wait().queued("rule 7").await?;
    for _ in 0..3 {
        world.pass(2).await;
        waiter.poll_queued("L2").await?;
    }
    world.pass(2).await;
    held.released("S3").await?;
    waiter.poll_granted("L2").await
}

async fn try_does_not_queue(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let (tried, reply) = b.ask(&lock).send().await?;
    want!(reply, AcquireReply::Contended(_)).promised("S1: the key is held")?;
    let promise = "rule 7: an attempt that doesn't wait has no waiter in the queue";
    tried.poll_gone(promise).await?;
    let c = world.session().await?;
    held.released("S3").await?;
    c.ask(&lock).granted("rule 7").await
}

async fn poll_refreshes_the_waiter(world: &World) -> Verdict {
    let lock = Lock::mutex("k").waiter_lease(world.units(6));
    let (_, b, lock, _held) = world.held(lock).await?;
    let (waiter, _) = b.ask(&lock).wait().queued("rule 7").await?;
    for _ in 0..4 {
        world.pass(3).await;
        let queued = waiter.poll_queued("rule 10").await?;
        want_eq!(queued.waiter_remaining, world.units(6))
            .promised("rule 10: a poll refreshes the waiter for one waiter lease")?;
    }
    Ok(())
}

async fn waiter_without_polls_expires(world: &World) -> Verdict {
    let lock = Lock::mutex("k").waiter_lease(world.units(3));
    let (_, b, lock, held) = world.held(lock).await?;
    let (waiter, _) = b.ask(&lock).wait().queued("rule 7").await?;
    world.pass(4).await;
    want!(
        waiter.poll().await?.reply,
        PollReply::Gone(EndReason::Expired | EndReason::Unknown)
    )
    .promised("rule 10: a waiter without polls expires with its waiter lease")?;
    let c = world.session().await?;
    held.released("S3").await?;
    c.ask(&lock).granted("L1").await
}

async fn waiter_expires_at_its_own_deadline(world: &World) -> Verdict {
    let lock = Lock::mutex("k").waiter_lease(bounds::MAX_WAITER_LEASE);
    let (_, b, lock, held) = world.held(lock).await?;
    let until = b.now().await?.saturating_add(world.units(5));
    let ask = b.ask(&lock).wait_until(until);
    let (waiter, queued) = ask.queued("rule 7").await?;
    let promise = "rule 10: a waiter expires no later than its own deadline";
    world
        .ends_at((waiter.stamp, queued.waiter_remaining), until)
        .promised(promise)?;
    world.pass(2).await;
    let again = waiter.poll().await?;
    let queued = want!(again.reply, PollReply::Queued(queued) => queued)
        .promised("rule 10: the waiter waits until its deadline")?;
    world
        .ends_at((again.stamp, queued.waiter_remaining), until)
        .promised(promise)?;
    world.pass(4).await;
    let c = world.session().await?;
    held.released("S3").await?;
    c.ask(&lock).granted("rule 10").await
}

async fn deadline_bounds_the_offer_too(world: &World) -> Verdict {
    let lock = Lock::mutex("k").waiter_lease(bounds::MAX_WAITER_LEASE);
    let (_, b, lock, held) = world.held(lock).await?;
    let c = world.session().await?;
    let until = b.now().await?.saturating_add(world.units(5));
    b.ask(&lock).wait_until(until).queued("rule 7").await?;
    held.released("S3").await?;
    c.ask(&lock).finds_contention("rule 8").await?;
    world.pass(6).await;
    c.ask(&lock).granted("rule 10").await
}

async fn deadline_in_the_past_is_a_try(world: &World) -> Verdict {
    let (a, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let until = a.now().await?;
    world.pass(1).await;
    b.ask(&lock)
        .wait_until(until)
        .finds_contention("rule 10")
        .await?;
    held.released("S3").await?;
    let until = a.now().await?;
    world.pass(1).await;
    b.ask(&lock).wait_until(until).granted("rule 10").await
}

async fn leaving_lets_the_next_move_up(world: &World) -> Verdict {
    let (a, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let (first, _) = b.ask(&lock).wait().queued("rule 7").await?;
    let (second, _) = a.ask(&lock).wait().queued("rule 7").await?;
    let (third, _) = b.ask(&lock).wait().queued("rule 7").await?;
    second.leaves("S3").await?;
    held.released("S3").await?;
    first.poll_granted("rule 7").await?;
    third.poll_queued("S1").await?;
    first.released("S3").await?;
    third.poll_granted("rule 7").await
}

async fn advice_stays_within_the_poll_interval(world: &World) -> Verdict {
    let lock = Lock::mutex("k");
    let interval = lock.spec.poll_interval();
    world.session().await?.ask(&lock).acquired("S1").await?;
    let session = world.session().await?;
    for _ in 0..12 {
        let (waiter, queued) = session.ask(&lock).wait().queued("rule 7").await?;
        let polled = waiter.poll_queued("rule 7").await?;
        for poll_after in [queued.poll_after, polled.poll_after] {
            ensure!(!poll_after.is_zero() && poll_after <= interval, poll_after).promised(
                format!("rule 3: anywhere in the queue, `poll_after` is at most {interval:?}"),
            )?;
        }
    }
    Ok(())
}

async fn waiters_of_one_session_queue_too(world: &World) -> Verdict {
    let (a, _, lock, held) = world.held(Lock::mutex("k")).await?;
    let (first, _) = a.ask(&lock).wait().queued("rule 7").await?;
    let (second, _) = a.ask(&lock).wait().queued("rule 7").await?;
    second.poll_queued("rule 7").await?;
    held.released("S3").await?;
    second.poll_queued("rule 7").await?;
    first.poll_granted("rule 7").await?;
    first.released("S3").await?;
    second.poll_granted("rule 7").await
}

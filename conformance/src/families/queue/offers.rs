//! Offers: a lock granted to a waiter that hasn't confirmed it yet. And the cost of dead waiters.

use std::time::Duration;

use leasehold_api::bounds::OFFER_POLLS;
use leasehold_api::{PollReply, ServerTime, Stamped};

use crate::case::{Case, cases};
use crate::failure::{Checked, Failure, Verdict, at_most, ensure, want, want_eq};
use crate::world::{Attempt, Lock, World};

pub(super) const CASES: &[Case] = cases!("offers";
    offer_expires_when_its_waiter_would: ["rule 10"], [Queue, Clock];
    short_lease_shortens_the_offer: ["rule 10", "L1"], [Queue, Clock];
    short_offer_outlasts_two_polls: ["rule 10", "L2"], [Queue];
    own_poll_makes_an_offer_too: ["rule 10"], [Queue];
    poll_never_extends_an_offer: ["rule 10"], [Queue, Clock];
    renewal_confirms_an_offer: ["rule 10"], [Queue];
    confirmation_never_shortens: ["rule 10", "S2"], [Queue, Clock];
    offer_excludes_others: ["S1", "rule 8"], [Queue];
    expired_offer_cannot_be_confirmed: ["rule 10", "S3"], [Queue, Clock];
    dead_waiter_costs_at_most_one_waiter_lease: ["rule 10", "L1"], [Queue];
    many_dead_waiters_cost_one_waiter_lease: ["rule 10", "L1"], [Queue];
    dead_granted_waiter_costs_its_own_lease: ["rule 10", "L1"], [Queue];
);

/// Queues a waiter behind a holder that releases two units later. Returns the waiter and its
/// expiry.
async fn granted(world: &World, lock: &Lock) -> Result<(Attempt, ServerTime), Failure> {
    let [a, b] = world.sessions().await?;
    let held = a.ask(lock).acquired("S1").await?;
    let (waiter, queued) = b.ask(lock).wait().queued("rule 7").await?;
    let end = waiter.stamp.at.saturating_add(queued.waiter_remaining);
    world.pass(2).await;
    held.released("S3").await?;
    Ok((waiter, end))
}

/// Polls, and checks that the offer expires at `end`.
async fn offer_ends_at(
    world: &World,
    waiter: &Attempt,
    end: ServerTime,
) -> Result<Checked<()>, Failure> {
    let Stamped { stamp, reply } = waiter.poll_granted_at("rule 8").await?;
    Ok(world.ends_at((stamp, reply.remaining), end))
}

async fn offer_expires_when_its_waiter_would(world: &World) -> Verdict {
    let lock = Lock::mutex("k").waiter_lease(world.units(6));
    let (waiter, end) = granted(world, &lock).await?;
    offer_ends_at(world, &waiter, end)
        .await?
        .promised("rule 10: an offer has no lease yet, and expires when its waiter would have")?;
    world.pass(6).await;
    world.session().await?.ask(&lock).granted("rule 10").await
}

/// The longest waiter lease.
const MINUTE: Duration = Duration::from_secs(60);

/// Queues a waiter with this lease and a long waiter lease, and grants to it. Fails unless the offer
/// lasts for `expected`.
async fn offer_lasts(world: &World, lease: Duration, expected: Duration, name: &str) -> Verdict {
    let (a, b, lock, held) = world.held(Lock::mutex(name).waiter_lease(MINUTE)).await?;
    let (waiter, _) = b.ask(&lock).lease(lease).wait().queued("rule 7").await?;
    let before = a.now().await?;
    held.released("S3").await?;
    let after = a.now().await?;
    let Stamped { stamp, reply } = waiter.poll_granted_at("rule 8").await?;
    let end = stamp.at.saturating_add(reply.remaining);
    let (first, last) = (
        before.saturating_add(expected),
        after.saturating_add(expected),
    );
    ensure!(first <= end && end <= last, reply.remaining).promised(format!(
        "rule 10: an offer to a waiter with a lease of {lease:?} lasts for {expected:?}"
    ))
}

async fn short_lease_shortens_the_offer(world: &World) -> Verdict {
    let polls = Lock::mutex("k").waiter_lease(MINUTE).spec.poll_interval() * OFFER_POLLS;
    offer_lasts(world, world.units(1), polls, "short").await?;
    let lease = polls + world.units(1);
    offer_lasts(world, lease, lease, "longer").await
}

async fn short_offer_outlasts_two_polls(world: &World) -> Verdict {
    // A waiter that misses its notification has one poll to learn of the offer, and time to confirm
    // it before another poll would be due.
    let lock = Lock::mutex("k").waiter_lease(world.units(9));
    let (_, b, lock, held) = world.held(lock).await?;
    let ask = b.ask(&lock).lease(Duration::from_millis(1));
    let (waiter, _) = ask.wait().queued("rule 7").await?;
    held.released("S3").await?;
    world.pass_for(lock.spec.poll_interval() * 4 / 3).await;
    waiter.poll_granted("L2").await?;
    waiter.renewed(world.units(50), "rule 10").await?;
    world.pass(6).await;
    waiter.released("S3").await
}

async fn own_poll_makes_an_offer_too(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let lock = Lock::mutex("k").waiter_lease(world.units(8));
    a.ask(&lock).lease(world.units(3)).acquired("S1").await?;
    let (waiter, _) = b.ask(&lock).wait().queued("rule 7").await?;
    world.pass(4).await;
    let Stamped { stamp, reply } = waiter.poll_granted_at("L1").await?;
    let end = stamp.at.saturating_add(world.units(8));
    world.ends_at((stamp, reply.remaining), end).promised(
        "rule 10: a grant by a poll is an offer of one waiter lease, counted from the poll",
    )
}

async fn poll_never_extends_an_offer(world: &World) -> Verdict {
    let lock = Lock::mutex("k").waiter_lease(world.units(9));
    let (waiter, end) = granted(world, &lock).await?;
    for _ in 0..3 {
        offer_ends_at(world, &waiter, end)
            .await?
            .promised("rule 10: a poll never extends an offer")?;
        world.pass(2).await;
    }
    Ok(())
}

async fn renewal_confirms_an_offer(world: &World) -> Verdict {
    let lock = Lock::mutex("k").waiter_lease(world.units(6));
    let (waiter, end) = granted(world, &lock).await?;
    let offer = waiter.poll_granted_at("rule 8").await?.reply;
    let (token, confirmed) = waiter.renewed(world.units(50), "rule 10").await?;
    want_eq!(token, offer.token).promised("rule 10: a confirmation doesn't start an epoch")?;
    ensure!(confirmed > end, confirmed).promised(format!(
        "rule 10: the first renewal makes a hold with its full lease of the offer, which expires at {end:?}"
    ))?;
    world.pass(6).await;
    let c = world.session().await?;
    c.ask(&lock).finds_contention("S1").await?;
    waiter.released("S3").await
}

async fn confirmation_never_shortens(world: &World) -> Verdict {
    let lock = Lock::mutex("k").waiter_lease(world.units(20));
    let (waiter, end) = granted(world, &lock).await?;
    let (_, confirmed) = waiter.renewed(world.units(1), "rule 10").await?;
    ensure!(confirmed >= end, confirmed).promised(format!(
        "rule 10: a guard that gets no reply to its confirmation counts on the offer until {end:?}"
    ))
}

async fn offer_excludes_others(world: &World) -> Verdict {
    let lock = Lock::mutex("k");
    let (waiter, _) = granted(world, &lock).await?;
    let c = world.session().await?;
    c.ask(&lock).finds_contention("S1").await?;
    let (next, _) = c.ask(&lock).wait().queued("S1").await?;
    next.poll_queued("S1").await?;
    waiter.poll_granted("rule 8").await
}

async fn expired_offer_cannot_be_confirmed(world: &World) -> Verdict {
    let lock = Lock::mutex("k").waiter_lease(world.units(4));
    let (waiter, _) = granted(world, &lock).await?;
    world.pass(4).await;
    let c = world.session().await?;
    let held = c.ask(&lock).acquired("rule 10").await?;
    let promise = "rule 10: an expired offer can't be confirmed";
    waiter.renewal_lost(world.units(50), promise).await?;
    held.released("S3").await
}

/// Queues a live waiter behind `dead` waiters that never poll. Returns the time until its turn, on
/// the server's clock.
async fn takeover(world: &World, dead: u32) -> Result<(Duration, Lock), Failure> {
    let lock = Lock::mutex("k").waiter_lease(world.units(6));
    let (_, b, lock, held) = world.held(lock).await?;
    world.queue(&lock, &"w".repeat(dead as usize)).await?;
    let (waiter, _) = b.ask(&lock).wait().queued("rule 7").await?;
    held.released("S3").await?;
    for _ in 0..40 {
        world.pass(1).await;
        let Stamped { stamp, reply } = waiter.poll().await?;
        if let PollReply::Acquired(_) = reply {
            return Ok((stamp.at.saturating_since(waiter.stamp.at), lock));
        }
    }
    let promise = format!("rule 10: a live waiter behind {dead} dead ones gets its turn");
    Err(Failure::new(promise, "Acquired", "Queued for 40 units"))
}

async fn dead_waiter_costs_at_most_one_waiter_lease(world: &World) -> Verdict {
    let (took, lock) = takeover(world, 1).await?;
    // One waiter lease, one poll interval, and one unit for the commands themselves.
    let most = lock.spec.waiter_lease() + world.units(2);
    at_most(took, most).promised("rule 10: a dead waiter costs one waiter lease and one poll")
}

async fn many_dead_waiters_cost_one_waiter_lease(world: &World) -> Verdict {
    let (took, lock) = takeover(world, 12).await?;
    let most = lock.spec.waiter_lease() + world.units(3);
    at_most(took, most)
        .promised("rule 10: any number of dead waiters cost one waiter lease together")
}

async fn dead_granted_waiter_costs_its_own_lease(world: &World) -> Verdict {
    let lock = Lock::mutex("k").waiter_lease(MINUTE);
    let (_, b, lock, held) = world.held(lock).await?;
    let c = world.session().await?;
    let ask = b.ask(&lock).lease(world.units(1));
    let (dead, _) = ask.wait().queued("rule 7").await?;
    let (waiter, _) = c.ask(&lock).wait().queued("rule 7").await?;
    held.released("S3").await?;
    // It confirms its hold once, and dies.
    dead.poll_granted("rule 8").await?;
    let (_, end) = dead.renewed(world.units(1), "rule 10").await?;
    waiter.poll_queued("S1").await?;
    let longest = lock.spec.poll_interval() * OFFER_POLLS + world.units(1);
    world.pass_for(longest).await;
    let Stamped { stamp, reply } = waiter.poll().await?;
    want!(reply, PollReply::Acquired(_)).promised(format!(
        "L1: a waiter that dies after its grant blocks the key for its lease, not for {MINUTE:?}"
    ))?;
    ensure!(stamp.at >= end, stamp.at).promised(format!("S1: the dead waiter held until {end:?}"))
}

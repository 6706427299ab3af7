//! Reentrancy: one owner has several holds.

use leasehold_api::{AcquireReply, Acquired, Limits, Mode, Refused, ReleaseReply};

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, ensure, want, want_eq};
use crate::world::{Attempt, Lock, Session, World};

pub(super) const CASES: &[Case] = cases!("reentrancy";
    nested_holds_are_counted: ["rule 5"], [Reentrancy];
    holds_are_released_in_any_order: ["rule 5"], [Reentrancy];
    hold_limit: ["rule 5", "rule 13"], [Reentrancy];
    inner_lease_never_shortens: ["rule 5"], [Reentrancy, Clock];
    inner_lease_may_lengthen: ["rule 5"], [Reentrancy];
    renewing_any_hold_renews_all: ["rule 4", "rule 5"], [Reentrancy];
    all_holds_expire_at_once: ["rule 4", "L1"], [Reentrancy];
    never_across_sessions: ["rule 5", "S1"], [Reentrancy];
    never_across_owners: ["rule 5", "S1"], [Reentrancy];
    nested_hold_passes_the_queue: ["rule 5", "rule 7"], [Reentrancy, Queue];
    nested_hold_stays_in_the_epoch: ["rule 5", "rule 15"], [Reentrancy, FencingTokens];
    reader_reenters_past_a_waiting_writer: ["rule 5"], [Reentrancy, RwLocks, Queue];
    writer_may_read: ["rule 5"], [Reentrancy, RwLocks];
    dropping_the_write_hold_downgrades: ["rule 5", "rule 6"], [Reentrancy, RwLocks, FencingTokens];
    writing_over_reading_would_deadlock: ["rule 5", "rule 13"], [Reentrancy, RwLocks];
    nested_readers_weigh_one: ["rule 5"], [Reentrancy, RwLocks];
    permits_do_not_nest: ["rule 5"], [Semaphores];
);

/// Acquires `depth` nested holds of one owner.
async fn nest(session: &Session, lock: &Lock, depth: u32) -> Result<Vec<Attempt>, Failure> {
    let owner = session.owner();
    let mut holds = Vec::new();
    for n in 1..=depth {
        let hold = session.ask(lock).owner(owner).acquired("rule 5").await?;
        want_eq!(hold.holds(), n).promised("rule 5: each nested acquire adds one hold")?;
        holds.push(hold);
    }
    Ok(holds)
}

async fn nested_holds_are_counted(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let lock = Lock::mutex("k");
    let mut holds = nest(&a, &lock, 4).await?;
    while let Some(inner) = holds.pop() {
        b.ask(&lock).finds_contention("rule 5").await?;
        let left = u32::try_from(holds.len()).expect("few");
        want!(
            inner.release().await?,
            ReleaseReply::Released { holds_left, holder }
                if holds_left == left && holder.is_some() == (left > 0)
        )
        .promised(format!(
            "rule 5: the release of one hold leaves the other {left}"
        ))?;
    }
    b.ask(&lock).granted("rule 5").await
}

async fn holds_are_released_in_any_order(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let lock = Lock::mutex("k");
    let holds = nest(&a, &lock, 3).await?;
    for (n, left) in [(0, 2), (2, 1)] {
        let promise = "rule 5: holds can be released in any order, even the outermost first";
        holds[n].release_leaves(left, promise).await?;
        b.ask(&lock).finds_contention("rule 5").await?;
        holds[1].renewed(world.units(300), "rule 5").await?;
    }
    holds[1].released("rule 5").await?;
    b.ask(&lock).granted("rule 5").await
}

async fn hold_limit(world: &World) -> Verdict {
    let a = world.session().await?;
    let lock = Lock::mutex("k");
    let holds = nest(&a, &lock, 3).await?;
    let limits = Limits {
        holds: 3,
        ..Limits::default()
    };
    let limited = holds[0].nested().limits(limits);
    want_eq!(limited.refused("rule 5").await?, Refused::HoldLimit)
        .promised("rule 5: an owner has no more holds than the attempt allows")?;
    let reply = holds[0].again().await?.reply;
    want!(reply, AcquireReply::Acquired(Acquired { holds: 3, .. }))
        .promised("rule 13: a refused command changes nothing")?;
    // A limit only applies to the attempt that carries it.
    holds[0].nested().granted("rule 5").await
}

async fn inner_lease_never_shortens(world: &World) -> Verdict {
    let (_, b, lock, outer) = world.held_for(300).await?;
    let inner = outer.nested().lease(world.units(2));
    let inner = inner.acquired("rule 5").await?;
    let promise = "rule 5: an inner hold with a shorter lease doesn't shorten the holder's lease";
    world
        .ends_at(inner.left(), outer.end_time())
        .promised(promise)?;
    world.pass(3).await;
    b.ask(&lock).finds_contention("rule 5").await?;
    let promise = "rule 5: an inner hold lives as long as its holder";
    inner.release_leaves(1, promise).await?;
    outer.released("rule 5").await
}

async fn inner_lease_may_lengthen(world: &World) -> Verdict {
    let (_, b, lock, outer) = world.held_for(3).await?;
    let inner = outer.nested().lease(world.units(300));
    let inner = inner.acquired("rule 5").await?;
    let promise = "rule 5: the release of an inner hold leaves the outer one";
    inner.release_leaves(1, promise).await?;
    world.pass(4).await;
    b.ask(&lock).finds_contention("rule 5").await
}

async fn renewing_any_hold_renews_all(world: &World) -> Verdict {
    let (_, b, lock, outer) = world.held_for(5).await?;
    let lease = world.units(5);
    let inner = outer.nested().lease(lease).acquired("rule 5").await?;
    for hold in [&inner, &outer, &inner] {
        world.pass(3).await;
        hold.renewed(lease, "rule 4").await?;
    }
    b.ask(&lock).finds_contention("rule 4").await?;
    let promise = "rule 4: a holder has one lease, whichever hold is renewed";
    outer.release_leaves(1, promise).await
}

async fn all_holds_expire_at_once(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let (lock, owner) = (Lock::mutex("k"), a.owner());
    let mut holds = Vec::new();
    for _ in 0..3 {
        let ask = a.ask(&lock).owner(owner).lease(world.units(3));
        holds.push(ask.acquired("rule 5").await?);
    }
    world.pass(4).await;
    b.ask(&lock).acquired("L1").await?;
    let promise = "rule 4: all holds of an owner expire together";
    for hold in &holds {
        hold.renewal_lost(world.units(5), promise).await?;
        hold.not_held(promise).await?;
    }
    a.ask(&lock).owner(owner).finds_contention("S1").await
}

async fn never_across_sessions(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let (lock, owner) = (Lock::mutex("k"), a.owner());
    a.ask(&lock).owner(owner).acquired("S1").await?;
    b.ask(&lock).owner(owner).finds_contention("rule 5").await
}

async fn never_across_owners(world: &World) -> Verdict {
    let a = world.session().await?;
    let lock = Lock::mutex("k");
    a.ask(&lock).owner(a.owner()).acquired("S1").await?;
    a.ask(&lock)
        .owner(a.owner())
        .finds_contention("rule 5")
        .await
}

async fn nested_hold_passes_the_queue(world: &World) -> Verdict {
    let (_, b, lock, outer) = world.held(Lock::mutex("k")).await?;
    let (waiter, _) = b.ask(&lock).wait().queued("rule 7").await?;
    let inner = outer.nested().wait().acquired("rule 5").await?;
    let promise = "rule 5: the outer hold can be released first";
    outer.release_leaves(1, promise).await?;
    waiter.poll_queued("rule 5").await?;
    inner.released("rule 5").await?;
    waiter.poll_granted("rule 7").await
}

async fn nested_hold_stays_in_the_epoch(world: &World) -> Verdict {
    let a = world.session().await?;
    let holds = nest(&a, &Lock::mutex("k"), 3).await?;
    for hold in &holds {
        want_eq!(hold.token(), holds[0].token())
            .promised("rule 15: all holds of a holder are in one epoch and share its token")?;
    }
    Ok(())
}

async fn reader_reenters_past_a_waiting_writer(world: &World) -> Verdict {
    let (_, b, lock, outer) = world.held_shared(Lock::rw("k")).await?;
    let c = world.session().await?;
    let (writer, _) = b.ask(&lock).wait().queued("rule 7").await?;
    // A new reader waits behind the writer, but an owner that already reads doesn't.
    c.ask(&lock).shared().finds_contention("rule 7").await?;
    let inner = outer.nested().shared().acquired("rule 5").await?;
    let promise = "rule 5: the release of an inner hold leaves the outer one";
    inner.release_leaves(1, promise).await?;
    writer.poll_queued("S1").await?;
    outer.released("S3").await?;
    writer.poll_granted("rule 7").await
}

async fn writer_may_read(world: &World) -> Verdict {
    let (_, b, lock, writing) = world.held(Lock::rw("k")).await?;
    let reading = writing.nested().shared().acquired("rule 5").await?;
    want_eq!(reading.holds(), 2).promised("rule 5: a read hold of a writer adds one hold")?;
    b.ask(&lock).shared().finds_contention("S1").await?;
    want!(
        reading.release().await?,
        ReleaseReply::Released { holds_left: 1, holder: Some(view) } if view.mode == Mode::Exclusive
    )
    .promised("rule 5: without its read hold, the owner is still a writer")?;
    b.ask(&lock).shared().finds_contention("S1").await
}

async fn dropping_the_write_hold_downgrades(world: &World) -> Verdict {
    let (_, b, lock, writing) = world.held(Lock::rw("k")).await?;
    let reading = writing.nested().shared().acquired("rule 5").await?;
    let view = want!(
        writing.release().await?,
        ReleaseReply::Released { holds_left: 1, holder: Some(view) } => view
    )
    .promised("rule 5: the read hold remains")?;
    want_eq!(view.mode, Mode::Shared).promised("rule 5: the remaining hold is a reader")?;
    ensure!(view.token > writing.token(), view.token)
        .promised("rule 6: a downgrade starts an epoch")?;
    b.ask(&lock).shared().acquired("rule 5").await?;
    let (token, _) = reading.renewed(world.units(300), "rule 5").await?;
    want_eq!(token, view.token).promised("rule 6: the read hold has the new token from then on")
}

async fn writing_over_reading_would_deadlock(world: &World) -> Verdict {
    let (.., reading) = world.held_shared(Lock::rw("k")).await?;
    for ask in [reading.nested(), reading.nested().wait()] {
        want_eq!(ask.refused("rule 5").await?, Refused::WouldDeadlock)
            .promised("rule 5: a write by an owner that reads would wait for itself")?;
    }
    let reply = reading.again().await?.reply;
    want!(reply, AcquireReply::Acquired(Acquired { holds: 1, .. }))
        .promised("rule 13: a refused command changes nothing")?;
    reading.released("S3").await
}

async fn nested_readers_weigh_one(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let (lock, owner) = (Lock::rw("k"), a.owner());
    let mut holds = Vec::new();
    for _ in 0..4 {
        let ask = a.ask(&lock).owner(owner).shared();
        holds.push(ask.acquired("rule 5").await?);
    }
    let other = b.ask(&lock).shared().acquired("rule 5").await?;
    for hold in holds {
        b.ask(&lock).finds_contention("S1").await?;
        want!(hold.release().await?, ReleaseReply::Released { .. })
            .promised("S3: a read hold can be released")?;
    }
    other.released("S3").await?;
    b.ask(&lock).granted("rule 5").await
}

async fn permits_do_not_nest(world: &World) -> Verdict {
    let (.., first) = world.held(Lock::semaphore("k", 2)).await?;
    let second = first.nested().acquired("rule 5").await?;
    for hold in [&first, &second] {
        want_eq!(hold.holds(), 1)
            .promised("rule 5: each acquire of a semaphore is a separate holder")?;
    }
    first.nested().finds_contention("rule 5").await?;
    first.released("rule 5").await?;
    second.released("rule 5").await
}

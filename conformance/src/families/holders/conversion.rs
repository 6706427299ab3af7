//! Downgrade and upgrade.

use leasehold_api::{ConvertReply, FencingToken, HolderStatus, Mode, ReleaseReply, Stamped};

use crate::case::{Case, cases};
use crate::failure::{Verdict, ensure, want, want_eq};
use crate::world::{Attempt, Lock, World, next_epoch};

pub(super) const CASES: &[Case] = cases!("conversion";
    downgrade_lets_readers_in: ["rule 6"], [RwLocks, Convert];
    downgrade_grants_the_readers_at_the_head: ["rule 6", "rule 8"], [RwLocks, Convert, Queue];
    downgrade_with_a_writer_first_grants_none: ["rule 6", "rule 7"], [RwLocks, Convert, Queue];
    sole_reader_upgrades: ["rule 6"], [RwLocks, Convert];
    upgrade_is_refused_beside_a_reader: ["rule 6", "S1"], [RwLocks, Convert];
    upgrade_counts_offers: ["rule 6", "S1"], [RwLocks, Convert, Queue];
    upgrade_past_an_expired_reader: ["rule 6", "rule 4"], [RwLocks, Convert];
    upgrade_passes_the_queue_once: ["rule 6", "rule 7"], [RwLocks, Convert, Queue];
    conversion_keeps_the_lease: ["rule 6", "rule 2"], [RwLocks, Convert];
    conversion_starts_an_epoch: ["rule 6", "S4"], [RwLocks, Convert, FencingTokens];
    other_epoch_changes_nothing: ["rule 6", "S3"], [RwLocks, Convert, FencingTokens];
    expired_hold_does_not_convert: ["rule 6", "S3"], [RwLocks, Convert];
    conversion_to_the_current_mode: ["rule 6", "rule 12"], [RwLocks, Convert];
    mutex_does_not_convert: ["rule 6"], [Convert];
    one_hold_of_several_converts: ["rule 6", "rule 5"], [RwLocks, Convert, Reentrancy, FencingTokens];
);

async fn not_sole(held: &Attempt, expected: FencingToken) -> Verdict {
    let reply = held.upgrade(expected).await?.reply;
    want!(reply, ConvertReply::NotSoleHolder).promised(
        "rule 6: only the only unexpired holder can upgrade, and an offer counts as a holder",
    )
}

async fn downgrade_lets_readers_in(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::rw("k")).await?;
    held.downgraded(held.token()).await?;
    let reader = b.ask(&lock).shared().acquired("rule 6").await?;
    b.ask(&lock).finds_contention("S1").await?;
    reader.released("S3").await?;
    held.released("S3").await
}

async fn downgrade_grants_the_readers_at_the_head(world: &World) -> Verdict {
    let (.., lock, held) = world.held(Lock::rw("k")).await?;
    let waiters = world.queue(&lock, "rrwr").await?;
    held.downgraded(held.token()).await?;
    for reader in &waiters[..2] {
        reader.renewed(world.units(300), "rule 6").await?;
    }
    for later in &waiters[2..] {
        later.poll_queued("rule 6").await?;
    }
    Ok(())
}

async fn downgrade_with_a_writer_first_grants_none(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::rw("k")).await?;
    let waiters = world.queue(&lock, "wr").await?;
    held.downgraded(held.token()).await?;
    for waiter in &waiters {
        waiter.poll_queued("rule 6").await?;
    }
    b.ask(&lock).shared().finds_contention("rule 7").await?;
    held.released("S3").await?;
    waiters[0].poll_granted("rule 7").await
}

async fn sole_reader_upgrades(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held_shared(Lock::rw("k")).await?;
    let token = held.upgraded(held.token()).await?;
    b.ask(&lock).shared().finds_contention("S1").await?;
    held.downgraded(token).await?;
    b.ask(&lock).shared().granted("rule 6").await
}

async fn upgrade_is_refused_beside_a_reader(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held_shared(Lock::rw("k")).await?;
    let other = b.ask(&lock).shared().acquired("S1").await?;
    not_sole(&held, held.token()).await?;
    // A refusal changes nothing: both still read.
    held.renewed(world.units(300), "rule 6").await?;
    other.released("S3").await?;
    held.upgraded(held.token()).await?;
    Ok(())
}

async fn upgrade_counts_offers(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::rw("k")).await?;
    b.ask(&lock).shared().wait().queued("rule 7").await?;
    // The downgrade grants to the waiting reader, which doesn't know it yet.
    let reading = held.downgraded(held.token()).await?;
    not_sole(&held, reading).await
}

async fn upgrade_past_an_expired_reader(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held_shared(Lock::rw("k")).await?;
    let dead = b.ask(&lock).shared().lease(world.units(3));
    let dead = dead.acquired("S1").await?;
    world.pass(4).await;
    held.upgraded(held.token()).await?;
    let promise = "rule 4: a reader whose lease is over is not a holder";
    dead.renewal_lost(world.units(5), promise).await
}

async fn upgrade_passes_the_queue_once(world: &World) -> Verdict {
    let (.., lock, held) = world.held_shared(Lock::rw("k")).await?;
    let waiters = world.queue(&lock, "w").await?;
    let writing = held.upgraded(held.token()).await?;
    let reading = held.downgraded(writing).await?;
    waiters[0].poll_queued("S1").await?;
    not_sole(&held, reading).await?;
    held.released("S3").await?;
    waiters[0].poll_granted("rule 7").await
}

async fn conversion_keeps_the_lease(world: &World) -> Verdict {
    let a = world.session().await?;
    let ask = a.ask(&Lock::rw("k")).lease(world.units(30));
    let held = ask.acquired("S1").await?;
    world.pass(2).await;
    let Stamped { stamp, reply } = held.downgrade(held.token()).await?;
    let remaining = want!(reply, ConvertReply::Converted { remaining, .. } => remaining)
        .promised("rule 6: a writer can downgrade at any time")?;
    world
        .ends_at((stamp, remaining), held.end_time())
        .promised("rule 2: a conversion neither extends nor shortens the lease")
}

async fn conversion_starts_an_epoch(world: &World) -> Verdict {
    let a = world.session().await?;
    let held = a.ask(&Lock::rw("k")).acquired("S1").await?;
    let mut last = held.token();
    for _ in 0..3 {
        let reading = held.downgraded(last).await?;
        next_epoch(reading, last)?;
        last = held.upgraded(reading).await?;
        next_epoch(last, reading)?;
        let (token, _) = held.renewed(world.units(300), "rule 6").await?;
        want_eq!(token, last).promised("rule 6: a renewal reports the current token")?;
    }
    Ok(())
}

async fn other_epoch_changes_nothing(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::rw("k")).await?;
    let later = FencingToken::new(held.token().get() + 1);
    for wrong in [FencingToken::new(1), later] {
        let view = want!(
            held.downgrade(wrong).await?.reply,
            ConvertReply::WrongEpoch(view) => view
        )
        .promised(format!(
            "rule 6: a conversion of another epoch ({wrong:?}) changes nothing"
        ))?;
        want_eq!(view.token, held.token()).promised("rule 6: the reply has the current token")?;
        want_eq!(view.mode, Mode::Exclusive).promised("rule 6: the reply has the current mode")?;
    }
    b.ask(&lock).shared().finds_contention("S1").await
}

async fn expired_hold_does_not_convert(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let lock = Lock::rw("k");
    let ask = a.ask(&lock).shared().lease(world.units(3));
    let held = ask.acquired("S1").await?;
    world.pass(4).await;
    let reply = held.upgrade(held.token()).await?.reply;
    want!(reply, ConvertReply::Lost(_)).promised("rule 6: an expired hold can't be converted")?;
    b.ask(&lock).granted("L1").await
}

async fn conversion_to_the_current_mode(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held_shared(Lock::rw("k")).await?;
    b.ask(&lock).shared().acquired("S1").await?;
    want!(
        held.downgrade(held.token()).await?.reply,
        ConvertReply::Converted { token, .. } if token == held.token()
    )
    .promised("rule 6: a conversion to the current mode succeeds and starts no epoch")
}

async fn mutex_does_not_convert(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::mutex("k")).await?;
    let reply = held.downgrade(held.token()).await?.reply;
    want!(reply, ConvertReply::NotSoleHolder)
        .promised("rule 6: only a reader/writer lock has readers")?;
    b.ask(&lock).finds_contention("S1").await?;
    held.released("S3").await
}

async fn one_hold_of_several_converts(world: &World) -> Verdict {
    let (_, b, lock, outer) = world.held_shared(Lock::rw("k")).await?;
    let inner = outer.nested().shared().acquired("rule 5").await?;
    let writing = inner.upgraded(inner.token()).await?;
    b.ask(&lock).shared().finds_contention("S1").await?;
    // The other hold still reads. The mode of a holder is that of its strongest hold.
    let view = want!(
        inner.release().await?,
        ReleaseReply::Released { holds_left: 1, holder: Some(view) } => view
    )
    .promised("rule 5: the outer hold remains")?;
    let HolderStatus { mode, token, .. } = view;
    want_eq!(mode, Mode::Shared).promised("rule 6: a conversion only changes one hold")?;
    ensure!(token > writing, token).promised("rule 6: the remaining hold is in a new epoch")?;
    b.ask(&lock).shared().acquired("rule 6").await?;
    outer.released("S3").await
}

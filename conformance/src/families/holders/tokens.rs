//! Fencing tokens, and a store that refuses old ones.

use leasehold_api::{AcquireReply, FencingToken, Refused, ReleaseReply, bounds};

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, ensure, want, want_eq};
use crate::world::{Attempt, Lock, World, next_epoch};

pub(super) const CASES: &[Case] = cases!("tokens";
    tokens_increase_over_epochs: ["rule 15", "S4"], [FencingTokens];
    tokens_increase_over_expiry: ["rule 15", "S4"], [FencingTokens];
    tokens_increase_over_offers: ["rule 15", "S4"], [FencingTokens, Queue];
    token_is_at_least_the_servers_time: ["rule 15"], [FencingTokens, Clock];
    token_stays_with_its_epoch: ["rule 15"], [FencingTokens];
    overlapping_readers_share_one: ["rule 15"], [FencingTokens, RwLocks];
    next_readers_have_another: ["rule 15", "S4"], [FencingTokens, RwLocks];
    floor_lifts_the_token: ["rule 15", "S4"], [FencingTokens];
    low_floor_changes_nothing: ["rule 15"], [FencingTokens];
    implausible_floor_is_refused: ["rule 15", "rule 13"], [FencingTokens];
    reader_that_saw_more_starts_an_epoch: ["rule 15", "S4"], [FencingTokens, RwLocks];
    reader_that_saw_this_epoch_shares_it: ["rule 15"], [FencingTokens, RwLocks];
    store_refuses_the_late_writer: ["S5"], [FencingTokens];
    store_takes_readers_then_a_writer: ["S5", "rule 15"], [FencingTokens, RwLocks];
    store_follows_conversions: ["S5", "rule 6"], [FencingTokens, RwLocks, Convert];
    read_guard_kept_over_its_write_hold: ["S5", "rule 6"], [FencingTokens, RwLocks, Reentrancy];
);

/// A resource that refuses every token lower than the highest that it has accepted.
#[derive(Debug, Default)]
struct Store {
    highest: Option<FencingToken>,
}

impl Store {
    fn write(&mut self, token: FencingToken) -> bool {
        let accepted = self.highest.is_none_or(|highest| token >= highest);
        if accepted {
            self.highest = Some(token);
        }
        accepted
    }

    fn accepts(&mut self, token: FencingToken, who: &str) -> Verdict {
        let highest = self.highest;
        ensure!(self.write(token), (token, highest)).promised(format!(
            "S5: a valid holder is never refused: the write of {who} is accepted"
        ))
    }

    fn refuses(&mut self, token: FencingToken, who: &str) -> Verdict {
        let highest = self.highest;
        ensure!(!self.write(token), (token, highest)).promised(format!(
            "S5: no write of an epoch takes effect after one of a later epoch: {who} is refused"
        ))
    }
}

async fn tokens_increase_over_epochs(world: &World) -> Verdict {
    let sessions = world.sessions::<2>().await?;
    let lock = Lock::mutex("k");
    let mut last = FencingToken::new(0);
    for turn in 0..20 {
        let held = sessions[turn % 2].ask(&lock).acquired("S1").await?;
        next_epoch(held.token(), last)?;
        last = held.token();
        held.released("S3").await?;
    }
    Ok(())
}

async fn tokens_increase_over_expiry(world: &World) -> Verdict {
    let (_, b, lock, dead) = world.held_for(2).await?;
    world.pass(3).await;
    let next = b.ask(&lock).acquired("L1").await?;
    next_epoch(next.token(), dead.token())
}

async fn tokens_increase_over_offers(world: &World) -> Verdict {
    let lock = Lock::mutex("k");
    let mut held = world.session().await?.ask(&lock).acquired("S1").await?;
    let mut last = held.token();
    for _ in 0..4 {
        let session = world.session().await?;
        let (waiter, _) = session.ask(&lock).wait().queued("rule 7").await?;
        held.released("S3").await?;
        let token = waiter.poll_granted_at("rule 8").await?.reply.token;
        next_epoch(token, last)?;
        (held, last) = (waiter, token);
    }
    Ok(())
}

async fn token_is_at_least_the_servers_time(world: &World) -> Verdict {
    let a = world.session().await?;
    for _ in 0..3 {
        // The time of the step may be an estimate, which is never before the last answer.
        let at = a.now().await?.as_micros();
        let held = a.ask(&Lock::mutex("k")).acquired("S1").await?;
        ensure!(
            held.token().get() >= at && held.token().get() < 1 << 53,
            held.token()
        )
        .promised(format!(
            "rule 15: a token is at least the server's time in microseconds ({at}), and below 2^53"
        ))?;
        held.released("S3").await?;
    }
    Ok(())
}

async fn token_stays_with_its_epoch(world: &World) -> Verdict {
    let a = world.session().await?;
    let held = a.ask(&Lock::mutex("k")).acquired("S1").await?;
    for _ in 0..3 {
        world.pass(1).await;
        let (token, _) = held.renewed(world.units(300), "rule 15").await?;
        want_eq!(token, held.token()).promised("rule 15: a renewal doesn't start an epoch")?;
        want!(
            held.again().await?.reply,
            AcquireReply::Acquired(acquired) if acquired.token == held.token()
        )
        .promised("rule 15: a redelivered acquire doesn't start an epoch")?;
    }
    Ok(())
}

/// Acquires several readers, one unit apart.
async fn readers(world: &World, lock: &Lock, n: u32) -> Result<Vec<Attempt>, Failure> {
    let mut all = Vec::new();
    for _ in 0..n {
        let session = world.session().await?;
        all.push(session.ask(lock).shared().acquired("S1").await?);
        world.pass(1).await;
    }
    Ok(all)
}

async fn overlapping_readers_share_one(world: &World) -> Verdict {
    let lock = Lock::rw("k");
    let first = readers(world, &lock, 2).await?;
    // The first reader is gone. Readers that overlap with the remaining ones are still in one epoch.
    first[0].released("S3").await?;
    let later = readers(world, &lock, 2).await?;
    for reader in [&first[1], &later[0], &later[1]] {
        want_eq!(reader.token(), first[0].token())
            .promised("rule 15: overlapping readers are in one epoch and share its token")?;
    }
    Ok(())
}

async fn next_readers_have_another(world: &World) -> Verdict {
    let lock = Lock::rw("k");
    let mut last = FencingToken::new(0);
    for _ in 0..3 {
        let reading = readers(world, &lock, 1).await?;
        let token = reading[0].token();
        next_epoch(token, last)?;
        reading[0].released("S3").await?;
        last = token;
    }
    Ok(())
}

async fn floor_lifts_the_token(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let lock = Lock::mutex("k");
    let other = a.ask(&Lock::mutex("other")).acquired("S1").await?;
    // A client has seen a token that the server has lost, one hour ahead of another key's token. It isn't ahead of `now`: if the store
    // has no clock, that is the client's uptime, and a new key's time begins near zero, so the floor could be more than a day ahead.
    let seen = FencingToken::new(other.token().get() + 3_600_000_000);
    let held = a.ask(&lock).floor(seen).acquired("S1").await?;
    ensure!(held.token() > seen, held.token())
        .promised(format!("rule 15: a token is above the floor {seen:?}"))?;
    held.released("S3").await?;
    let next = b.ask(&lock).acquired("S1").await?;
    next_epoch(next.token(), held.token())
}

async fn low_floor_changes_nothing(world: &World) -> Verdict {
    let (a, _, lock, first) = world.held(Lock::mutex("k")).await?;
    first.released("S3").await?;
    let low = FencingToken::new(7);
    let held = a.ask(&lock).floor(low).acquired("S1").await?;
    next_epoch(held.token(), first.token())?;
    let day = FencingToken::new(first.token().get() + 24 * 3_600_000_000);
    ensure!(held.token() < day, held.token()).promised("rule 15: a low floor doesn't raise a token")
}

async fn implausible_floor_is_refused(world: &World) -> Verdict {
    let [a, b] = world.sessions().await?;
    let lock = Lock::mutex("k");
    let other = a.ask(&Lock::mutex("other")).acquired("S1").await?;
    let known = a.now().await?.as_micros().max(other.token().get());
    let days = FencingToken::new(known + 3 * 24 * 3_600_000_000);
    for floor in [days, FencingToken::new(bounds::MAX_FLOOR)] {
        let reply = a.ask(&lock).floor(floor).refused("rule 15").await?;
        want_eq!(reply, Refused::FloorTooHigh).promised(
            "rule 15: a floor more than a day ahead of the server's time and the token is refused",
        )?;
    }
    let held = b.ask(&lock).acquired("rule 13").await?;
    ensure!(held.token() < days, held.token())
        .promised("rule 13: a refused command changes nothing")
}

async fn reader_that_saw_more_starts_an_epoch(world: &World) -> Verdict {
    let lock = Lock::rw("k");
    let reading = readers(world, &lock, 1).await?;
    let seen = FencingToken::new(reading[0].token().get() + 60_000_000);
    let b = world.session().await?;
    let other = b.ask(&lock).shared().floor(seen).acquired("S1").await?;
    ensure!(other.token() > seen, other.token()).promised(format!(
        "rule 15: a reader that saw {seen:?} proves a loss, and starts an epoch above it"
    ))?;
    let (adopted, _) = reading[0].renewed(world.units(300), "rule 15").await?;
    want_eq!(adopted, other.token())
        .promised("rule 15: earlier readers adopt the new token at their next renewal")
}

async fn reader_that_saw_this_epoch_shares_it(world: &World) -> Verdict {
    let lock = Lock::rw("k");
    let reading = readers(world, &lock, 1).await?;
    let b = world.session().await?;
    let floor = reading[0].token();
    let other = b.ask(&lock).shared().floor(floor).acquired("S1").await?;
    want_eq!(other.token(), floor).promised(
        "rule 15: a floor equal to the current token proves no loss: the reader joins the epoch",
    )
}

async fn store_refuses_the_late_writer(world: &World) -> Verdict {
    let (_, b, lock, late) = world.held_for(2).await?;
    let mut store = Store::default();
    store.accepts(late.token(), "the holder")?;
    world.pass(3).await;
    let held = b.ask(&lock).acquired("L1").await?;
    store.accepts(held.token(), "the next holder")?;
    store.refuses(late.token(), "the holder that slept longer than its lease")?;
    store.accepts(held.token(), "the next holder, again")
}

async fn store_takes_readers_then_a_writer(world: &World) -> Verdict {
    let (lock, mut store) = (Lock::rw("k"), Store::default());
    let reading = readers(world, &lock, 2).await?;
    // In any order, because both are in one epoch.
    for n in [1, 0, 1] {
        store.accepts(reading[n].token(), "one of two readers")?;
    }
    for reader in &reading {
        reader.released("S3").await?;
    }
    let writer = world.session().await?.ask(&lock).acquired("S1").await?;
    store.accepts(writer.token(), "the writer after them")?;
    store.refuses(reading[0].token(), "an earlier reader")?;
    writer.released("S3").await?;
    let next = readers(world, &lock, 1).await?;
    store.accepts(next[0].token(), "a reader after the writer")?;
    store.refuses(writer.token(), "the earlier writer")
}

async fn store_follows_conversions(world: &World) -> Verdict {
    let (_, b, lock, held) = world.held(Lock::rw("k")).await?;
    let mut store = Store::default();
    store.accepts(held.token(), "the writer")?;
    let reading = held.downgraded(held.token()).await?;
    let other = b.ask(&lock).shared().acquired("rule 6").await?;
    store.accepts(other.token(), "a reader next to the downgraded writer")?;
    store.accepts(reading, "the downgraded writer")?;
    store.refuses(held.token(), "the writer's old token")?;
    other.released("S3").await?;
    let writing = held.upgraded(reading).await?;
    store.accepts(writing, "the upgraded reader")?;
    store.refuses(other.token(), "the earlier reader")
}

async fn read_guard_kept_over_its_write_hold(world: &World) -> Verdict {
    let (_, b, lock, writing) = world.held(Lock::rw("k")).await?;
    let mut store = Store::default();
    writing.nested().shared().acquired("rule 5").await?;
    store.accepts(writing.token(), "the writer")?;
    let view = want!(
        writing.release().await?,
        ReleaseReply::Released { holder: Some(view), .. } => view
    )
    .promised("rule 5: the read hold remains, and the reply reports its mode and token")?;
    let other = b.ask(&lock).shared().acquired("rule 5").await?;
    store.accepts(other.token(), "a later reader")?;
    store.accepts(view.token, "the read guard, with the token of that reply")
}

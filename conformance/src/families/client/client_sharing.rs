//! Reader/writer locks, semaphores and nested holds through the client.

use std::fmt::Debug;

use leasehold_api::{Error, Outcome, Refused, Upgrade};

use crate::case::{Case, cases};
use crate::failure::{Verdict, ensure, want, want_eq};
use crate::holding::{busy, got, not_valid, released, valid};
use crate::world::World;

pub(super) const CASES: &[Case] = cases!("client_sharing";
    readers_share_and_writers_do_not: ["S1"], [RwLocks];
    downgrade_never_lets_go: ["rule 6", "S1"], [RwLocks, Convert, FencingTokens];
    upgrade_of_the_sole_reader: ["rule 6", "S4"], [RwLocks, Convert, FencingTokens];
    refused_upgrade_keeps_reading: ["rule 6", "S1"], [RwLocks, Convert];
    reentrant_guards_are_counted: ["rule 5"], [Reentrancy];
    nested_guards_share_token_and_deadline: ["rule 5", "rule 6"], [Reentrancy];
    handles_are_owners: ["rule 5", "S1"], [Reentrancy];
    writing_over_reading_is_refused: ["rule 5"], [Reentrancy, RwLocks];
    nested_writer_downgrades_by_dropping: ["rule 5", "rule 6"], [Reentrancy, RwLocks, FencingTokens];
    permits_are_shared: ["S1"], [Semaphores];
    other_terms_are_refused: ["rule 13"], [Semaphores];
    other_kind_follows_a_drop: ["rule 13", "S3"], [RwLocks];
    store_fences_a_sleeper: ["S5", "S2"], [FencingTokens];
);

fn would_deadlock<G: Debug>(result: Result<G, Error>, promise: &str) -> Verdict {
    let reason = want!(result, Err(Error::Refused { reason, .. }) => reason).promised(promise)?;
    want_eq!(reason, Refused::WouldDeadlock).promised(promise)
}

fn mismatch<G: Debug>(result: Result<G, Error>, promise: &str) -> Verdict {
    let reason = want!(result, Err(Error::Refused { reason, .. }) => reason).promised(promise)?;
    want!(reason, Refused::Mismatch { .. }).promised(promise)
}

async fn readers_share_and_writers_do_not(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let (of_a, of_b) = (a.rw_lock("k")?, b.rw_lock("k")?);
    let first = of_a.read().await?;
    let second = got(of_b.try_read().await, "S1")?;
    want_eq!(second.fencing_token(), first.fencing_token())
        .promised("rule 15: overlapping readers share one epoch")?;
    busy(of_a.try_write().await, "S1")?;
    released(&first, "S3").await?;
    busy(of_a.try_write().await, "S1")?;
    released(&second, "S3").await?;
    let writer = got(of_a.try_write().await, "S1")?;
    busy(of_b.try_read().await, "S1")?;
    busy(of_b.try_write().await, "S1")?;
    released(&writer, "S3").await
}

async fn downgrade_never_lets_go(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let writer = a.rw_lock("k")?.write().await?;
    let before = writer.fencing_token();
    let reader = writer.downgrade().await?;
    ensure!(reader.fencing_token() > before, reader.fencing_token()).promised(format!(
        "rule 6: a downgrade starts the epoch after {before:?}"
    ))?;
    busy(b.rw_lock("k")?.try_write().await, "S1")?;
    let other = got(b.rw_lock("k")?.try_read().await, "rule 6")?;
    released(&other, "S3").await?;
    released(&reader, "S3").await
}

async fn upgrade_of_the_sole_reader(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let reader = a.rw_lock("k")?.read().await?;
    let before = reader.fencing_token();
    let writer = want!(reader.try_upgrade().await?, Upgrade::Upgraded(writer) => writer)
        .promised("rule 6: the only reader can upgrade")?;
    ensure!(writer.fencing_token() > before, writer.fencing_token())
        .promised(format!("S4: an upgrade starts the epoch after {before:?}"))?;
    busy(b.rw_lock("k")?.try_read().await, "S1")?;
    released(&writer, "S3").await
}

async fn refused_upgrade_keeps_reading(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let reader = a.rw_lock("k")?.read().await?;
    let other = b.rw_lock("k")?.read().await?;
    let reader = want!(reader.try_upgrade().await?, Upgrade::NotSoleHolder(reader) => reader)
        .promised("rule 6: a reader can't upgrade while another one reads")?;
    valid(&reader, "rule 6: the read guard is still valid")?;
    released(&other, "S3").await?;
    busy(b.rw_lock("k")?.try_write().await, "S1")?;
    released(&reader, "S3").await
}

async fn reentrant_guards_are_counted(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let mutex = a.mutex("k")?.reentrant()?;
    let outer = mutex.lock().await?;
    let inner = got(mutex.try_lock().await, "rule 5")?;
    let third = mutex.clone().lock().await?;
    for (guard, left) in [(&outer, 2), (&third, 1), (&inner, 0)] {
        busy(b.mutex("k")?.try_lock().await, "rule 5")?;
        guard.release().await?;
        want_eq!(guard.holds_left(), Some(left))
            .promised("rule 5: guards of one owner can be released in any order")?;
    }
    let next = got(b.mutex("k")?.try_lock().await, "rule 5")?;
    released(&next, "S3").await
}

async fn nested_guards_share_token_and_deadline(world: &World) -> Verdict {
    let a = world.client().await?;
    let mutex = a.mutex("k")?.reentrant()?.lease(world.units(100));
    let outer = mutex.lock().await?;
    world.pass(3).await;
    let inner = mutex.lock().await?;
    want_eq!(inner.fencing_token(), outer.fencing_token())
        .promised("rule 5: nested guards share one token")?;
    inner.renew().await?;
    let (one, other) = (outer.valid_for(), inner.valid_for());
    ensure!(one.abs_diff(other) <= world.units(1), (one, other))
        .promised("rule 6: nested guards share one deadline")?;
    inner.release().await?;
    want_eq!(inner.holds_left(), Some(1)).promised("rule 5: inner")?;
    valid(&outer, "rule 5: the outer guard is still valid")?;
    released(&outer, "S3").await
}

async fn handles_are_owners(world: &World) -> Verdict {
    let a = world.client().await?;
    let guard = a.mutex("k")?.reentrant()?.lock().await?;
    // Another handle of the same client is another owner.
    busy(a.mutex("k")?.reentrant()?.try_lock().await, "rule 5")?;
    busy(a.mutex("k")?.try_lock().await, "rule 5")?;
    released(&guard, "S3").await
}

async fn writing_over_reading_is_refused(world: &World) -> Verdict {
    let a = world.client().await?;
    let lock = a.rw_lock("k")?.reentrant()?;
    let reader = lock.read().await?;
    let promise = "rule 5: a write by an owner that reads would wait for itself";
    would_deadlock(lock.try_write().await, promise)?;
    would_deadlock(lock.try_write_for(world.units(5)).await, promise)?;
    let promise = "rule 5: a write by an owner that reads is refused, whatever its time limit";
    would_deadlock(lock.write().await, promise)?;
    released(&reader, "S3").await
}

async fn nested_writer_downgrades_by_dropping(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let lock = a.rw_lock("k")?.reentrant()?;
    let writer = lock.write().await?;
    let before = writer.fencing_token();
    let reader = lock.read().await?;
    busy(b.rw_lock("k")?.try_read().await, "S1")?;
    writer.release().await?;
    want_eq!(writer.holds_left(), Some(1)).promised("rule 5: a read hold")?;
    ensure!(reader.is_valid() && reader.fencing_token() > before, reader).promised(format!(
        "rule 6: the read guard stays valid, with the token of the epoch after {before:?}"
    ))?;
    let other = got(b.rw_lock("k")?.try_read().await, "rule 6")?;
    want_eq!(other.fencing_token(), reader.fencing_token())
        .promised("rule 15: other readers can acquire the lock")?;
    released(&other, "S3").await?;
    released(&reader, "S3").await
}

async fn permits_are_shared(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let (of_a, of_b) = (a.semaphore("k", 3)?, b.semaphore("k", 3)?);
    let two = of_a.permits(2).acquire().await?;
    busy(of_b.permits(2).try_acquire().await, "S1")?;
    let one = got(of_b.try_acquire().await, "S1")?;
    busy(of_a.try_acquire().await, "S1")?;
    released(&two, "S3").await?;
    let pair = of_b.permits(2);
    let again = pair.try_acquire_for(world.units(50)).await?;
    let again = want!(again, Outcome::Acquired(guard) => guard)
        .promised("S1: two permits were returned")?;
    released(&one, "S3").await?;
    released(&again, "S3").await
}

async fn other_terms_are_refused(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let permit = a.semaphore("k", 3)?.acquire().await?;
    let promise = "rule 13: the error says what the key is in use as";
    mismatch(b.mutex("k")?.try_lock().await, promise)?;
    let promise = "rule 13: a waiting attempt is refused too";
    mismatch(b.semaphore("k", 4)?.acquire().await, promise)?;
    released(&permit, "S3").await?;
    let guard = got(b.mutex("k")?.try_lock().await, "rule 13")?;
    released(&guard, "S3").await
}

/// The request of the next lock may overtake the release of a dropped guard.
async fn other_kind_follows_a_drop(world: &World) -> Verdict {
    let a = world.client().await?;
    let (mutex, rw) = (a.mutex("k")?, a.rw_lock("k")?);
    for _ in 0..5 {
        drop(got(mutex.try_lock_for(world.units(50)).await, "rule 13")?);
        drop(got(rw.try_read_for(world.units(50)).await, "rule 13")?);
    }
    drop(mutex.lock().await?);
    drop(got(rw.try_write().await, "rule 13")?);
    Ok(())
}

async fn store_fences_a_sleeper(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let mut highest = None;
    let mut write = |token| {
        let accepted = Some(token) >= highest;
        if accepted {
            highest = Some(token);
        }
        accepted
    };
    let mutex = a.mutex("k")?.lease(world.units(5)).fixed_lease();
    let sleeper = mutex.lock().await?;
    ensure!(write(sleeper.fencing_token()), sleeper)
        .promised("S5: a valid holder is not refused")?;
    world.pass(6).await;
    let next = b.mutex("k")?.lock().await?;
    ensure!(write(next.fencing_token()), next).promised("S5: the next holder is not refused")?;
    let late = write(sleeper.fencing_token());
    ensure!(!late, sleeper)
        .promised("S5: the write of a holder that slept longer than its lease is refused")?;
    not_valid(&sleeper, "S2: its guard was not valid")
}

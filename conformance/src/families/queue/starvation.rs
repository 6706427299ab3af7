//! Starvation: waiting is bounded under the fair policy, and unbounded under the policies that
//! document it.

use leasehold_api::{Policy, PollReply};

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, ensure};
use crate::world::{Ask, Attempt, Lock, Session, World};

pub(super) const CASES: &[Case] = cases!("starvation";
    writer_against_endless_readers: ["rule 7", "L3"], [RwLocks, Queue];
    readers_against_endless_writers: ["rule 7", "L3"], [RwLocks, Queue];
    fair_bound_of_overtaking: ["rule 7", "L3"], [Queue];
    reader_preference_starves_a_writer: ["rule 7"], [RwLocks, Queue];
    writer_preference_starves_a_reader: ["rule 7"], [RwLocks, Queue];
    barging_overtakes_a_waiter: ["rule 7"], [Queue];
    preference_serves_the_other_class_too: ["rule 7", "L3"], [RwLocks, Queue];
);

/// The number of rounds that counts as endless.
const ROUNDS: u32 = 15;

async fn still_waits(waiter: &Attempt) -> Result<bool, Failure> {
    match waiter.poll().await?.reply {
        PollReply::Queued(_) => Ok(true),
        PollReply::Acquired(_) => Ok(false),
        gone => {
            let promise = "rule 7: a waiter that polls stays in the queue";
            Err(Failure::new(promise, "Queued or Acquired", gone))
        }
    }
}

/// Lets attempts of one class arrive while `waiter` waits, each before the last one releases, as in a busy program.
/// Returns how many rounds the waiter waited.
async fn overtaken(
    waiter: &Attempt,
    sessions: &[Session],
    mut current: Attempt,
    ask: impl Fn(&Session) -> Ask,
) -> Result<u32, Failure> {
    for (round, session) in (0..ROUNDS).zip(sessions.iter().cycle()) {
        let (next, _) = ask(session).send().await?;
        let _ = current.release().await?;
        if !still_waits(waiter).await? {
            return Ok(round);
        }
        current = next;
    }
    Ok(ROUNDS)
}

async fn writer_against_endless_readers(world: &World) -> Verdict {
    let (a, b, lock, reading) = world.held_shared(Lock::rw("k")).await?;
    let session = world.session().await?;
    let (writer, queued) = session.ask(&lock).wait().queued("rule 7").await?;
    ensure!(queued.ahead == 0, queued).promised("rule 7: the writer is first in the queue")?;
    let next = |session: &Session| session.ask(&lock).shared().wait();
    // `b` first: the first holder, of session `a`, is still there in the first round.
    let overtaken = overtaken(&writer, &[b, a], reading, next).await?;
    ensure!(overtaken == 0, overtaken)
        .promised("rule 7: no later reader is granted before a waiting writer")
}

async fn readers_against_endless_writers(world: &World) -> Verdict {
    let (a, b, lock, writing) = world.held(Lock::rw("k")).await?;
    let (reader, _) = b.ask(&lock).shared().wait().queued("rule 7").await?;
    let next = |session: &Session| session.ask(&lock).wait();
    let overtaken = overtaken(&reader, &[a], writing, next).await?;
    ensure!(overtaken == 0, overtaken)
        .promised("rule 7: no later writer is granted before a waiting reader")
}

/// Runs contenders that ask again before each release, and one that asks once.
async fn fair_bound_of_overtaking(world: &World) -> Verdict {
    let lock = Lock::mutex("k");
    let mut holder = world.session().await?.ask(&lock).acquired("S1").await?;
    let mut others = world.queue(&lock, "www").await?;
    let session = world.session().await?;
    let (late, queued) = session.ask(&lock).wait().queued("rule 7").await?;
    let mut granted = 0;
    for _ in 0..ROUNDS {
        let again = holder.session.ask(&lock).wait();
        others.push(again.queued("rule 7").await?.0);
        holder.released("S3").await?;
        if !still_waits(&late).await? {
            break;
        }
        granted += 1;
        holder = take_granted(&mut others).await?;
    }
    ensure!(granted <= queued.ahead, granted).promised(format!(
        "rule 7: at most as many waiters are served before it as were waiting when it arrived ({})",
        queued.ahead
    ))
}

/// Takes out the first waiter that has been granted the key.
async fn take_granted(waiters: &mut Vec<Attempt>) -> Result<Attempt, Failure> {
    for at in 0..waiters.len() {
        if !still_waits(&waiters[at]).await? {
            return Ok(waiters.remove(at));
        }
    }
    let promise = "rule 8: a release grants the key to a waiter";
    Err(Failure::new(promise, "Acquired", "all are Queued"))
}

/// Keeps the key busy with overlapping attempts while `waiter` waits. Returns whether it waited
/// the whole time.
async fn kept_waiting(
    waiter: &Attempt,
    sessions: &[Session; 2],
    lock: &Lock,
    mut current: Attempt,
    ask: fn(Ask) -> Ask,
) -> Result<(bool, Attempt), Failure> {
    for round in 1..=ROUNDS {
        let (next, _) = ask(sessions[round as usize % 2].ask(lock)).send().await?;
        current.released("S3").await?;
        if !still_waits(waiter).await? {
            return Ok((false, current));
        }
        current = next;
    }
    Ok((true, current))
}

async fn reader_preference_starves_a_writer(world: &World) -> Verdict {
    let lock = Lock::rw("k").policy(Policy::ReaderPreference);
    let (a, b, lock, reading) = world.held_shared(lock).await?;
    let c = world.session().await?;
    let (writer, _) = c.ask(&lock).wait().queued("rule 7").await?;
    let (starved, last) = kept_waiting(&writer, &[a, b], &lock, reading, Ask::shared).await?;
    ensure!(starved, starved).promised(
        "rule 7: under reader preference, readers overtake a waiting writer without bound",
    )?;
    last.released("S3").await?;
    writer.poll_granted("rule 7").await
}

async fn writer_preference_starves_a_reader(world: &World) -> Verdict {
    let lock = Lock::rw("k").policy(Policy::WriterPreference);
    let (a, b, lock, writing) = world.held(lock).await?;
    let c = world.session().await?;
    let (reader, _) = c.ask(&lock).shared().wait().queued("rule 7").await?;
    let (starved, last) = kept_waiting(&reader, &[a, b], &lock, writing, Ask::wait).await?;
    ensure!(starved, starved).promised(
        "rule 7: under writer preference, writers overtake a waiting reader without bound",
    )?;
    last.released("S3").await?;
    reader.poll_granted("rule 7").await
}

async fn barging_overtakes_a_waiter(world: &World) -> Verdict {
    let lock = Lock::mutex("k").policy(Policy::Barging);
    let (a, b, lock, mut held) = world.held(lock).await?;
    let (waiter, _) = b.ask(&lock).wait().queued("rule 7").await?;
    for _ in 0..ROUNDS {
        held.released("S3").await?;
        // The first attempt wins, and the last holder is always faster.
        held = a.ask(&lock).acquired("rule 7").await?;
        waiter.poll_queued("rule 7").await?;
    }
    held.released("S3").await?;
    waiter.poll_granted("rule 7").await
}

async fn preference_serves_the_other_class_too(world: &World) -> Verdict {
    for policy in [Policy::ReaderPreference, Policy::WriterPreference] {
        let lock = Lock::rw(&format!("{policy:?}")).policy(policy);
        let (_, b, lock, held) = world.held(lock).await?;
        let (writer, _) = b.ask(&lock).wait().queued("rule 7").await?;
        let (reader, _) = b.ask(&lock).shared().wait().queued("rule 7").await?;
        held.released("S3").await?;
        let (first, second) = match policy {
            Policy::ReaderPreference => (reader, writer),
            _ => (writer, reader),
        };
        first.poll_granted("rule 7").await?;
        second.poll_queued("S1").await?;
        first.released("S3").await?;
        second.poll_granted("rule 7").await?;
    }
    Ok(())
}

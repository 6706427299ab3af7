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

async fn writer_against_endless_readers(world: &World) -> Verdict {
    let lock = Lock::rw("k");
    let sessions = world.sessions::<2>().await?;
    let mut reading = sessions[0].ask(&lock).shared().acquired("S1").await?;
    let b = world.session().await?;
    let (writer, queued) = b.ask(&lock).wait().queued("rule 7").await?;
    ensure!(queued.ahead == 0, queued).promised("rule 7: the writer is first in the queue")?;
    let mut overtaken = 0;
    for round in 1..=ROUNDS {
        // The next reader arrives before the last one releases, as in a busy program.
        let next = sessions[round as usize % 2].ask(&lock).shared().wait();
        let (next, _) = next.send().await?;
        let _ = reading.release().await?;
        if !still_waits(&writer).await? {
            break;
        }
        overtaken += 1;
        reading = next;
    }
    ensure!(overtaken == 0, overtaken)
        .promised("rule 7: no later reader is granted before a waiting writer")
}

async fn readers_against_endless_writers(world: &World) -> Verdict {
    let lock = Lock::rw("k");
    let [a, b] = world.sessions().await?;
    let mut writing = a.ask(&lock).acquired("S1").await?;
    let (reader, _) = b.ask(&lock).shared().wait().queued("rule 7").await?;
    let mut overtaken = 0;
    for _ in 1..=ROUNDS {
        let (next, _) = a.ask(&lock).wait().send().await?;
        let _ = writing.release().await?;
        if !still_waits(&reader).await? {
            break;
        }
        overtaken += 1;
        writing = next;
    }
    ensure!(overtaken == 0, overtaken)
        .promised("rule 7: no later writer is granted before a waiting reader")
}

/// Runs contenders that try again right after each release, and one that tries once.
async fn fair_bound_of_overtaking(world: &World) -> Verdict {
    let lock = Lock::mutex("k");
    let mut queue = vec![world.session().await?.ask(&lock).acquired("S1").await?];
    for _ in 0..3 {
        let session = world.session().await?;
        queue.push(session.ask(&lock).wait().queued("rule 7").await?.0);
    }
    let session = world.session().await?;
    let (late, queued) = session.ask(&lock).wait().queued("rule 7").await?;
    let mut granted = 0;
    for _ in 0..ROUNDS {
        let holder = queue.remove(0);
        let again = holder.session.ask(&lock).wait();
        holder.released("S3").await?;
        queue.push(again.queued("rule 7").await?.0);
        if !still_waits(&late).await? {
            break;
        }
        granted += 1;
    }
    ensure!(granted <= queued.ahead, granted).promised(format!(
        "rule 7: at most as many waiters are served before it as were waiting when it arrived ({})",
        queued.ahead
    ))
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
    let sessions = world.sessions::<2>().await?;
    let reading = sessions[0].ask(&lock).shared().acquired("S1").await?;
    let b = world.session().await?;
    let (writer, _) = b.ask(&lock).wait().queued("rule 7").await?;
    let (starved, last) =
        kept_waiting(&writer, &sessions, &lock, reading, |ask| ask.shared()).await?;
    ensure!(starved, starved).promised(
        "rule 7: under reader preference, readers overtake a waiting writer without bound",
    )?;
    last.released("S3").await?;
    writer.poll_granted("rule 7").await
}

async fn writer_preference_starves_a_reader(world: &World) -> Verdict {
    let lock = Lock::rw("k").policy(Policy::WriterPreference);
    let sessions = world.sessions::<2>().await?;
    let writing = sessions[0].ask(&lock).acquired("S1").await?;
    let b = world.session().await?;
    let (reader, _) = b.ask(&lock).shared().wait().queued("rule 7").await?;
    let (starved, last) =
        kept_waiting(&reader, &sessions, &lock, writing, |ask| ask.wait()).await?;
    ensure!(starved, starved).promised(
        "rule 7: under writer preference, writers overtake a waiting reader without bound",
    )?;
    last.released("S3").await?;
    reader.poll_granted("rule 7").await
}

async fn barging_overtakes_a_waiter(world: &World) -> Verdict {
    let lock = Lock::mutex("k").policy(Policy::Barging);
    let [a, b] = world.sessions().await?;
    let mut held = a.ask(&lock).acquired("S1").await?;
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
        let [a, b] = world.sessions().await?;
        let held = a.ask(&lock).acquired("S1").await?;
        let (writer, _) = b.ask(&lock).wait().queued("rule 7").await?;
        let (reader, _) = b.ask(&lock).shared().wait().queued("rule 7").await?;
        held.released("S3").await?;
        let readers_first = policy == Policy::ReaderPreference;
        let (first, second) = if readers_first {
            (reader, writer)
        } else {
            (writer, reader)
        };
        first.poll_granted("rule 7").await?;
        second.poll_queued("S1").await?;
        first.released("S3").await?;
        second.poll_granted("rule 7").await?;
    }
    Ok(())
}

//! Starvation: however busy a key is, waiting is bounded.

use leasehold_api::PollReply;

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, ensure};
use crate::world::{Ask, Attempt, Lock, Session, World};

pub(super) const CASES: &[Case] = cases!("starvation";
    writer_against_endless_readers: ["rule 7", "L3"], [RwLocks, Queue];
    readers_against_endless_writers: ["rule 7", "L3"], [RwLocks, Queue];
    fair_bound_of_overtaking: ["rule 7", "L3"], [Queue];
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

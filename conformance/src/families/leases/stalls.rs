//! A client that stops in the middle of a call, and goes on late or never.
//!
//! A process may be paused between any two of its instructions. A command that is one step in the
//! store is not affected. A command that reads first and writes later acts on what it read long ago.

use std::future::{Future, poll_fn};
use std::task::Poll;

use futures_util::future::join_all;
use leasehold_api::{Acquire, AcquireReply, BackendError, BoxFuture, Key, Release, Renew, Stamped};

use crate::attempt::one;
use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, ensure, want};
use crate::world::{Ask, Attempt, DELIVERABLE, Lock, Session, World};

pub(super) const CASES: &[Case] = cases!("stalls";
    crash_in_an_acquire_costs_one_lease: ["L1"], [Clock];
    stalled_acquire_takes_no_held_key: ["S1"], [];
    stalled_writer_takes_no_read_key: ["S1"], [RwLocks];
    stalled_acquire_takes_nothing_after_its_window: ["rule 12"], [Inspect];
    stalled_release_spares_the_next_holder: ["S3"], [];
    stalled_renewal_spares_the_next_holder: ["S3"], [];
    backend_finds_no_fault_of_its_own: ["rule 12"], [];
);

/// A call stops at each of its first suspension points in turn. A tutorial's lock has at most seven.
const STEPS: usize = 8;

type Replies<T> = Vec<Result<Stamped<T>, BackendError>>;

/// Polls the call this many times. Returns its replies if it has ended by then. Otherwise returns only when it is
/// woken again, so its last step is done.
async fn stall<F: Future + Unpin>(call: &mut F, polls: usize) -> Option<F::Output> {
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        std::pin::Pin::new(&mut *call).poll(cx).map(Some)
    })
    .await
}

type Call<'a, T> = BoxFuture<'a, Replies<T>>;

/// Stalls each call, the first one at step 1. Returns those that are not answered, with their steps.
async fn stalled<'a, T>(calls: impl Iterator<Item = Call<'a, T>>) -> Vec<(usize, Call<'a, T>)> {
    let mut stalled = Vec::new();
    for (step, mut call) in (1..).zip(calls) {
        if stall(&mut call, step).await.is_none() {
            stalled.push((step, call));
        }
    }
    stalled
}

/// An exclusive acquire for each step, each of a new client.
async fn acquires(
    world: &World,
    kind: fn(&str) -> Lock,
) -> Result<Vec<(Session, [Acquire; 1])>, Failure> {
    let mut all = Vec::new();
    for step in 1..=STEPS {
        let session = world.session().await?;
        let request = session.ask(&key(kind, step)).build().await?;
        all.push((session, [request]));
    }
    Ok(all)
}

fn key(kind: fn(&str) -> Lock, step: usize) -> Lock {
    kind(&format!("k{step}"))
}

async fn crash_in_an_acquire_costs_one_lease(world: &World) -> Verdict {
    for step in 1..=STEPS {
        let session = world.session().await?;
        let ask = session.ask(&key(Lock::mutex, step)).lease(world.units(3));
        let batch = [ask.build().await?];
        // The call is dropped, as if its process had ended.
        stall(&mut session.backend.acquire(&batch), step).await;
    }
    world.pass(4).await;
    let b = world.session().await?;
    for step in 1..=STEPS {
        let (_, reply) = b.ask(&key(Lock::mutex, step)).send().await?;
        want!(reply, AcquireReply::Acquired(_)).promised(format!(
            "L1: a crash in step {step} of an acquire costs one lease at most"
        ))?;
    }
    Ok(())
}

/// An acquire that stalls, and the attempt that was granted meanwhile.
struct Race<'a> {
    step: usize,
    stalled: Call<'a, AcquireReply>,
    ended: Option<Replies<AcquireReply>>,
    granted: Option<Attempt>,
}

/// Stalls an exclusive acquire at each step, tries to take the key meanwhile, then lets the acquire
/// go on.
async fn excludes(world: &World, kind: fn(&str) -> Lock, rival: fn(Ask) -> Ask) -> Verdict {
    let calls = acquires(world, kind).await?;
    let mut races = Vec::new();
    for (step, (session, batch)) in (1..).zip(&calls) {
        let mut stalled = session.backend.acquire(batch);
        let ended = stall(&mut stalled, step).await;
        races.push(Race {
            step,
            stalled,
            ended,
            granted: None,
        });
    }
    let b = world.session().await?;
    // Long enough for an inner lock of the backend to expire.
    for _ in 0..5 {
        for race in races.iter_mut().filter(|race| race.granted.is_none()) {
            let (attempt, reply) = rival(b.ask(&key(kind, race.step))).send().await?;
            if matches!(reply, AcquireReply::Acquired(_)) {
                race.granted = Some(attempt);
            }
        }
        world.pass(1).await;
    }
    for race in races {
        let replies = match race.ended {
            Some(replies) => replies,
            None => race.stalled.await,
        };
        // An error is no grant.
        let granted = one(replies).is_ok_and(|it| matches!(it.reply, AcquireReply::Acquired(_)));
        ensure!(!(granted && race.granted.is_some()), "both were granted").promised(format!(
            "S1: an acquire that stalls after step {} takes no key that is held by then",
            race.step
        ))?;
    }
    Ok(())
}

async fn stalled_acquire_takes_no_held_key(world: &World) -> Verdict {
    excludes(world, Lock::mutex, |ask| ask).await
}

async fn stalled_writer_takes_no_read_key(world: &World) -> Verdict {
    excludes(world, Lock::rw, Ask::shared).await
}

async fn stalled_acquire_takes_nothing_after_its_window(world: &World) -> Verdict {
    let calls = acquires(world, Lock::mutex).await?;
    let calls = calls.iter().map(|(it, batch)| it.backend.acquire(batch));
    let stalled = stalled(calls).await;
    // What is on its way arrives. An acquire that has taken its key by then is in time.
    world.pass(2).await;
    let b = world.session().await?;
    let (mut late, mut steps) = (Vec::new(), Vec::new());
    for (step, call) in stalled {
        let key = key(Lock::mutex, step);
        if b.inspect(&key).await?.reply.holders.is_empty() {
            late.push(call);
            steps.push(key);
        }
    }
    world.pass_for(DELIVERABLE + world.units(1)).await;
    // Their answers may be errors.
    join_all(late).await;
    world.pass(2).await;
    for key in steps {
        let (_, reply) = b.ask(&key).send().await?;
        want!(reply, AcquireReply::Acquired(_)).promised(
            "rule 12: an acquire that stalls and goes on after its window takes nothing",
        )?;
    }
    Ok(())
}

/// Takes a key for each step, with a lease of four units, each by a new client.
async fn held_keys(world: &World) -> Result<Vec<Attempt>, Failure> {
    // Connecting takes time, so that comes first.
    let sessions = world.sessions::<STEPS>().await?;
    let mut all = Vec::new();
    for (step, session) in (1..).zip(sessions) {
        let ask = session.ask(&key(Lock::mutex, step));
        all.push(ask.lease(world.units(4)).acquired("S1").await?);
    }
    Ok(all)
}

async fn stalled_release_spares_the_next_holder(world: &World) -> Verdict {
    let first = held_keys(world).await?;
    let requests: Vec<[Release; 1]> = first.iter().map(|it| [it.release_request()]).collect();
    let calls = first.iter().zip(&requests);
    let calls = stalled(calls.map(|(held, batch)| held.session.backend.release(batch))).await;
    world.pass(5).await;
    let [b, c] = world.sessions().await?;
    for step in 1..=STEPS {
        b.ask(&key(Lock::mutex, step)).acquired("L1").await?;
    }
    // The first holders go on. Their answers may come too late for them.
    join_all(calls.into_iter().map(|(_, call)| call)).await;
    for step in 1..=STEPS {
        let (_, reply) = c.ask(&key(Lock::mutex, step)).send().await?;
        want!(reply, AcquireReply::Contended(_)).promised(format!(
            "S3: a release that stalls after step {step} doesn't release the next holder's lock"
        ))?;
    }
    Ok(())
}

async fn stalled_renewal_spares_the_next_holder(world: &World) -> Verdict {
    let first = held_keys(world).await?;
    let mut requests: Vec<[Renew; 1]> = Vec::new();
    for held in &first {
        requests.push([held.renew_request(world.units(500))?]);
    }
    let calls = first.iter().zip(&requests);
    let calls = stalled(calls.map(|(held, batch)| held.session.backend.renew(batch))).await;
    world.pass(5).await;
    let [b, c] = world.sessions().await?;
    let mut next = Vec::new();
    for step in 1..=STEPS {
        // If the renewal took effect before it stalled, the first holder still holds the key.
        let ask = b.ask(&key(Lock::mutex, step)).lease(world.units(6));
        if matches!(ask.send().await?.1, AcquireReply::Acquired(_)) {
            next.push(step);
        }
    }
    join_all(calls.into_iter().map(|(_, call)| call)).await;
    world.pass(7).await;
    for step in next {
        let (_, reply) = c.ask(&key(Lock::mutex, step)).send().await?;
        want!(reply, AcquireReply::Acquired(_)).promised(format!(
            "S3: a renewal that stalls after step {step} doesn't renew the next holder's lease"
        ))?;
    }
    Ok(())
}

/// The cases above stall a call. They can't stall a write that a task of the backend sends, so the backend
/// sends such a write itself.
async fn backend_finds_no_fault_of_its_own(world: &World) -> Verdict {
    let key = Key::new("k").expect("scenario keys are valid");
    let checked = world.backend().await?.self_check(&key).await;
    want!(checked, Ok(()))
        .promised("rule 12: the backend finds no fault, such as a write that is applied too late")
}

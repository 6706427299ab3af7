//! Calls of many tasks of one client, which the client may send in batches: each has its own
//! outcome.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_api::{Error, LockClient, MutexGuard, Outcome};

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, ensure, want, want_eq};
use crate::holding::{got, polled, valid};
use crate::world::World;

pub(super) const CASES: &[Case] = cases!("client_batching";
    each_gets_its_own_outcome: ["S1", "S3"], [];
    tasks_on_few_keys_exclude_each_other: ["S1", "S3"], [];
    failed_call_harms_no_other: ["rule 14", "S3"], [PlantForeign];
    dropped_calls_harm_no_other: ["rule 11", "S3"], [Inspect];
);

/// The number of concurrent tasks: more than fit in one batch. Stores without a clock have no batches.
const fn tasks(world: &World) -> usize {
    world.at_once(80, 20)
}

fn name(number: usize) -> String {
    format!("k{number}")
}

/// Locks `count` keys concurrently.
async fn lock_all(locks: &LockClient, count: usize) -> Result<Vec<MutexGuard>, Failure> {
    let lock = async |number| locks.mutex(name(number))?.lock().await;
    let taken = join_all((0..count).map(lock)).await;
    Ok(taken.into_iter().collect::<Result<_, Error>>()?)
}

/// Releases all guards concurrently. Expects that each was held.
async fn release_all(guards: &[MutexGuard]) -> Verdict {
    let releases = join_all(guards.iter().map(MutexGuard::release)).await;
    for (guard, release) in guards.iter().zip(releases) {
        want!(release, Ok(())).promised("S3: each release reports its own result")?;
        want_eq!(guard.holds_left(), Some(0))
            .promised("S3: each release reports its own result")?;
    }
    Ok(())
}

async fn each_gets_its_own_outcome(world: &World) -> Verdict {
    let ([a, b], tasks) = (world.clients().await?, tasks(world));
    // Another client holds every fifth key.
    let is_taken = |number: usize| number % 5 == 3;
    let mut others = Vec::new();
    for number in (0..tasks).filter(|number| is_taken(*number)) {
        others.push(got(b.mutex(name(number))?.try_lock().await, "S1")?);
    }
    let try_lock = async |number| a.mutex(name(number))?.try_lock().await;
    let outcomes = join_all((0..tasks).map(try_lock)).await;
    let mut guards = Vec::new();
    for (number, outcome) in outcomes.into_iter().enumerate() {
        match outcome? {
            Outcome::Acquired(guard) if !is_taken(number) => guards.push(guard),
            other => want!(other, Outcome::Contended(_) if is_taken(number)).promised(format!(
                "S1: the outcome of {} is that of its own key",
                name(number)
            ))?,
        }
    }
    release_all(&guards).await?;
    release_all(&others).await?;
    release_all(&lock_all(&b, tasks).await?).await
}

async fn tasks_on_few_keys_exclude_each_other(world: &World) -> Verdict {
    const KEYS: usize = 4;
    const TIMES: usize = 3;
    let a = world.client().await?;
    let inside = [const { AtomicU32::new(0) }; KEYS];
    let work = async |task: usize| {
        let (mutex, inside) = (a.mutex(name(task % KEYS))?, &inside[task % KEYS]);
        for _ in 0..TIMES {
            let guard = got(mutex.try_lock_for(world.units(400)).await, "L2")?;
            inside.fetch_add(1, Ordering::Relaxed);
            // A task that doesn't exclude the others lets them in here.
            for _ in 0..3 {
                world.pass_for(Duration::ZERO).await;
            }
            ensure!(inside.swap(0, Ordering::Relaxed) == 1, task)
                .promised("S1: one task at a time holds a key")?;
            guard.release().await?;
        }
        Ok::<_, Failure>(())
    };
    let done = join_all((0..KEYS * 4).map(work)).await;
    done.into_iter().collect()
}

async fn failed_call_harms_no_other(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let foreign = leasehold_api::Key::new(name(7)).expect("short enough");
    world.plant_foreign(&foreign).await?;
    let lock = async |number| a.mutex(name(number))?.lock().await;
    let mut guards = Vec::new();
    let outcomes = join_all((0..20).map(lock)).await;
    for (number, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(guard) if number != 7 => guards.push(guard),
            other => want!(other, Err(Error::ForeignValue { .. }) if number == 7)
                .promised("rule 14: a foreign value under one key is an error of that key only")?,
        }
    }
    for number in (0..20).filter(|number| *number != 7) {
        let other = b.mutex(name(number))?.try_lock().await?;
        want!(other, Outcome::Contended(_)).promised("S1: the other keys are held")?;
    }
    release_all(&guards).await
}

async fn dropped_calls_harm_no_other(world: &World) -> Verdict {
    let ([a, b], tasks) = (world.clients().await?, tasks(world));
    for polls in 1..4 {
        let lock = async |number: usize| {
            let mutex = a.mutex(name(number))?;
            if number % 3 == 1 {
                let outcome = polled(polls, mutex.lock()).await;
                return Ok(outcome.transpose()?.map(|guard| (number, guard)));
            }
            Ok::<_, Error>(Some((number, mutex.lock().await?)))
        };
        let outcomes = join_all((0..tasks).map(lock)).await;
        let mut guards = Vec::new();
        for taken in outcomes {
            guards.extend(taken?);
        }
        for (number, guard) in &guards {
            valid(guard, "S2: a call that is not dropped acquires its lock")?;
            let view = b.inspect(name(*number)).await?;
            want_eq!(view.holder_count(), 1).promised("S1: each lock has one holder")?;
        }
        let (numbers, guards): (Vec<_>, Vec<_>) = guards.into_iter().unzip();
        ensure!(
            (0..tasks).all(|number| number % 3 == 1 || numbers.contains(&number)),
            numbers.len()
        )
        .promised("L4: every call that is not dropped succeeds")?;
        release_all(&guards).await?;
        for number in 0..tasks {
            let within = b.mutex(name(number))?.try_lock_for(world.units(40)).await;
            got(within, "rule 11")?.release().await?;
        }
    }
    Ok(())
}

//! Acquiring and releasing through the client.

use futures_util::future::{ready, select};
use leasehold_api::{Inspection, Label, LockClient};

use crate::case::{Case, cases};
use crate::failure::{Verdict, ensure, want, want_eq};
use crate::holding::{busy, free_within, got, not_valid, released, valid};
use crate::world::World;

pub(super) const CASES: &[Case] = cases!("client_locks";
    lock_excludes_until_released: ["S1", "S3"], [];
    contention_is_a_value: ["S1", "rule 3"], [];
    handles_of_one_client_exclude_each_other: ["S1", "rule 5"], [];
    release_twice_reports_the_same: ["rule 12", "S3"], [];
    drop_releases: ["S3", "L1"], [];
    drop_outside_of_a_runtime_releases: ["S3", "L1"], [];
    dropped_release_goes_on: ["rule 12", "L1"], [];
    guard_tells_its_validity: ["S2"], [];
    deadline_lies_before_the_lease: ["S2", "rule 2"], [Inspect];
    tokens_of_guards_increase: ["S4"], [FencingTokens];
    label_is_what_others_see: ["rule 4"], [Inspect];
    inspection_answers_is_it_held: ["rule 4"], [Inspect, RwLocks, FencingTokens];
    available_permits_are_counted: ["rule 4"], [Inspect, Semaphores];
);

async fn lock_excludes_until_released(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    for _ in 0..3 {
        let guard = a.mutex("k")?.lock().await?;
        busy(b.mutex("k")?.try_lock().await, "S1")?;
        released(&guard, "S3").await?;
        let guard = got(b.mutex("k")?.try_lock().await, "S1")?;
        busy(a.mutex("k")?.try_lock().await, "S1")?;
        released(&guard, "S3").await?;
    }
    Ok(())
}

async fn contention_is_a_value(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let _guard = a.mutex("k")?.lock().await?;
    let held = busy(b.mutex("k")?.try_lock().await, "S1")?;
    ensure!(!held.retry_after.is_zero(), held)
        .promised("rule 3: the outcome says when to try again")
}

async fn handles_of_one_client_exclude_each_other(world: &World) -> Verdict {
    let a = world.client().await?;
    let handle = a.mutex("k")?;
    let guard = handle.lock().await?;
    busy(a.mutex("k")?.try_lock().await, "S1")?;
    busy(handle.try_lock().await, "S1")?;
    busy(handle.clone().try_lock().await, "rule 5")?;
    released(&guard, "S3").await
}

async fn release_twice_reports_the_same(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let guard = a.mutex("k")?.lock().await?;
    released(&guard, "S3").await?;
    let next = got(b.mutex("k")?.try_lock().await, "S3")?;
    released(&guard, "rule 12").await?;
    not_valid(&guard, "S3: a released guard is not valid")?;
    want_eq!(guard.valid_for().as_micros(), 0)
        .promised("S3: a released guard is valid for no time")?;
    drop(guard);
    world.pass(2).await;
    busy(a.mutex("k")?.try_lock().await, "S3")?;
    released(&next, "S3").await
}

async fn drop_releases(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let guard = a.mutex("k")?.lock().await?;
    drop(guard);
    // The key becomes free long before the default lease of 30 s ends.
    let promise = "S3: a dropped guard is released in the background";
    free_within(&b, world.units(50), promise).await
}

async fn drop_outside_of_a_runtime_releases(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let guard = a.mutex("k")?.lock().await?;
    let dropped = std::thread::spawn(move || drop(guard)).join();
    ensure!(dropped.is_ok(), "it panicked").promised("L4: dropping a guard never panics")?;
    let promise = "S3: a guard dropped on any thread is released";
    free_within(&b, world.units(50), promise).await
}

async fn dropped_release_goes_on(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let guard = a.mutex("k")?.lock().await?;
    // The release is polled once, then dropped before its reply arrives.
    drop(select(Box::pin(guard.release()), ready(())).await);
    let promise = "rule 12: a release continues after its future is dropped";
    free_within(&b, world.units(50), promise).await
}

async fn guard_tells_its_validity(world: &World) -> Verdict {
    let a = world.client().await?;
    let lease = world.units(50);
    let guard = a.mutex("k")?.lease(lease).lock().await?;
    want_eq!(guard.key().as_str(), "k").promised("S2: a guard knows its key")?;
    valid(&guard, "S2: a fresh guard is valid")?;
    let first = guard.valid_for();
    ensure!(!first.is_zero() && first < lease, first).promised(format!(
        "S2: a guard is valid for less than its lease of {lease:?}, by the drift allowance"
    ))?;
    released(&guard, "S3").await?;
    not_valid(&guard, "S2: a released guard is not valid")
}

async fn deadline_lies_before_the_lease(world: &World) -> Verdict {
    let a = world.client().await?;
    let lease = world.units(300);
    let guard = a.mutex("k")?.lease(lease).lock().await?;
    let mut moved = 0;
    for _ in 0..3 {
        // The guard is read first, so that the server's time is later rather than earlier.
        let local = guard.valid_for();
        let view = a.inspect("k").await?;
        let server = want!(view.holders(), [holder] => holder.remaining)
            .promised("S1: there is one holder")?;
        let later = guard.valid_for();
        // A client renews its guards once it listens, which may take a while.
        let renewed = later > local;
        moved += usize::from(renewed);
        ensure!(
            moved <= 1 && (renewed || later < server),
            (local, server, later)
        )
        .promised("S2: a guard's deadline is before the end of the server's lease, and reading doesn't move it")?;
        world.pass(3).await;
    }
    Ok(())
}

async fn tokens_of_guards_increase(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let mut last = None;
    for turn in 0..6 {
        let client = if turn % 2 == 0 { &a } else { &b };
        let guard = client.mutex("k")?.lock().await?;
        let token = Some(guard.fencing_token());
        ensure!(token > last, token)
            .promised(format!("S4: the epoch after {last:?} has a higher token"))?;
        last = token;
        released(&guard, "S3").await?;
        want_eq!(Some(guard.fencing_token()), last)
            .promised("S4: the token is readable after the release")?;
    }
    Ok(())
}

async fn label_is_what_others_see(world: &World) -> Verdict {
    let label = Label::new("worker 7")?;
    let a = LockClient::builder(world.backend().await?)
        .label(label.clone())
        .build()?;
    let b = world.client().await?;
    let _guard = a.mutex("k")?.lock().await?;
    let held = busy(b.mutex("k")?.try_lock().await, "S1")?;
    want_eq!(held.holder, Some(label.clone()))
        .promised("rule 4: contention names the holder's label")?;
    let view = b.inspect("k").await?;
    let labels: Vec<_> = view.holders().iter().map(|h| h.label.clone()).collect();
    want_eq!(labels, [label]).promised("rule 4: an inspection shows the holder's label")
}

async fn inspection_answers_is_it_held(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let lock = a.rw_lock("k")?;
    let states = |it: &Inspection| (it.is_held(), it.is_read_locked(), it.is_write_locked());
    let idle = b.inspect("k").await?;
    want_eq!(states(&idle), (false, false, false))
        .promised("rule 4: an inspection of a free key shows no holder")?;
    let reading = lock.read().await?;
    let view = b.inspect("k").await?;
    want_eq!(states(&view), (true, true, false))
        .promised("rule 4: an inspection shows the reader")?;
    want!(reading.release().await, Ok(())).promised("S3: the reader released the key")?;
    let writing = lock.write().await?;
    let view = b.inspect("k").await?;
    want_eq!(states(&view), (true, false, true))
        .promised("rule 4: an inspection shows the writer")?;
    want_eq!(view.held_tokens(), [writing.fencing_token()])
        .promised("rule 15: an inspection shows the writer's token")
}

async fn available_permits_are_counted(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let (mine, theirs) = (a.semaphore("k", 5)?, b.semaphore("k", 5)?);
    want_eq!(mine.available_permits().await?, 5)
        .promised("rule 4: all permits of an unused key are free")?;
    let two = got(mine.permits(2).try_acquire().await, "S1")?;
    let one = got(mine.try_acquire().await, "S1")?;
    want_eq!(theirs.available_permits().await?, 2)
        .promised("rule 4: permits that are held are not free")?;
    busy(theirs.permits(3).try_acquire().await, "S1")?;
    released(&two, "S3").await?;
    want_eq!(theirs.available_permits().await?, 4).promised("rule 4: released permits are free")?;
    released(&one, "S3").await
}

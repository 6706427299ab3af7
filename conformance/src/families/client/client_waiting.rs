//! Waiting for a lock, and giving up.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::{join, join_all, poll_immediate, try_join_all};
use leasehold_api::{LockClient, Outcome};

use crate::case::{Case, cases};
use crate::failure::{Failure, Verdict, at_most, ensure, want, want_eq};
use crate::holding::{busy, free, got, released};
use crate::world::{Lock, World};

pub(super) const CASES: &[Case] = cases!("client_waiting";
    lock_waits_for_the_release: ["rule 8", "L2"], [];
    budget_bounds_the_wait: ["L4"], [];
    budget_below_a_round_trip_is_a_timeout: ["L4", "S3"], [Queue, Inspect];
    no_budget_is_a_try: ["L4"], [];
    try_ends_in_one_call: ["L4"], [];
    turn_comes_within_the_budget: ["rule 8", "L4"], [];
    crashed_holder_is_waited_out: ["L1"], [];
    counter_under_contention: ["S1", "S3"], [];
    waiters_are_served_in_order: ["rule 7", "L3"], [Queue];
    abandoned_wait_leaves_no_waiter: ["rule 10", "S3"], [Queue, Inspect];
    dropped_wait_leaves_no_waiter: ["rule 11", "S3"], [Queue, Inspect];
    dropped_anywhere_leaves_nothing: ["rule 11", "rule 12", "S3"], [Inspect];
    writer_is_not_starved_by_readers: ["rule 7", "L3"], [RwLocks, Queue];
    reader_is_not_starved_by_writers: ["rule 7", "L3"], [RwLocks, Queue];
    tasks_of_one_client_share_a_key: ["rule 7", "L3"], [Queue];
);

async fn lock_waits_for_the_release(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let guard = a.mutex("k")?.lock().await?;
    let (mutex, order) = (b.mutex("k")?, AtomicU32::new(0));
    let waits = async {
        let guard = mutex.lock().await?;
        let turn = order.fetch_add(1, Ordering::SeqCst);
        want_eq!(turn, 1)
            .promised("S1: the waiter acquires the lock after the release has started")?;
        released(&guard, "S3").await
    };
    let releases = async || {
        order.fetch_add(1, Ordering::SeqCst);
        released(&guard, "S3").await
    };
    world.meanwhile(5, waits, releases).await?
}

/// Runs a call. Returns its time on the client's clock, and its output.
async fn timed<T>(client: &LockClient, call: impl Future<Output = T>) -> (Duration, T) {
    let clock = client.runtime();
    let began = clock.now();
    let output = call.await;
    (clock.now().saturating_since(began), output)
}

async fn budget_bounds_the_wait(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let _guard = a.mutex("k")?.lock().await?;
    let (mutex, budget) = (b.mutex("k")?, world.units(6));
    let (took, outcome) = timed(&b, mutex.try_lock_for(budget)).await;
    let timed_out = want!(outcome?, Outcome::Contended(late) if late.timed_out => late)
        .promised("L4: a wait that reaches its time limit is a value, not an error")?;
    ensure!(took >= budget && took <= budget + world.call_limit(), took).promised(format!(
        "L4: a wait ends at its time limit of {budget:?}, or at most one call later"
    ))?;
    ensure!(timed_out.waited >= budget, timed_out)
        .promised("L4: the outcome reports how long it waited")
}

async fn budget_below_a_round_trip_is_a_timeout(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let guard = a.mutex("k")?.lock().await?;
    let mutex = b.mutex("k")?;
    // The client knows nothing of the server in the first of these waits.
    for micros in [1, 200, 1_000] {
        let outcome = mutex.try_lock_for(Duration::from_micros(micros)).await?;
        want!(outcome, Outcome::Contended(_))
            .promised("L4: a wait that is too short for an answer is a timeout, not an error")?;
    }
    nobody_waits(world, &a, "S3").await?;
    released(&guard, "S3").await?;
    free(&b, "k", "S3").await
}

async fn no_budget_is_a_try(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let mutex = b.mutex("k")?;
    let free = got(mutex.try_lock_for(Duration::ZERO).await, "L4")?;
    released(&free, "S3").await?;
    let _guard = a.mutex("k")?.lock().await?;
    let (took, outcome) = timed(&b, mutex.try_lock_for(Duration::ZERO)).await;
    ensure!(!outcome?.is_acquired(), "Acquired").promised("S1: another client holds the lock")?;
    at_most(took, world.call_limit()).promised("L4: a time limit of zero makes one call")
}

async fn try_ends_in_one_call(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let _guard = a.mutex("k")?.lock().await?;
    let mutex = b.mutex("k")?;
    let (took, outcome) = timed(&b, mutex.try_lock()).await;
    busy(outcome, "S1")?;
    at_most(took, world.call_limit()).promised("L4: a try makes one call")
}

async fn turn_comes_within_the_budget(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let guard = a.mutex("k")?.lock().await?;
    let mutex = b.mutex("k")?;
    let waits = timed(&b, mutex.try_lock_for(world.units(100)));
    let releases = async || released(&guard, "S3").await;
    let (took, outcome) = world.meanwhile(3, waits, releases).await?;
    drop(got(outcome, "L4")?);
    let most = world.units_and_a_poll(5) + world.call_limit();
    at_most(took, most).promised(format!(
        "rule 8: a release wakes the waiter within {most:?}"
    ))
}

async fn crashed_holder_is_waited_out(world: &World) -> Verdict {
    let (a, b) = (world.session().await?, world.client().await?);
    // A holder that never renews and never releases, as after a crash.
    let ask = a.ask(&Lock::mutex("k")).lease(world.units(8));
    ask.acquired("S1").await?;
    let mutex = b.mutex("k")?;
    let (took, outcome) = timed(&b, mutex.try_lock_for(world.units(200))).await;
    drop(got(outcome, "L1")?);
    let most = world.units_and_a_poll(10) + world.call_limit();
    at_most(took, most).promised("L1: a crashed holder's key is free within its lease")
}

async fn counter_under_contention(world: &World) -> Verdict {
    let (inside, count) = (AtomicU32::new(0), AtomicU32::new(0));
    let clients = world.clients::<5>().await?;
    let works = clients.iter().map(|client| async {
        for _ in 0..4 {
            let guard = client.mutex("k")?.lock().await?;
            let others = inside.fetch_add(1, Ordering::SeqCst);
            ensure!(others == 0, others).promised("S1: one client at a time holds the lock")?;
            let seen = count.load(Ordering::SeqCst);
            world.pass_for(Duration::from_millis(2)).await;
            count.store(seen + 1, Ordering::SeqCst);
            inside.fetch_sub(1, Ordering::SeqCst);
            released(&guard, "S3").await?;
        }
        Ok::<_, Failure>(())
    });
    try_join_all(works).await?;
    want_eq!(count.load(Ordering::SeqCst), 20).promised("S1: no update was lost")
}

async fn waiters_are_served_in_order(world: &World) -> Verdict {
    let holder = world.client().await?;
    let guard = holder.mutex("k")?.lock().await?;
    let clients = world.clients::<4>().await?;
    let served = AtomicU32::new(0);
    let waits = clients.iter().enumerate().map(|(n, client)| {
        let (served, n) = (&served, u32::try_from(n).expect("few"));
        async move {
            all_wait(world, client, n).await?;
            let guard = client.mutex("k")?.lock().await?;
            let turn = served.fetch_add(1, Ordering::SeqCst);
            want_eq!(turn, n).promised("rule 7: first come, first served")?;
            released(&guard, "S3").await
        }
    });
    let releases = async {
        all_wait(world, &holder, 4).await?;
        released(&guard, "S3").await
    };
    let (all, done) = join(join_all(waits), releases).await;
    done?;
    all.into_iter().collect()
}

/// The number of waiters, once it is as expected or that many units have passed.
async fn waiters_once(
    world: &World,
    client: &LockClient,
    units: u32,
    expected: impl Fn(u32) -> bool,
) -> Result<u32, Failure> {
    let mut waiting = client.inspect("k").await?.waiter_count();
    for _ in 0..units {
        if expected(waiting) {
            break;
        }
        world.pass(1).await;
        waiting = client.inspect("k").await?.waiter_count();
    }
    Ok(waiting)
}

/// Waits until `count` waiters have queued: by inspection, or by time without it.
async fn all_wait(world: &World, client: &LockClient, count: u32) -> Verdict {
    if !world.capabilities().inspect {
        world.pass(3 * (count + 1)).await;
        return Ok(());
    }
    let waiting = waiters_once(world, client, 60, |waiting| waiting >= count).await?;
    ensure!(waiting >= count, waiting)
        .promised(format!("rule 7: all {count} attempts on a held key wait"))
}

/// Expects that the queue is empty within a second.
async fn nobody_waits(world: &World, client: &LockClient, rule: &'static str) -> Verdict {
    let waiting = waiters_once(world, client, 19, |waiting| waiting == 0).await?;
    let promise = format!("{rule}: a finished wait leaves no waiter in the queue");
    want_eq!(waiting, 0).promised(promise)
}

async fn abandoned_wait_leaves_no_waiter(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let guard = a.mutex("k")?.lock().await?;
    let outcome = b.mutex("k")?.try_lock_for(world.units(4)).await?;
    want!(outcome, Outcome::Contended(late) if late.waited >= world.units(4))
        .promised("L4: the time limit is over")?;
    nobody_waits(world, &a, "rule 10").await?;
    released(&guard, "S3").await?;
    free(&a, "k", "rule 10").await
}

async fn dropped_wait_leaves_no_waiter(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let guard = a.mutex("k")?.lock().await?;
    let mutex = b.mutex("k")?;
    let waited = world.within(4, mutex.lock()).await;
    ensure!(waited.is_none(), waited).promised("S1: the key is held")?;
    nobody_waits(world, &a, "rule 11").await?;
    released(&guard, "S3").await?;
    free(&a, "k", "rule 11").await
}

/// Drops a wait after 0, 1, 2, … ms, before and after the release that it waits for.
async fn dropped_anywhere_leaves_nothing(world: &World) -> Verdict {
    let [a, b] = world.clients().await?;
    let mutex = b.mutex("k")?;
    for n in 0..12 {
        let guard = a.mutex("k")?.try_lock_for(world.units(100)).await;
        let guard = got(guard, "rule 11")?;
        let delay = std::pin::pin!(world.pass_for(Duration::from_millis(n)));
        let wait = Box::pin(mutex.lock());
        let releases = async {
            world.pass_for(Duration::from_millis(4)).await;
            released(&guard, "S3").await
        };
        let gives_up = async {
            // Drops the future, or the guard if there is one.
            drop(futures_util::future::select(delay, wait).await);
        };
        let (done, ()) = join(releases, gives_up).await;
        done?;
    }
    nobody_waits(world, &a, "rule 11").await?;
    let last = a.mutex("k")?.try_lock_for(world.units(50)).await;
    released(&got(last, "rule 11")?, "S3").await?;
    let view = a.inspect("k").await?;
    let left = (view.holder_count(), view.waiter_count());
    want_eq!(left, (0, 0)).promised("rule 11: dropped attempts leave nothing behind")
}

/// Runs overlapping holds of one class while an attempt of the other class waits. Returns the
/// number of holds that started before the waiter's turn.
async fn overtaken_by(world: &World, readers: bool) -> Result<u32, Failure> {
    let clients = world.clients::<2>().await?;
    let waiter = world.client().await?;
    let stop = AtomicU32::new(0);
    let begun = AtomicU32::new(0);
    let contend = |n: u32| {
        let (stop, begun) = (&stop, &begun);
        let client = &clients[n as usize];
        async move {
            world.pass(n).await;
            let lock = client.rw_lock("k")?;
            while stop.load(Ordering::SeqCst) == 0 {
                if readers {
                    let guard = lock.read().await?;
                    world.pass(2).await;
                    guard.release().await?;
                } else {
                    let guard = lock.write().await?;
                    world.pass(2).await;
                    guard.release().await?;
                }
                let before = begun.fetch_add(1, Ordering::SeqCst);
                ensure!(before < 60, before).promised("rule 7: the other class gets its turn")?;
            }
            Ok::<_, Failure>(())
        }
    };
    let waits = async {
        world.pass(5).await;
        let (lock, before) = (waiter.rw_lock("k")?, begun.load(Ordering::SeqCst));
        if readers {
            lock.write().await?.release().await?;
        } else {
            lock.read().await?.release().await?;
        }
        stop.store(1, Ordering::SeqCst);
        Ok::<_, Failure>(begun.load(Ordering::SeqCst) - before)
    };
    let ((first, second), overtaken) = join(join(contend(0), contend(1)), waits).await;
    first?;
    second?;
    overtaken
}

async fn writer_is_not_starved_by_readers(world: &World) -> Verdict {
    let ended = overtaken_by(world, true).await?;
    // The readers that hold when the writer arrives finish. One of them may acquire once more.
    at_most(ended, 4).promised("rule 7: later readers wait behind the writer")
}

async fn reader_is_not_starved_by_writers(world: &World) -> Verdict {
    let ended = overtaken_by(world, false).await?;
    at_most(ended, 4).promised("rule 7: later writers wait behind the reader")
}

/// Tasks of one client that take the same key again and again, as the workers of a server do. No task may be
/// faster than the queue, which is fair.
async fn tasks_of_one_client_share_a_key(world: &World) -> Verdict {
    const TASKS: u32 = 8;
    const SHARE: u32 = 8;
    let locks = world.client().await?;
    let acquired = &AtomicU32::new(0);
    let tasks = (0..TASKS).map(async |_| {
        let (mutex, mut own) = (locks.mutex("k")?, 0);
        while acquired.load(Ordering::SeqCst) < TASKS * SHARE {
            let mut locking = Box::pin(mutex.lock());
            let guard = match poll_immediate(&mut locking).await {
                Some(guard) => {
                    // A backend that answers at once never lets the other tasks begin.
                    world.pass(1).await;
                    guard?
                }
                None => locking.await?,
            };
            acquired.fetch_add(1, Ordering::SeqCst);
            own += 1;
            released(&guard, "S3").await?;
        }
        Ok::<_, Failure>(own)
    });
    let shares: Vec<u32> = try_join_all(tasks).await?;
    ensure!(shares.iter().all(|own| *own >= SHARE / 4), shares)
        .promised("rule 7: each task gets at least a quarter of its share")
}

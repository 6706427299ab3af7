//! Scenarios: what machines do with a store without a clock, and what must never happen.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, join_all, select};
use leasehold_api::{LockClient, MutexGuard, Outcome};

use crate::machine::Machine;
use crate::world::{Clocks, Connection, Faults, World, block_on};

const MACHINES: u64 = 3;
const ROUNDS: u64 = 4;
const POLL: Duration = Duration::from_secs(1);
/// What calls take on the way, and clients that compete for the row.
pub(crate) const CALLS: Duration = Duration::from_millis(200);

const FAULTS: Faults = Faults {
    unavailable: 3,
    lost: 4,
    late: 2,
    slow: 4,
};

/// What happened in some runs.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) entered: u64,
    pub(crate) stopped: u64,
    pub(crate) restarted: u64,
    pub(crate) taken_over: u64,
    pub(crate) removed: u64,
}

/// What a run has broken.
pub(crate) type Verdict = Result<(), String>;

/// Everybody who has held the lock.
#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<Held>);

#[derive(Debug, Default)]
pub(crate) struct Held {
    guards: Vec<Arc<MutexGuard>>,
    highest: u64,
    pub(crate) entered: u64,
    broken: Option<String>,
}

impl Registry {
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Held) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes a guard that was just granted. Each guard is valid by the clock of its own machine.
    pub(crate) fn enter(&self, guard: &Arc<MutexGuard>) {
        if !guard.is_valid() {
            return;
        }
        let token = guard.fencing_token().get();
        self.with(|held| {
            held.entered += 1;
            held.guards.retain(|other| other.is_valid());
            if let Some(other) = held.guards.first() {
                let (left, token) = (other.valid_for(), other.fencing_token());
                held.broken = Some(format!("two holders: {token} is valid for {left:?}"));
            }
            if token <= held.highest {
                held.broken = Some(format!("token {token} after {}", held.highest));
            }
            held.highest = held.highest.max(token);
            held.guards.push(Arc::clone(guard));
        });
    }

    pub(crate) fn leave(&self, guard: &Arc<MutexGuard>) {
        self.with(|held| held.guards.retain(|other| !Arc::ptr_eq(other, guard)));
    }

    pub(crate) fn verdict(&self) -> Verdict {
        self.with(|held| held.broken.take()).map_or(Ok(()), Err)
    }
}

/// A program takes the lock again and again.
async fn work(machine: Arc<Machine>, registry: Arc<Registry>, lease: Duration) {
    let world = Arc::clone(&machine.world);
    let locks = LockClient::new(Connection::backend(&machine));
    for _ in 0..ROUNDS {
        let mutex = locks.mutex("a").expect("valid").lease(lease);
        let mutex = match world.random() % 2 {
            0 => mutex,
            _ => mutex.fixed_lease(),
        };
        let waiting = world.up_to(lease * 3);
        // An outage may end the wait with an error.
        let guard = mutex.try_lock_for(waiting).await;
        if let Some(guard) = guard.ok().and_then(Outcome::into_guard) {
            let guard = Arc::new(guard);
            registry.enter(&guard);
            tokio::time::sleep(world.up_to(lease * 2)).await;
            if !world.random().is_multiple_of(4) {
                registry.leave(&guard);
                let _ = guard.release().await;
            }
        }
        tokio::time::sleep(world.up_to(lease / 4)).await;
    }
    let _ = locks.shutdown().await;
}

/// A machine whose program may be stopped for a while, or end and be started anew.
async fn live(world: Arc<World>, registry: Arc<Registry>, lease: Duration, seen: Arc<Mutex<Seen>>) {
    let note = |note: &dyn Fn(&mut Seen)| note(&mut seen.lock().expect("no panic"));
    for _ in 0..=world.random() % 2 {
        let machine = Machine::new(&world);
        let running = Arc::clone(&machine);
        let mut task = tokio::spawn({
            let work = work(Arc::clone(&machine), Arc::clone(&registry), lease);
            async move { running.run(work).await }
        });
        for _ in 0..world.random() % 3 {
            let pause = Box::pin(tokio::time::sleep(world.up_to(lease * 4)));
            match select(task, pause).await {
                Either::Left((ended, _)) => return ended.expect("no panic"),
                Either::Right(((), going_on)) => task = going_on,
            }
            machine.stop();
            note(&|seen| seen.stopped += 1);
            tokio::time::sleep(world.up_to(lease * 2)).await;
            machine.start();
        }
        match world.random() % 2 {
            // It dies, and a new program begins.
            0 => {
                let dies = Box::pin(tokio::time::sleep(world.up_to(lease * 4)));
                if let Either::Left((ended, _)) = select(task, dies).await {
                    return ended.expect("no panic");
                }
                machine.stop();
                note(&|seen| seen.restarted += 1);
            }
            _ => return task.await.expect("no panic"),
        }
    }
}

/// No two clients hold the lock at once, whatever their clocks show and however they end, and tokens never fall.
pub(crate) fn safety(seed: u64, all: &mut Seen) -> Verdict {
    block_on(async { safety_in(World::new(seed, FAULTS), all).await })
}

/// The same if most programs compare times of day, which are as far off as each declares.
pub(crate) fn safety_within_the_skew(seed: u64, all: &mut Seen) -> Verdict {
    let skew = Duration::from_millis([0, 100, 2_000, 20_000][(seed / 4 % 4) as usize]);
    let clocks = Clocks {
        apart: skew,
        declared: Some(skew),
        differ: true,
    };
    block_on(async { safety_in(World::with_clocks(seed, FAULTS, clocks), all).await })
}

/// The same if they are further apart. It breaks.
pub(crate) fn safety_beyond_the_skew(seed: u64, all: &mut Seen) -> Verdict {
    let skew = Duration::from_secs(2);
    let clocks = Clocks {
        apart: skew * 5,
        declared: Some(skew),
        differ: false,
    };
    block_on(async { safety_in(World::with_clocks(seed, FAULTS, clocks), all).await })
}

async fn safety_in(world: Arc<World>, all: &mut Seen) -> Verdict {
    let lease = Duration::from_millis([300, 2_000, 6_000][(world.random() % 3) as usize]);
    let registry = Arc::new(Registry::default());
    let seen = Arc::new(Mutex::new(Seen::default()));
    let machines = (0..MACHINES).map(|_| {
        let (world, registry) = (Arc::clone(&world), Arc::clone(&registry));
        live(world, registry, lease, Arc::clone(&seen))
    });
    join_all(machines).await;
    registry.verdict()?;
    if world.removes {
        world.set_faults(Faults::default());
        outlive_the_row(&world, &registry).await?;
    }
    let seen = seen.lock().expect("no panic");
    all.entered += registry.with(|held| held.entered);
    all.stopped += seen.stopped;
    all.restarted += seen.restarted;
    all.removed += world.removed();
    Ok(())
}

/// A client sees the end of the row, and removes it. The next holder's token is higher all the same.
async fn outlive_the_row(world: &Arc<World>, registry: &Registry) -> Verdict {
    let locks = LockClient::new(Connection::backend(&Machine::new(world)));
    let again = Duration::from_secs(61);
    let lock = async |locks: &LockClient, key: &str| {
        let mutex = locks
            .mutex(key)
            .expect("valid")
            .lease(Duration::from_secs(5));
        let waiting = Duration::from_secs(60);
        let guard = mutex
            .try_lock_for(waiting)
            .await
            .ok()
            .and_then(Outcome::into_guard);
        guard.ok_or("nobody holds the lock, and it isn't granted")
    };
    let guard = Arc::new(lock(&locks, "a").await?);
    registry.enter(&guard);
    registry.leave(&guard);
    guard.release().await.map_err(|error| error.to_string())?;
    let before = world.removed();
    // Rows are removed in the background of other calls.
    for _ in 0..20 {
        tokio::time::sleep(again).await;
        let other = lock(&locks, "other").await?;
        other.release().await.map_err(|error| error.to_string())?;
    }
    if world.removed() == before {
        return Err("the row stays".into());
    }
    // This client doesn't know the last token.
    let locks = LockClient::new(Connection::backend(&Machine::new(world)));
    let guard = Arc::new(lock(&locks, "a").await?);
    registry.enter(&guard);
    registry.verdict()
}

/// A holder dies. Somebody else gets the lock within a lease, three polls, and the time that calls take.
pub(crate) fn liveness(seed: u64, all: &mut Seen) -> Verdict {
    block_on(async {
        let world = World::new(seed, Faults::default());
        let lease = Duration::from_millis(1_000 + world.random() % 9_000);
        // Without pollers that stay, a chain of processes brings the time along.
        let pollers = if world.random().is_multiple_of(2) {
            8
        } else {
            0
        };
        let registry = Arc::new(Registry::default());
        let holder = Machine::new(&world);
        let locks = LockClient::new(Connection::backend(&holder));
        let mutex = locks.mutex("a").expect("valid").lease(lease);
        let first = holder
            .run(mutex.lock())
            .await
            .map_err(|error| error.to_string())?;
        registry.enter(&Arc::new(first));
        let wait = |waits: Duration| {
            let (world, registry) = (Arc::clone(&world), Arc::clone(&registry));
            tokio::spawn(async move {
                let machine = Machine::new(&world);
                let locks = LockClient::new(Connection::backend(&machine));
                let mutex = locks.mutex("a").expect("valid").lease(lease);
                let guard = mutex.try_lock_for(waits).await.ok();
                if let Some(guard) = guard.and_then(Outcome::into_guard) {
                    registry.enter(&Arc::new(guard));
                    std::future::pending::<()>().await;
                }
                let _ = locks.shutdown().await;
            })
        };
        for _ in 0..pollers {
            wait(lease * 20);
        }
        // They have all seen the row by then.
        tokio::time::sleep(POLL * 2 + world.up_to(lease)).await;
        holder.stop();
        let died = tokio::time::Instant::now();
        let bound = lease + lease / 50 + POLL * 3 + CALLS;
        while died.elapsed() < bound && registry.with(|held| held.entered) == 1 {
            wait(Duration::from_millis(3_500));
            tokio::time::sleep(POLL.min(bound.saturating_sub(died.elapsed()))).await;
        }
        registry.verdict()?;
        if registry.with(|held| held.entered) == 1 {
            return Err(format!("not granted within {bound:?}, {pollers} pollers"));
        }
        all.taken_over += 1;
        Ok(())
    })
}

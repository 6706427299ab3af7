//! Processes that live for a moment, such as a command that runs each minute. They see no lease end, and compare times of day.

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{LockClient, Outcome};
use tokio::time::{Instant, sleep};

use crate::machine::Machine;
use crate::plan::{CALLS, Registry, Seen, Verdict};
use crate::world::{Clocks, Connection, Faults, World, block_on};

/// How often a process runs, and the skew.
const PLANS: [(Duration, Duration); 3] = [
    (Duration::from_secs(1), Duration::from_secs(2)),
    (Duration::from_secs(60), Duration::from_secs(300)),
    (Duration::from_secs(60), Duration::from_secs(5)),
];

fn world(seed: u64, skew: Duration, is_declared: bool) -> Arc<World> {
    let clocks = Clocks {
        apart: skew,
        declared: is_declared.then_some(skew),
        differ: false,
    };
    World::with_clocks(seed, Faults::default(), clocks)
}

/// A process on another machine tries once, and ends. Returns whether it has had the lock.
async fn tries_once(
    world: &Arc<World>,
    registry: &Registry,
    lease: Duration,
) -> Result<bool, String> {
    let locks = LockClient::new(Connection::backend(&Machine::new(world)));
    let mutex = locks.mutex("a").expect("valid").lease(lease);
    let outcome = mutex.try_lock().await.map_err(|error| error.to_string())?;
    let Outcome::Acquired(guard) = outcome else {
        return Ok(false);
    };
    let guard = Arc::new(guard);
    registry.enter(&guard);
    registry.leave(&guard);
    guard.release().await.map_err(|error| error.to_string())?;
    Ok(true)
}

/// A holder dies. Returns whether a process gets the lock within a lease, twice the skew, and the time between two processes.
async fn is_taken_over(
    world: &Arc<World>,
    period: Duration,
    skew: Duration,
) -> Result<bool, String> {
    let lease = Duration::from_millis(1_000 + world.random() % 60_000);
    let registry = Registry::default();
    let holder = Machine::new(world);
    let locks = LockClient::new(Connection::backend(&holder));
    let mutex = locks.mutex("a").expect("valid").lease(lease);
    let taken = holder.run(mutex.lock()).await;
    registry.enter(&Arc::new(taken.map_err(|error| error.to_string())?));
    // It renews for a while, and others try.
    let lives = world.up_to(lease * 2);
    let began = Instant::now();
    while began.elapsed() < lives {
        tries_once(world, &registry, lease).await?;
        sleep(period.min(lives)).await;
    }
    holder.stop();
    let died = Instant::now();
    let bound = lease + lease / 50 + skew * 2 + period + CALLS;
    while died.elapsed() < bound {
        if tries_once(world, &registry, lease).await? {
            registry.verdict()?;
            return Ok(true);
        }
        sleep(period.min(bound.saturating_sub(died.elapsed()))).await;
    }
    Ok(tries_once(world, &registry, lease).await? && registry.verdict().is_ok())
}

pub(crate) fn liveness(seed: u64, all: &mut Seen) -> Verdict {
    let (period, skew) = PLANS[(seed % 3) as usize];
    let taken_over = |is_declared| {
        block_on(async {
            let world = world(seed, skew, is_declared);
            is_taken_over(&world, period, skew).await
        })
    };
    if !taken_over(true)? {
        return Err(format!("not granted: each {period:?}, skew {skew:?}"));
    }
    all.taken_over += 1;
    // Nobody looks for long enough.
    if period > Duration::from_secs(1) && taken_over(false)? {
        return Err("granted, although nobody has seen the lease end".into());
    }
    Ok(())
}

/// The row of a lock that only such processes use stays small, although each leaves a watermark, also if a holder has died.
pub(crate) fn row_stays_small(seed: u64, is_held: bool) -> Verdict {
    block_on(async {
        let world = world(seed, Duration::ZERO, false);
        let registry = Registry::default();
        let lease = Duration::from_secs(30);
        if is_held {
            let holder = Machine::new(&world);
            let locks = LockClient::new(Connection::backend(&holder));
            let mutex = locks.mutex("a").expect("valid").lease(lease);
            let taken = holder.run(mutex.lock()).await;
            std::mem::forget(taken.map_err(|error| error.to_string())?);
            holder.stop();
        }
        for process in 0..1_500 {
            let is_had = tries_once(&world, &registry, lease).await?;
            assert_eq!(is_had, !is_held, "nobody sees a lease end");
            let bytes = world.get("key/a").expect("a row").bytes.len();
            if bytes > [8_000, 35_000][usize::from(is_held)] {
                return Err(format!("a row of {bytes} bytes after {process} processes"));
            }
            sleep(Duration::from_secs(60)).await;
        }
        registry.verdict()
    })
}

//! Times how fast a queue of parked waiters drains, and in which order. Each waiter acquires the
//! lock once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::LockClient;

use crate::Result;
use crate::lock::Lock;
use crate::server_stats::ServerStats;

/// Time for the last waiter to finish parking.
const SETTLE: Duration = Duration::from_millis(5);
/// Time for each waiter to read its answer.
const SETTLE_EACH: Duration = Duration::from_micros(50);
const PARKED_WITHIN: Duration = Duration::from_secs(60);
const DRAINED_WITHIN: Duration = Duration::from_secs(60);
/// After each count of the waiters, a pause of this many times its duration.
const COUNTING: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drained {
    /// From the release to the last waiter's grant.
    pub(crate) time: Duration,
    /// The greatest distance between a waiter's place in the order in which the waiters asked, and
    /// its place in the order of the grants. 0 if all were served in turn.
    pub(crate) displaced: usize,
}

#[derive(Debug)]
pub(crate) enum Parked<'a> {
    /// Inspects the queue of leasehold's lock under this key.
    OnLeasehold(&'a LockClient, &'a str),
    /// Counts the blocked clients of a server that nothing else uses.
    OnBlpop(&'a mut ServerStats),
}

impl Parked<'_> {
    async fn count(&mut self) -> Result<usize> {
        Ok(match self {
            // A busy client may have no answer in time.
            Self::OnLeasehold(locks, key) => {
                let found = locks.inspect(key).await;
                found.map_or(0, |found| found.waiter_count() as usize)
            }
            Self::OnBlpop(server) => server.number("clients", "blocked_clients").await? as usize,
        })
    }
}

/// Acquires the lock with the first handle, waits until all others are parked, and releases the lock.
pub(crate) async fn drain<L: Lock>(locks: &Arc<Vec<L>>, mut parked: Parked<'_>) -> Result<Drained> {
    let held = locks[0].acquire().await?;
    let (asked, granted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for number in 1..locks.len() {
        let locks = Arc::clone(locks);
        let (asked, granted) = (Arc::clone(&asked), Arc::clone(&granted));
        tasks.push(tokio::spawn(async move {
            let entered = asked.fetch_add(1, Ordering::Relaxed);
            let held = locks[number].acquire().await?;
            let at = Instant::now();
            let displaced = granted.fetch_add(1, Ordering::Relaxed).abs_diff(entered);
            locks[number].release(held).await?;
            Result::Ok((at, displaced))
        }));
    }
    wait_until_parked(&mut parked, tasks.len()).await?;
    let begun = Instant::now();
    locks[0].release(held).await?;
    let (mut last, mut displaced) = (begun, 0);
    for task in tasks {
        let left = DRAINED_WITHIN.saturating_sub(begun.elapsed());
        let (at, by) = tokio::time::timeout(left, task).await???;
        (last, displaced) = (last.max(at), displaced.max(by));
    }
    let time = last - begun;
    Ok(Drained { time, displaced })
}

async fn wait_until_parked(parked: &mut Parked<'_>, waiters: usize) -> Result<()> {
    let begun = Instant::now();
    loop {
        let counting = Instant::now();
        let found = parked.count().await?;
        if found >= waiters {
            break;
        }
        if begun.elapsed() > PARKED_WITHIN {
            return Err(format!("{found} of {waiters} waiters were parked in time").into());
        }
        let pause = (counting.elapsed() * COUNTING).max(Duration::from_millis(1));
        tokio::time::sleep(pause).await;
    }
    tokio::time::sleep(SETTLE + SETTLE_EACH * u32::try_from(waiters)?).await;
    Ok(())
}

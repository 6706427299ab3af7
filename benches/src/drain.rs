//! Times how fast a queue of parked waiters drains. Each waiter acquires the lock once.

use std::sync::Arc;
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
/// Returns the time from then to the last waiter's grant.
pub(crate) async fn drain<L: Lock>(
    locks: &Arc<Vec<L>>,
    mut parked: Parked<'_>,
) -> Result<Duration> {
    let held = locks[0].acquire().await?;
    let mut tasks = Vec::new();
    for number in 1..locks.len() {
        let locks = Arc::clone(locks);
        tasks.push(tokio::spawn(async move {
            let held = locks[number].acquire().await?;
            let at = Instant::now();
            locks[number].release(held).await?;
            Result::Ok(at)
        }));
    }
    wait_until_parked(&mut parked, tasks.len()).await?;
    let begun = Instant::now();
    locks[0].release(held).await?;
    let mut last = begun;
    for task in tasks {
        let left = DRAINED_WITHIN.saturating_sub(begun.elapsed());
        last = last.max(tokio::time::timeout(left, task).await???);
    }
    Ok(last - begun)
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

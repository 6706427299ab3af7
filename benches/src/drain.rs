//! Times how fast a queue of parked waiters drains. Each waiter acquires the lock once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::LockClient;

use crate::Result;
use crate::lock::Lock;
use crate::server_stats::ServerStats;

/// Time for the last waiter to finish parking.
const SETTLE: Duration = Duration::from_millis(5);
const PARKED_WITHIN: Duration = Duration::from_secs(5);

/// How to count the parked waiters.
#[derive(Debug)]
pub enum Parked<'a> {
    /// Inspects the queue of leasehold's lock under this key.
    OnLeasehold(&'a LockClient, &'a str),
    /// Counts the blocked clients of a server that nothing else uses.
    OnBlpop(&'a mut ServerStats),
}

impl Parked<'_> {
    async fn count(&mut self) -> Result<usize> {
        Ok(match self {
            Self::OnLeasehold(locks, key) => locks.inspect(key).await?.waiters().len(),
            Self::OnBlpop(server) => server.number("clients", "blocked_clients").await? as usize,
        })
    }
}

/// Acquires the lock with `first`, parks all waiters, and releases it. Returns the time from that
/// release to the last waiter's grant.
///
/// # Errors
/// The first error of any waiter, or if the waiters are not parked in time.
pub async fn drain<L: Lock>(
    first: &L,
    waiters: &Arc<Vec<L>>,
    mut parked: Parked<'_>,
) -> Result<Duration> {
    let held = first.acquire().await?;
    let tasks: Vec<_> = (0..waiters.len())
        .map(|number| {
            let waiters = Arc::clone(waiters);
            tokio::spawn(async move {
                let held = waiters[number].acquire().await?;
                let granted = Instant::now();
                waiters[number].release(held).await?;
                Result::Ok(granted)
            })
        })
        .collect();
    let begun = Instant::now();
    while parked.count().await? < waiters.len() {
        if begun.elapsed() > PARKED_WITHIN {
            return Err("not all waiters were parked in time".into());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(SETTLE).await;
    let begun = Instant::now();
    first.release(held).await?;
    let mut last = begun;
    for task in tasks {
        last = last.max(task.await??);
    }
    Ok(last - begun)
}

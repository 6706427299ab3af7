//! A queue of parked waiters, each of which has the lock once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::LockClient;

use crate::Result;
use crate::lock::Lock;
use crate::server_stats::ServerStats;

/// For everything that follows a waiter's parking to come to rest.
const SETTLE: Duration = Duration::from_millis(5);
const PARKED_WITHIN: Duration = Duration::from_secs(5);

/// How it is known how many wait.
#[derive(Debug)]
pub enum Parked<'a> {
    /// By the queue of leasehold's lock under this key.
    OnLeasehold(&'a LockClient, &'a str),
    /// By the number of blocked clients of a server where nobody else blocks.
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

/// Lets the waiters queue up behind `gate`, then gives the lock back. How long it takes from there
/// until the last one has it.
///
/// # Errors
/// The first of any of them, or if they are not parked in time.
pub async fn drain<L: Lock>(
    gate: &L,
    waiters: &Arc<Vec<L>>,
    mut parked: Parked<'_>,
) -> Result<Duration> {
    let held = gate.take().await?;
    let tasks: Vec<_> = (0..waiters.len())
        .map(|number| {
            let waiters = Arc::clone(waiters);
            tokio::spawn(async move {
                let held = waiters[number].take().await?;
                let had = Instant::now();
                waiters[number].give_back(held).await?;
                Result::Ok(had)
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
    gate.give_back(held).await?;
    let mut last = begun;
    for task in tasks {
        last = last.max(task.await??);
    }
    Ok(last - begun)
}

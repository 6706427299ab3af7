//! Pairs on uncontended locks, one at a time or concurrently.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::Result;
use crate::lock::Pair;
use crate::samples::Samples;

/// The result of concurrent tasks.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The pairs of all tasks.
    pub pairs: f64,
    /// The length of the measurement.
    pub time: Duration,
}

impl Load {
    /// Pairs per second.
    #[must_use]
    pub fn per_second(self) -> f64 {
        self.pairs / self.time.as_secs_f64()
    }
}

/// Runs `count` pairs, one at a time. Returns the time of each.
///
/// # Errors
/// The first error of the lock.
pub async fn one_by_one(lock: &impl Pair, count: usize) -> Result<Samples> {
    let mut samples = Samples::default();
    for _ in 0..count {
        let begun = Instant::now();
        lock.pair().await?;
        samples.add(begun.elapsed());
    }
    Ok(samples)
}

/// Runs pairs for `time`, with one task per lock.
///
/// # Errors
/// The first error of any lock.
pub async fn side_by_side<L: Pair>(locks: &Arc<Vec<L>>, time: Duration) -> Result<Load> {
    let (load, ()) = side_by_side_with(locks, tokio::time::sleep(time)).await?;
    Ok(load)
}

/// Runs pairs until `other` completes, with one task per lock. Also returns its output.
///
/// # Errors
/// The first error of any lock.
pub async fn side_by_side_with<L: Pair, F: Future>(
    locks: &Arc<Vec<L>>,
    other: F,
) -> Result<(Load, F::Output)> {
    let stop = Arc::new(AtomicBool::new(false));
    let begun = Instant::now();
    let tasks: Vec<_> = (0..locks.len())
        .map(|number| {
            let (locks, stop) = (Arc::clone(locks), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut pairs = 0_u32;
                while !stop.load(Ordering::Relaxed) {
                    locks[number].pair().await?;
                    pairs += 1;
                }
                Result::Ok(pairs)
            })
        })
        .collect();
    let output = other.await;
    stop.store(true, Ordering::Relaxed);
    let mut pairs = 0.0;
    for task in tasks {
        pairs += f64::from(task.await??);
    }
    let time = begun.elapsed();
    Ok((Load { pairs, time }, output))
}

/// Runs `times` pairs per lock, with one task per lock.
///
/// # Errors
/// The first error of any lock.
pub async fn side_by_side_times<L: Pair>(locks: &Arc<Vec<L>>, times: usize) -> Result<()> {
    let tasks: Vec<_> = (0..locks.len())
        .map(|number| {
            let locks = Arc::clone(locks);
            tokio::spawn(async move {
                for _ in 0..times {
                    locks[number].pair().await?;
                }
                Result::Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

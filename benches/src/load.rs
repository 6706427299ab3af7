//! Pairs on uncontended locks, one at a time or concurrently.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::Result;
use crate::lock::Pair;
use crate::samples::Samples;

/// Runs `count` pairs, one at a time. Returns the time of each.
pub(crate) async fn one_by_one(lock: &impl Pair, count: usize) -> Result<Samples> {
    let mut samples = Samples::default();
    for _ in 0..count {
        let begun = Instant::now();
        lock.pair().await?;
        samples.add(begun.elapsed());
    }
    Ok(samples)
}

/// Runs pairs for `time`, with one task per lock. Returns the pairs per second.
pub(crate) async fn side_by_side<L: Pair>(locks: &Arc<Vec<L>>, time: Duration) -> Result<f64> {
    let (rate, ()) = side_by_side_with(locks, tokio::time::sleep(time)).await?;
    Ok(rate)
}

/// Runs pairs until `other` completes, with one task per lock. Returns the pairs per second, and its
/// output.
pub(crate) async fn side_by_side_with<L: Pair, F: Future>(
    locks: &Arc<Vec<L>>,
    other: F,
) -> Result<(f64, F::Output)> {
    let stop = Arc::new(AtomicBool::new(false));
    let begun = Instant::now();
    let mut tasks = Vec::with_capacity(locks.len());
    for number in 0..locks.len() {
        let (locks, stop) = (Arc::clone(locks), Arc::clone(&stop));
        tasks.push(tokio::spawn(async move {
            let mut pairs = 0_u32;
            while !stop.load(Ordering::Relaxed) {
                locks[number].pair().await?;
                pairs += 1;
            }
            Result::Ok(pairs)
        }));
    }
    let output = other.await;
    stop.store(true, Ordering::Relaxed);
    let mut pairs = 0.0;
    for task in tasks {
        pairs += f64::from(task.await??);
    }
    Ok((pairs / begun.elapsed().as_secs_f64(), output))
}

/// Runs `times` pairs per lock, with one task per lock.
pub async fn side_by_side_times<L: Pair>(locks: &Arc<Vec<L>>, times: usize) -> Result<()> {
    let mut tasks = Vec::with_capacity(locks.len());
    for number in 0..locks.len() {
        let locks = Arc::clone(locks);
        tasks.push(tokio::spawn(async move {
            for _ in 0..times {
                locks[number].pair().await?;
            }
            Result::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}

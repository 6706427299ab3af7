//! Several clients that want one lock, again and again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Result;
use crate::lock::Lock;
use crate::samples::Samples;

/// Time for all to get into the queue before anything is measured.
const WARM_UP: Duration = Duration::from_millis(300);

/// How long each keeps the lock, and stays away from it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// From having it to giving it back.
    pub hold: Duration,
    /// From having given it back to asking again.
    pub away: Duration,
}

/// What was measured.
#[derive(Debug, Default)]
pub struct Contention {
    /// From the beginning of a release to the other client's having the lock, for those who
    /// waited when the release began.
    pub hand_over: Samples,
    /// From asking to having.
    pub wait: Samples,
    /// From having to the beginning of the release.
    pub hold: Samples,
    /// How often each client had the lock.
    pub by_client: Vec<usize>,
    /// For how long it was measured.
    pub time: Duration,
    /// How often the lock was had by anybody, the warm-up and the end included.
    pub all: usize,
}

impl Contention {
    /// How often the lock was had while it was measured.
    #[must_use]
    pub const fn acquisitions(&self) -> usize {
        self.wait.count()
    }

    /// The same, for each second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.acquisitions() as f64 / self.time.as_secs_f64()
    }

    fn merge(&mut self, own: Self) {
        self.hand_over.merge(own.hand_over);
        self.by_client.push(own.wait.count());
        self.wait.merge(own.wait);
        self.hold.merge(own.hold);
        self.all += own.all;
    }
}

/// What the contenders share.
#[derive(Debug, Default)]
struct Arena {
    /// Who began to release last, and when.
    released: Mutex<Option<(usize, Instant)>>,
    counts: AtomicBool,
    over: AtomicBool,
}

/// Lets contenders, one for each way to the same lock, contend for so long.
///
/// # Errors
/// The first of any of them.
pub async fn contend<L: Lock>(locks: Vec<L>, pace: Pace, time: Duration) -> Result<Contention> {
    let arena = Arc::new(Arena::default());
    let mut tasks = Vec::new();
    for (number, lock) in locks.into_iter().enumerate() {
        let arena = Arc::clone(&arena);
        tasks.push(tokio::spawn(async move {
            contender(number, &lock, &arena, pace).await
        }));
    }
    tokio::time::sleep(WARM_UP).await;
    let begun = Instant::now();
    arena.counts.store(true, Ordering::Relaxed);
    tokio::time::sleep(time).await;
    arena.counts.store(false, Ordering::Relaxed);
    let mut all = Contention {
        time: begun.elapsed(),
        ..Contention::default()
    };
    arena.over.store(true, Ordering::Relaxed);
    for task in tasks {
        all.merge(task.await??);
    }
    Ok(all)
}

async fn contender<L: Lock>(
    number: usize,
    lock: &L,
    arena: &Arena,
    pace: Pace,
) -> Result<Contention> {
    let mut seen = Contention::default();
    let last = || {
        arena
            .released
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    };
    while !arena.over.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let held = lock.take().await?;
        let had = Instant::now();
        let released = *last();
        if !pace.hold.is_zero() {
            tokio::time::sleep(pace.hold).await;
        }
        let releasing = Instant::now();
        *last() = Some((number, releasing));
        lock.give_back(held).await?;
        seen.all += 1;
        if arena.counts.load(Ordering::Relaxed) {
            seen.wait.add(had - asked);
            seen.hold.add(releasing - had);
            if let Some((by, at)) = released
                && by != number
                && at > asked
            {
                seen.hand_over.add(had.saturating_duration_since(at));
            }
        }
        if !pace.away.is_zero() {
            tokio::time::sleep(pace.away).await;
        }
    }
    Ok(seen)
}

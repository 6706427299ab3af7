//! Several clients that repeatedly contend for one lock.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::Result;
use crate::lock::Lock;
use crate::samples::Samples;

/// The measurement starts at the earliest after this time.
const WARM_UP: Duration = Duration::from_millis(100);
/// It starts when each client has had the lock this often. The first time, a client may still be
/// connecting and subscribing.
const TURNS_BEFORE: usize = 2;
/// The longest wait for that, after [`WARM_UP`]. If a lock isn't fair, a client may get no turn for
/// much longer.
const WARM_WITHIN: Duration = Duration::from_secs(3);
const CHECK_EVERY: Duration = Duration::from_millis(5);

/// How long each client holds the lock, and pauses before the next attempt.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// From the grant to the release.
    pub(crate) hold: Duration,
    /// From the release to the next attempt.
    pub(crate) pause: Duration,
}

/// The measured times and counts.
#[derive(Debug, Default)]
pub(crate) struct Contention {
    /// From the start of a release to the next client's grant, for clients that were waiting when
    /// the release started.
    pub(crate) hand_over: Samples,
    /// From the attempt to the grant.
    pub(crate) wait: Samples,
    /// The acquisitions of each client during the measurement.
    pub(crate) by_client: Vec<usize>,
    pub(crate) time: Duration,
    /// All acquisitions, including those before and after the measurement.
    pub(crate) all: usize,
}

impl Contention {
    pub(crate) const fn acquisitions(&self) -> usize {
        self.wait.count()
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.acquisitions() as f64 / self.time.as_secs_f64()
    }

    /// The acquisitions of the client with the fewest, and of the one with the most.
    pub(crate) fn fewest_and_most(&self) -> [f64; 2] {
        let counts = || self.by_client.iter().copied();
        [counts().min(), counts().max()].map(|it| it.unwrap_or_default() as f64)
    }

    fn merge(&mut self, own: Self) {
        self.hand_over.merge(own.hand_over);
        self.by_client.push(own.wait.count());
        self.wait.merge(own.wait);
        self.all += own.all;
    }
}

/// The state that the tasks share.
#[derive(Debug, Default)]
struct Shared {
    /// The client that last started a release, and when.
    released: Mutex<Option<(usize, Instant)>>,
    /// The clients that are ready for the measurement.
    ready: AtomicUsize,
    /// Set during the measurement.
    measuring: AtomicBool,
    stop: AtomicBool,
}

/// Contends for one lock, with one task per handle. Measures for `time`, from when each task has had
/// the lock twice, at the latest after 3.1 s.
pub(crate) async fn contend<L: Lock>(
    locks: Vec<L>,
    pace: Pace,
    time: Duration,
) -> Result<Contention> {
    let (shared, count) = (Arc::new(Shared::default()), locks.len());
    let mut tasks = Vec::new();
    for (number, lock) in locks.into_iter().enumerate() {
        let shared = Arc::clone(&shared);
        tasks.push(tokio::spawn(async move {
            let seen = run_client(number, &lock, &shared, pace).await;
            // All stop when one fails.
            shared.stop.store(true, Ordering::Relaxed);
            seen
        }));
    }
    warm_up(&shared, count).await;
    let begun = Instant::now();
    shared.measuring.store(true, Ordering::Relaxed);
    tokio::time::sleep(time).await;
    shared.measuring.store(false, Ordering::Relaxed);
    let mut all = Contention {
        time: begun.elapsed(),
        ..Contention::default()
    };
    shared.stop.store(true, Ordering::Relaxed);
    for task in tasks {
        all.merge(task.await??);
    }
    Ok(all)
}

/// Waits until all `count` clients are ready, for a limited time. Stops waiting if a client has
/// failed.
async fn warm_up(shared: &Shared, count: usize) {
    tokio::time::sleep(WARM_UP).await;
    let ready = || shared.ready.load(Ordering::Relaxed);
    let all_ready = async {
        while ready() < count && !shared.stop.load(Ordering::Relaxed) {
            tokio::time::sleep(CHECK_EVERY).await;
        }
    };
    let _ = tokio::time::timeout(WARM_WITHIN, all_ready).await;
}

async fn run_client<L: Lock>(
    number: usize,
    lock: &L,
    shared: &Shared,
    pace: Pace,
) -> Result<Contention> {
    let mut seen = Contention::default();
    let last_release = || shared.released.lock().expect("no client panics with it");
    while !shared.stop.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let held = lock.acquire().await?;
        let granted = Instant::now();
        let released = *last_release();
        if !pace.hold.is_zero() {
            tokio::time::sleep(pace.hold).await;
        }
        let releasing = Instant::now();
        *last_release() = Some((number, releasing));
        lock.release(held).await?;
        seen.all += 1;
        if seen.all == TURNS_BEFORE {
            shared.ready.fetch_add(1, Ordering::Relaxed);
        }
        if shared.measuring.load(Ordering::Relaxed) {
            seen.wait.add(granted - asked);
            if let Some((by, at)) = released
                && by != number
                && at > asked
            {
                seen.hand_over.add(granted.saturating_duration_since(at));
            }
        }
        if !pace.pause.is_zero() {
            tokio::time::sleep(pace.pause).await;
        }
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lock that nobody else wants, and that takes a while to get.
    struct Slow(Duration);

    impl Lock for Slow {
        type Held = ();

        async fn acquire(&self) -> Result<()> {
            tokio::time::sleep(self.0).await;
            Ok(())
        }

        async fn release(&self, (): ()) -> Result<()> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn slowest_client_has_had_its_turns_before_the_measurement() -> Result<()> {
        let slow = Slow(Duration::from_secs(1));
        let all = contend(vec![slow], Pace::default(), Duration::from_millis(500)).await?;
        assert_eq!((all.all, all.acquisitions()), (TURNS_BEFORE + 1, 0));
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn measurement_begins_without_a_client_that_gets_no_turn() -> Result<()> {
        let locks = [1, 90].map(|seconds| Slow(Duration::from_secs(seconds)));
        let all = contend(locks.into(), Pace::default(), Duration::from_secs(9)).await?;
        assert_eq!(all.by_client, [9, 0]);
        Ok(())
    }
}

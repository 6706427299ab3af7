//! Waiting on a machine that may be busy. No test may fail because it was.
//!
//! A test waits for a state itself, by [`eventually`] or [`block_until`], or looks again and again whether nothing
//! changes, by [`throughout`]. Time that a promise limits is measured by a [`Stopwatch`].

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time limit for any state that must come.
const LIMIT: Duration = Duration::from_secs(90);
/// The time between two looks at a state.
const INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `check` returns true.
pub async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !check().await {
        assert!(began.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        a_moment().await;
    }
}

/// Blocks this thread until `check` returns true.
pub fn block_until(what: &str, check: impl FnMut() -> bool) {
    assert!(within(LIMIT, check), "not within {LIMIT:?}: {what}");
}

/// Blocks this thread until `check` returns true, for at most this time. Returns whether it did.
pub fn within(limit: Duration, mut check: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !check() {
        if began.elapsed() > limit {
            return false;
        }
        pause();
    }
    true
}

/// Checks again and again during this time, and at its end, that `check` returns true.
pub async fn throughout(time: Duration, what: &str, mut check: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    loop {
        let is_over = began.elapsed() >= time;
        assert!(check().await, "{what}, until {:?}", began.elapsed());
        if is_over {
            return;
        }
        a_moment().await;
    }
}

#[expect(clippy::disallowed_methods, reason = "between two looks at a state")]
async fn a_moment() {
    tokio::time::sleep(INTERVAL).await;
}

#[expect(clippy::disallowed_methods, reason = "between two looks at a state")]
fn pause() {
    std::thread::sleep(INTERVAL);
}

/// Measures time without the time for which the machine stalled: how late a thread that only sleeps woke up, all
/// delays together. Each step of what is measured may have been as late.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    began: Instant,
    stalled_before: Duration,
}

impl Stopwatch {
    /// Starts at zero.
    pub fn start() -> Self {
        let stalled_before = Stalls::so_far();
        Self {
            began: Instant::now(),
            stalled_before,
        }
    }

    /// The time since the start, without stalls.
    pub fn elapsed(&self) -> Duration {
        // In this order: a stall between the two would count as time.
        let elapsed = self.began.elapsed();
        elapsed.saturating_sub(self.stalled())
    }

    /// The time for which the machine stalled since the start.
    pub fn stalled(&self) -> Duration {
        Stalls::so_far().saturating_sub(self.stalled_before)
    }
}

/// The stalls that a thread of this process has seen.
struct Stalls {
    total: Duration,
    asleep_since: Instant,
}

static STALLS: LazyLock<Mutex<Stalls>> = LazyLock::new(|| {
    std::thread::spawn(|| {
        loop {
            pause();
            let mut stalls = Stalls::lock();
            stalls.total = stalls.with_the_current();
            stalls.asleep_since = Instant::now();
        }
    });
    Mutex::new(Stalls {
        total: Duration::ZERO,
        asleep_since: Instant::now(),
    })
});

impl Stalls {
    fn lock() -> MutexGuard<'static, Self> {
        STALLS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn so_far() -> Duration {
        Self::lock().with_the_current()
    }

    /// The thread may oversleep now.
    fn with_the_current(&self) -> Duration {
        self.total + self.asleep_since.elapsed().saturating_sub(INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "it stays, until")]
    fn change_is_noticed() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        let mut looks = 0;
        let changes = async || {
            looks += 1;
            looks < 3
        };
        let watched = throughout(LIMIT, "it stays", changes);
        runtime.expect("a runtime").block_on(watched);
    }

    /// A thread that holds the lock keeps the other from noticing that it has slept enough, as a busy machine does.
    #[test]
    fn stalls_are_no_time() {
        let watch = Stopwatch::start();
        let began = Instant::now();
        {
            let _stalls = Stalls::lock();
            while began.elapsed() < INTERVAL * 100 {
                pause();
            }
        }
        assert!(watch.stalled() >= INTERVAL * 80, "{watch:?}");
        assert!(watch.elapsed() < INTERVAL * 50, "{:?}", watch.elapsed());
    }
}

//! Runs on all cores, with the result of runs one after the other.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "how long an exploration takes is real time; no run depends on it"
)]

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::network::tally::Counts;

/// How often the progress is printed.
const PROGRESS: Duration = Duration::from_secs(10);

/// The runs of an exploration so far.
#[derive(Debug, Default)]
pub(super) struct Runs {
    pub(super) count: u64,
    pub(super) counts: Counts,
    /// The first run that failed, counted from 0, and why.
    pub(super) failed: Option<(u64, String)>,
}

impl Runs {
    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.counts.add(&other.counts);
        let failed = [self.failed.take(), other.failed];
        self.failed = failed.into_iter().flatten().min();
    }
}

/// Makes `count` runs, until one fails or the time is over. At least one run is made.
///
/// All runs before the first that fails are made, so the result is that of one core, apart from the time.
pub(super) fn run_all(
    count: u64,
    time: Option<Duration>,
    run: impl Fn(u64) -> (Counts, Option<String>) + Sync,
) -> Runs {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let work = Work {
        count,
        next: AtomicU64::new(0),
        made: AtomicU64::new(0),
        failed: AtomicU64::new(u64::MAX),
        began: Instant::now(),
        time: time.unwrap_or(Duration::MAX),
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..cores.min(count))
            .map(|_| scope.spawn(|| work.make(&run, |_| {})))
            .collect();
        let mut printed = Instant::now();
        let mut all = work.make(&run, |made| {
            if printed.elapsed() >= PROGRESS {
                printed = Instant::now();
                let took = work.began.elapsed().as_secs();
                eprintln!("leasehold: {made} of {count} runs in {took} s");
            }
        });
        for other in others {
            all.add(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        all
    })
}

/// What the threads share.
struct Work {
    count: u64,
    /// The next run. They are taken in order.
    next: AtomicU64,
    made: AtomicU64,
    /// The first run that has failed so far.
    failed: AtomicU64,
    began: Instant,
    time: Duration,
}

impl Work {
    /// Makes runs until none is left.
    fn make(
        &self,
        run: impl Fn(u64) -> (Counts, Option<String>),
        mut progress: impl FnMut(u64),
    ) -> Runs {
        let mut runs = Runs::default();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let is_over = number > 0 && self.began.elapsed() >= self.time;
            if number >= self.count || number > self.failed.load(Ordering::Relaxed) || is_over {
                return runs;
            }
            let (counts, failed) = run(number);
            if failed.is_some() {
                self.failed.fetch_min(number, Ordering::Relaxed);
            }
            let failed = failed.map(|reason| (number, reason));
            runs.add(Runs {
                count: 1,
                counts,
                failed,
            });
            progress(self.made.fetch_add(1, Ordering::Relaxed) + 1);
        }
    }
}

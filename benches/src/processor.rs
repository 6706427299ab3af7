//! The processor time of this program, from `/proc`. Linux only.

use std::fs;
use std::time::Duration;

use crate::Result;

/// The name of the renewal thread, truncated as the kernel does.
const RENEWAL_THREAD: &str = "leasehold-renew";

/// The processor time of all threads that are still running.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Processor {
    pub(crate) all: Duration,
    pub(crate) renewal_threads: Duration,
}

impl Processor {
    pub(crate) fn now() -> Result<Self> {
        let mut used = Self::default();
        for task in fs::read_dir("/proc/self/task")? {
            let task = task?.path();
            let (Ok(name), Ok(stat)) = (
                fs::read_to_string(task.join("comm")),
                fs::read_to_string(task.join("schedstat")),
            ) else {
                // The thread has ended in the meantime.
                continue;
            };
            let running = stat.split_whitespace().next().unwrap_or_default();
            let running = Duration::from_nanos(running.parse()?);
            used.all += running;
            if name.trim_end() == RENEWAL_THREAD {
                used.renewal_threads += running;
            }
        }
        Ok(used)
    }

    /// The processor time since `earlier`. Threads that have ended in the meantime are not counted.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            all: self.all.saturating_sub(earlier.all),
            renewal_threads: self.renewal_threads.saturating_sub(earlier.renewal_threads),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn busy_time_is_counted() {
        let (begun, before) = (Instant::now(), Processor::now().expect("Linux"));
        let mut used = Duration::ZERO;
        while used < Duration::from_millis(20) {
            assert!(begun.elapsed() < Duration::from_secs(60), "saw {used:?}");
            used = Processor::now().expect("Linux").since(before).all;
        }
    }
}

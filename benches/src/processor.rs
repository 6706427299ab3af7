//! The processor time of this program, from `/proc`. Linux only.

use std::fs;
use std::time::Duration;

use crate::Result;

/// The processor time of all threads that are still running.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Processor(Duration);

impl Processor {
    pub(crate) fn now() -> Result<Self> {
        let mut used = Duration::ZERO;
        for task in fs::read_dir("/proc/self/task")? {
            let Ok(stat) = fs::read_to_string(task?.path().join("schedstat")) else {
                // The thread has ended in the meantime.
                continue;
            };
            let running = stat.split_whitespace().next().unwrap_or_default();
            used += Duration::from_nanos(running.parse()?);
        }
        Ok(Self(used))
    }

    /// The processor time since `earlier`. Threads that have ended in the meantime are not counted.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
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
            used = Processor::now().expect("Linux").since(before);
        }
    }
}

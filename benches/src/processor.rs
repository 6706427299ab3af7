//! Processor time that this program has used, from `/proc`; Linux only.

use std::fs;
use std::time::Duration;

use crate::Result;

/// The name of the thread that renews, cut to what the system keeps of it.
const GUARDIAN: &str = "leasehold-guard";

/// Processor time of threads that have not ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Processor {
    /// Of all threads.
    pub all: Duration,
    /// Of those that renew locks.
    pub guardians: Duration,
}

impl Processor {
    /// What was used so far.
    ///
    /// # Errors
    /// If `/proc` does not say.
    pub fn now() -> Result<Self> {
        let mut used = Self::default();
        for task in fs::read_dir("/proc/self/task")? {
            let task = task?.path();
            let (Ok(name), Ok(stat)) = (
                fs::read_to_string(task.join("comm")),
                fs::read_to_string(task.join("schedstat")),
            ) else {
                // It has ended meanwhile.
                continue;
            };
            let running = stat.split_whitespace().next().unwrap_or_default();
            let running = Duration::from_nanos(running.parse()?);
            used.all += running;
            if name.trim_end() == GUARDIAN {
                used.guardians += running;
            }
        }
        Ok(used)
    }

    /// What was used since. A thread that has ended meanwhile counts for nothing.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            all: self.all.saturating_sub(earlier.all),
            guardians: self.guardians.saturating_sub(earlier.guardians),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn work_is_seen() {
        let (begun, before) = (Instant::now(), Processor::now().expect("Linux"));
        let mut used = Duration::ZERO;
        while used < Duration::from_millis(20) {
            assert!(begun.elapsed() < Duration::from_secs(60), "saw {used:?}");
            used = Processor::now().expect("Linux").since(before).all;
        }
    }
}

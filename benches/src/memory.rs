//! The memory of this program, from `/proc`. Linux only.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::Result;

/// How often the memory is read.
const PAUSE: Duration = Duration::from_millis(20);

/// The anonymous memory that is resident now, in bytes.
pub(crate) fn now() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.and_then(|rest| rest.trim().strip_suffix(" kB"));
    let kilobytes: u64 = kilobytes.ok_or("no RssAnon in /proc")?.parse()?;
    Ok(kilobytes * 1_024)
}

/// As [`now`], when this was first asked. What an earlier round has freed stays resident, and a later round takes it without
/// more of it.
pub(crate) fn at_first() -> Result<u64> {
    static FIRST: OnceLock<u64> = OnceLock::new();
    let now = now()?;
    Ok(*FIRST.get_or_init(|| now))
}

/// A thread that watches the memory.
#[derive(Debug)]
pub(crate) struct Peak {
    over: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Peak {
    pub(crate) fn watch() -> Self {
        let over = Arc::<AtomicBool>::default();
        let ends = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let mut peak = 0;
            while !ends.load(Ordering::Relaxed) {
                peak = peak.max(now().unwrap_or(u64::MAX));
                std::thread::sleep(PAUSE);
            }
            peak
        });
        Self { over, thread }
    }

    /// Returns the most memory so far.
    pub(crate) fn end(self) -> Result<u64> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the thread panicked".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_of_the_memory_is_seen() {
        let before = now().expect("Linux");
        let peak = Peak::watch();
        let used = vec![1_u8; 64 << 20];
        std::thread::sleep(PAUSE * 20);
        assert_eq!(used.iter().map(|it| u64::from(*it)).sum::<u64>(), 64 << 20);
        drop(used);
        let grown = peak.end().expect("Linux").saturating_sub(before);
        assert!(grown >= 60 << 20, "{grown}");
    }
}

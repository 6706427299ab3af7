//! The clock of deadlines. All processes of the machine share it.

use std::time::Duration;

#[cfg(target_os = "linux")]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

/// The time now. On Linux it counts suspend, as the deadlines of leasehold do.
pub(crate) fn now() -> Duration {
    let time = rustix::time::clock_gettime(CLOCK);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}

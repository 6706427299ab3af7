//! The virtual clock. Its driver moves it, or it is the clock of a tokio runtime with a paused
//! clock.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this is where virtual time comes from"
)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::event_queue::nanos;

pub(super) const NOT_PAUSED: &str = "\
leasehold-sim runs in virtual time, but the clock of this tokio runtime is not paused.
Write the test as #[tokio::test(start_paused = true)] (feature \"test-util\" of tokio), or build \
the runtime with Builder::new_current_thread().enable_time().start_paused(true).";

const NO_RUNTIME: &str = "\
leasehold-sim needs a tokio runtime here, and its clock must be paused.
Write the test as #[tokio::test(start_paused = true)] (feature \"test-util\" of tokio). The scenario of an \
Exploration or a Simulation needs no runtime: use the SimServer that it gets as its argument.";

#[derive(Debug)]
pub(crate) struct Clock {
    /// The nanoseconds since the start, when the driver last updated them.
    nanos: AtomicU64,
    /// Whether the driver is running, which means that time doesn't advance.
    pub(super) working: AtomicBool,
    pub(super) tokio: Option<TokioClock>,
}

#[derive(Debug)]
pub(super) struct TokioClock {
    pub(super) runtime: tokio::runtime::Handle,
    pub(super) origin: tokio::time::Instant,
}

impl Clock {
    /// Creates a clock that its driver moves.
    pub(crate) const fn own() -> Self {
        Self {
            nanos: AtomicU64::new(0),
            working: AtomicBool::new(true),
            tokio: None,
        }
    }

    /// Creates a clock that follows the tokio runtime of the caller.
    ///
    /// # Panics
    /// Panics outside a tokio runtime, and in one whose clock is not paused.
    #[track_caller]
    pub(crate) fn tokio() -> Self {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            panic!("{NO_RUNTIME}");
        };
        assert!(is_paused(), "{NOT_PAUSED}");
        let origin = now();
        Self {
            nanos: AtomicU64::new(0),
            working: AtomicBool::new(false),
            tokio: Some(TokioClock { runtime, origin }),
        }
    }

    /// Returns the virtual time since the start.
    #[inline]
    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.nanos())
    }

    /// Returns the virtual time since the start, in nanoseconds.
    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        match &self.tokio {
            Some(clock) if !self.working.load(Ordering::Relaxed) => nanos(clock.elapsed()),
            _ => self.nanos.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn set(&self, nanos: u64) {
        self.nanos.store(nanos, Ordering::Relaxed);
    }

    /// Returns whether the driver may be asleep, and must be woken when the next event becomes
    /// earlier.
    pub(crate) fn driver_may_sleep(&self) -> bool {
        !self.working.load(Ordering::Relaxed)
    }

    /// Checks that the tokio clock is still paused. Otherwise the simulation would sleep for real.
    ///
    /// # Panics
    /// Panics if it is not.
    #[inline]
    #[track_caller]
    pub(crate) fn assert_paused(&self) {
        if let Some(clock) = self.tokio.as_ref().filter(|_| self.driver_may_sleep()) {
            let _entered = clock.runtime.enter();
            assert!(is_paused(), "{NOT_PAUSED}");
        }
    }
}

impl TokioClock {
    fn elapsed(&self) -> Duration {
        // The caller may be outside the runtime, such as a guard that is dropped after `block_on`.
        let _entered = self.runtime.enter();
        now().saturating_duration_since(self.origin)
    }
}

fn now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// Returns whether tokio's clock is paused: it must not move while the real clock moves.
///
/// tokio has no function for this. A running tokio clock is the real clock plus a constant, so it
/// moves with the real clock. A paused clock moves only in the runtime's own thread, which is busy
/// here.
pub(super) fn is_paused() -> bool {
    let before = now();
    let real = std::time::Instant::now();
    while std::time::Instant::now() == real {
        std::hint::spin_loop();
    }
    now() == before
}

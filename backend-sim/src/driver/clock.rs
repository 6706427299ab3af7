//! The virtual clock: moved by its driver, or that of a tokio runtime whose clock is paused.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this is where virtual time comes from"
)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub(super) const NOT_PAUSED: &str = "\
leasehold-sim runs in virtual time, but the clock of this tokio runtime is not paused.
Write the test as #[tokio::test(start_paused = true)] (feature \"test-util\" of tokio), or build \
the runtime with Builder::new_current_thread().enable_time().start_paused(true).";

const NO_RUNTIME: &str = "\
leasehold-sim needs a tokio runtime here, and its clock must be paused.
Write the test as #[tokio::test(start_paused = true)] (feature \"test-util\" of tokio). The scenario of an \
Exploration or a Simulation needs no runtime: it uses the SimServer that it is given.";

/// The virtual clock.
#[derive(Debug)]
pub(crate) struct Clock {
    /// Nanoseconds since the start, as of when the driver last looked.
    nanos: AtomicU64,
    /// Whether the driver is at work: time stands still then.
    pub(super) working: AtomicBool,
    pub(super) tokio: Option<TokioClock>,
}

#[derive(Debug)]
pub(super) struct TokioClock {
    pub(super) runtime: tokio::runtime::Handle,
    pub(super) origin: tokio::time::Instant,
}

impl Clock {
    /// A clock that its driver moves.
    pub(crate) const fn own() -> Self {
        Self {
            nanos: AtomicU64::new(0),
            working: AtomicBool::new(true),
            tokio: None,
        }
    }

    /// The clock of the tokio runtime of the caller.
    ///
    /// # Panics
    /// Outside a tokio runtime, or in one whose clock is not paused.
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

    /// Virtual time since the start.
    #[inline]
    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.nanos())
    }

    /// The same in nanoseconds.
    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        match &self.tokio {
            Some(clock) if !self.working.load(Ordering::Relaxed) => nanos(clock.elapsed()),
            _ => self.nanos.load(Ordering::Relaxed),
        }
    }

    /// Moves the clock to a later time.
    pub(crate) fn set(&self, nanos: u64) {
        self.nanos.store(nanos, Ordering::Relaxed);
    }

    /// Whether somebody must be told that something is to happen earlier than before: the driver
    /// sleeps.
    pub(crate) fn driver_may_sleep(&self) -> bool {
        !self.working.load(Ordering::Relaxed)
    }

    /// Checks that nobody has let the clock run: the simulation would sleep for real.
    ///
    /// # Panics
    /// If somebody has.
    #[inline]
    #[track_caller]
    pub(crate) fn assert_paused(&self) {
        if let Some(clock) = self.tokio.as_ref().filter(|_| self.driver_may_sleep()) {
            let _inside = clock.runtime.enter();
            assert!(is_paused(), "{NOT_PAUSED}");
        }
    }
}

/// 584 years at most.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl TokioClock {
    fn elapsed(&self) -> Duration {
        // Callers may be outside of the runtime: a guard that is dropped after `block_on`.
        let _inside = self.runtime.enter();
        now().saturating_duration_since(self.origin)
    }
}

fn now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// Whether tokio's clock stands still: it shows the same before and after a moment in which the
/// real clock has visibly moved.
///
/// tokio has no question for it. A running tokio clock is the real clock plus a constant, so it
/// moves whenever that one does; a paused one is moved only by the runtime's own thread, which is
/// busy here.
pub(super) fn is_paused() -> bool {
    let before = now();
    let real = std::time::Instant::now();
    while std::time::Instant::now() == real {
        std::hint::spin_loop();
    }
    now() == before
}

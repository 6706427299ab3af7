//! The driver that runs a simulation inside the user's own test: tokio's paused clock.
//!
//! The only place of this crate that touches tokio. The clock of such a runtime stands still while
//! any task can run, and jumps to the next timer when none can.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this driver is where virtual time and tasks come from"
)]

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use leasehold_api::BoxFuture;

const NOT_PAUSED: &str = "\
leasehold-sim runs in virtual time, but the clock of this tokio runtime is not paused.
Write the test as #[tokio::test(start_paused = true)] (feature \"test-util\" of tokio), or build \
the runtime with Builder::new_current_thread().enable_time().start_paused(true).";

/// The virtual clock, and where tasks of the simulation run.
#[derive(Debug)]
pub(crate) struct Clock {
    runtime: tokio::runtime::Handle,
    origin: tokio::time::Instant,
}

impl Clock {
    /// A clock that starts now.
    ///
    /// # Panics
    /// Outside a tokio runtime, or in one whose clock is not paused.
    #[track_caller]
    pub(crate) fn start() -> Self {
        let runtime = tokio::runtime::Handle::try_current()
            .unwrap_or_else(|_| panic!("leasehold-sim needs a tokio runtime.\n{NOT_PAUSED}"));
        assert!(is_paused(), "{NOT_PAUSED}");
        let origin = now();
        Self { runtime, origin }
    }

    /// Virtual time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        // Callers may be outside of the runtime: a guard that is dropped after `block_on`.
        let _inside = self.runtime.enter();
        now().saturating_duration_since(self.origin)
    }

    pub(crate) fn spawn(&self, future: BoxFuture<'static, ()>) {
        self.runtime.spawn(future);
    }

    /// Checks that nobody has let the clock run: the simulation would sleep for real.
    ///
    /// # Panics
    /// If somebody has.
    #[track_caller]
    pub(crate) fn assert_paused(&self) {
        let _inside = self.runtime.enter();
        assert!(is_paused(), "{NOT_PAUSED}");
    }

    /// An alarm that rings at a time since the start.
    pub(crate) fn alarm(&self, at: Duration) -> Alarm {
        let _inside = self.runtime.enter();
        Alarm(Box::pin(tokio::time::sleep_until(self.origin + at)))
    }
}

/// Completes at a virtual time, rounded up to the whole milliseconds of tokio's timers.
#[derive(Debug)]
pub(crate) struct Alarm(Pin<Box<tokio::time::Sleep>>);

impl Alarm {
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
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
fn is_paused() -> bool {
    let before = now();
    let real = std::time::Instant::now();
    while std::time::Instant::now() == real {
        std::hint::spin_loop();
    }
    now() == before
}

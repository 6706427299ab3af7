//! The options of a simulation.

use std::time::Duration;

use crate::engine::choices::Choices;
use crate::engine::tape::Site;

/// The latency of a message, in one direction between a client and the server.
///
/// Timers have a resolution of 1 ms, so arrival times are rounded up to whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    min: Duration,
    /// Whole milliseconds that may be added.
    spread_ms: u32,
}

impl Latency {
    /// Messages take no time. The seed still decides the order of messages at the same instant.
    pub const ZERO: Self = Self::fixed(Duration::ZERO);

    /// Returns a latency that is the same for every message.
    pub const fn fixed(latency: Duration) -> Self {
        Self {
            min: latency,
            spread_ms: 0,
        }
    }

    /// Returns a latency from `min` to `max`. Each message takes `min` plus a random number of
    /// whole milliseconds.
    ///
    /// On this coarse grid, events of different clients often happen at the same instant, so that
    /// their order varies.
    ///
    /// # Panics
    /// Panics if `max` is less than `min`, or if they differ by more than 49 days.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use leasehold_sim::{Latency, SimOptions};
    ///
    /// let latency = Latency::between(Duration::from_millis(1), Duration::from_millis(4));
    /// let options = SimOptions::new(7).latency(latency);
    /// # let _ = options;
    /// ```
    #[track_caller]
    pub fn between(min: Duration, max: Duration) -> Self {
        assert!(
            min <= max,
            "the minimum latency, {min:?}, is greater than the maximum, {max:?}"
        );
        match u32::try_from((max - min).as_millis()) {
            Ok(spread_ms) => Self { min, spread_ms },
            Err(_) => panic!("latencies between {min:?} and {max:?} differ by more than 49 days"),
        }
    }

    pub(crate) fn draw(self, choices: &mut Choices) -> Duration {
        let extra = choices.draw(Site::Latency, self.spread_ms.saturating_add(1));
        self.min + Duration::from_millis(extra.into())
    }
}

/// The options of a [`SimServer`](crate::SimServer) or a [`Simulation`](crate::Simulation).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SimOptions {
    pub(crate) seed: u64,
    pub(crate) latency: Latency,
    pub(crate) log_limit: usize,
    pub(crate) recording: bool,
    pub(crate) journal: usize,
    pub(crate) atomic_calls: bool,
}

impl SimOptions {
    /// Creates the default options with this seed: a latency of 1 ms in each direction, a log of the last 100,000
    /// entries, recorded choices, and no journal.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            latency: Latency::fixed(Duration::from_millis(1)),
            log_limit: 100_000,
            recording: true,
            journal: 0,
            atomic_calls: false,
        }
    }

    /// Sets the latency of all clients. [`SimBackend::set_latency`](crate::SimBackend::set_latency)
    /// changes it for one.
    #[must_use]
    pub const fn latency(mut self, latency: Latency) -> Self {
        self.latency = latency;
        self
    }

    /// Sets the maximum number of log entries, and of messages. The oldest are dropped first. With
    /// 0, nothing is logged, which makes runs faster.
    #[must_use]
    pub const fn log_limit(mut self, entries: usize) -> Self {
        self.log_limit = entries;
        self
    }

    /// Returns whether anything is logged.
    pub const fn is_logged(&self) -> bool {
        self.log_limit > 0
    }

    /// Sets whether the choices of the run are recorded as a [`Tape`](crate::tools::Tape). By default,
    /// they are; each takes 12 bytes.
    #[must_use]
    pub const fn recording(mut self, recording: bool) -> Self {
        self.recording = recording;
        self
    }

    /// Sets the size of the journal: how many of the latest commands a restart or a failover can
    /// lose ([`Data::AllBut`](crate::Data::AllBut),
    /// [`SimServer::fail_over`](crate::SimServer::fail_over)). The default is 0, because the
    /// journal copies the key's state for each command.
    #[must_use]
    pub const fn journal(mut self, commands: usize) -> Self {
        self.journal = commands;
        self
    }

    /// Sets whether each call is one event that takes no time. By default, it isn't.
    ///
    /// The request arrives and is executed, and the reply and all pushes arrive, in one event.
    /// Latencies have no effect. An injected fault makes a call take time again. Use this option
    /// for [exhaustive searches](crate::Simulation::run_all).
    #[must_use]
    pub const fn atomic_calls(mut self, atomic: bool) -> Self {
        self.atomic_calls = atomic;
        self
    }
}

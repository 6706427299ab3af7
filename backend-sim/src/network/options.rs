//! How a simulation is set up.

use std::time::Duration;

use leasehold_api::machine::Settings;

use crate::engine::choices::Choices;
use crate::engine::tape::Site;

/// How long a message takes from a client to the server, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    min: Duration,
    /// Whole milliseconds that may be added.
    spread_ms: u32,
}

impl Latency {
    /// Messages take no time; several at the same instant are still ordered by the seed.
    pub const ZERO: Self = Self::fixed(Duration::ZERO);

    /// Every message takes this long.
    pub const fn fixed(latency: Duration) -> Self {
        Self {
            min: latency,
            spread_ms: 0,
        }
    }

    /// Each message takes `min` plus a whole number of milliseconds drawn from the seed, at most
    /// up to `max`. The coarse grid lets events of different clients meet at the same instant,
    /// where the interesting orders are.
    ///
    /// # Panics
    /// If `max` is less than `min`, or more than 49 days more.
    #[track_caller]
    pub fn between(min: Duration, max: Duration) -> Self {
        assert!(
            min <= max,
            "the shortest latency, {min:?}, is longer than the longest, {max:?}"
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

/// Settings of a [`SimServer`](crate::SimServer).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SimOptions {
    pub(crate) seed: u64,
    pub(crate) latency: Latency,
    pub(crate) settings: Settings,
    pub(crate) log_limit: usize,
    pub(crate) recording: bool,
    pub(crate) journal: usize,
    pub(crate) atomic_calls: bool,
}

impl SimOptions {
    /// Defaults: 1 ms in each direction, the product's own spans, the last 100,000 entries of the
    /// log kept, choices recorded.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            latency: Latency::fixed(Duration::from_millis(1)),
            settings: Settings::default(),
            log_limit: 100_000,
            recording: true,
            journal: 0,
            atomic_calls: false,
        }
    }

    /// The same with another latency for all clients.
    #[must_use]
    pub const fn with_latency(mut self, latency: Latency) -> Self {
        self.latency = latency;
        self
    }

    /// The same with other spans of the state machine.
    #[must_use]
    pub const fn with_settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// The same with another number of log entries kept; the oldest are dropped first. With 0 the
    /// log costs nothing.
    #[must_use]
    pub const fn with_log_limit(mut self, entries: usize) -> Self {
        self.log_limit = entries;
        self
    }

    /// How many log entries are kept at most; 0 if no log is kept.
    pub const fn log_limit(&self) -> usize {
        self.log_limit
    }

    /// The same with the choices of the run kept, or not, as a [`Tape`](crate::Tape); they are by
    /// default, 12 bytes for each.
    #[must_use]
    pub const fn with_recording(mut self, recording: bool) -> Self {
        self.recording = recording;
        self
    }

    /// The same with so many of the latest commands remembered, so that a restart or a fail-over
    /// can lose them ([`Data::AllBut`](crate::Data::AllBut)); none by default, because it costs a
    /// copy of the key's state for each command.
    #[must_use]
    pub const fn with_journal(mut self, commands: usize) -> Self {
        self.journal = commands;
        self
    }

    /// The same with calls that take no time and are one event each: the request arrives, is
    /// executed, and the reply and all pushes are there, unless a fault is injected. For
    /// [exhaustive](crate::Simulation::run_all) searches; latencies do not matter then.
    #[must_use]
    pub const fn with_atomic_calls(mut self, atomic: bool) -> Self {
        self.atomic_calls = atomic;
        self
    }
}

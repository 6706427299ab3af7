//! The backend's time, and the stamps that its replies carry.

use std::time::Duration;

/// A point on the backend's clock, in microseconds since that clock's epoch.
///
/// Times of different [`ClockId`]s must not be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerTime(u64);

impl ServerTime {
    /// A point from its microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the clock's epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// This point moved later, stopping at the end of the range.
    #[must_use]
    pub fn saturating_add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(micros(by)))
    }

    /// Time from `earlier` until this point; zero if `earlier` is later.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// Whole microseconds of a duration, saturating.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Names whose clock a stamp was read from; opaque.
///
/// In Redis it stands for the `run_id` of the server behind a connection. Where a client library
/// reconnects unseen, the backend starts a new id when stamps and local time disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClockId(u64);

impl ClockId {
    /// An id from any number that the backend keeps unique for each clock.
    pub const fn new(id: u64) -> Self {
        Self(id)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// When, on whose clock, a step was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// Whose clock.
    pub clock: ClockId,
    /// The backend's time in that execution.
    pub at: ServerTime,
}

/// A reply together with the stamp of the execution that computed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamped<T> {
    /// When the reply was true.
    pub stamp: Stamp,
    /// The reply.
    pub reply: T,
}

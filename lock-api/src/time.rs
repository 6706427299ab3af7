//! The backend's time, and the stamps of its replies.

use std::fmt;
use std::time::Duration;

/// A point in time on the backend's clock, in microseconds since the clock's origin.
///
/// Do not compare times of different [`ClockId`]s.
///
/// ```
/// use std::time::Duration;
///
/// use leasehold_api::ServerTime;
///
/// let now = ServerTime::from_micros(1_000_000);
/// let expiry = now.saturating_add(Duration::from_secs(30));
/// assert_eq!(expiry.saturating_since(now), Duration::from_secs(30));
/// assert_eq!(now.saturating_since(expiry), Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerTime(u64);

impl ServerTime {
    /// Creates a time from microseconds since the clock's origin.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the clock's origin.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// This time plus `by`, or the latest time if that overflows.
    #[must_use]
    pub fn saturating_add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(micros(by)))
    }

    /// The duration from `earlier` to this time, or zero if `earlier` is later.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// The whole microseconds of a duration, or `u64::MAX` if they overflow.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A fire time of a job: when it is due, in milliseconds since 1970, UTC.
///
/// All machines must name an occurrence by the same fire time. Take the time for which the timer was set,
/// not the time at which it fired.
///
/// # Examples
/// ```
/// use std::time::{Duration, SystemTime};
///
/// use leasehold_api::FireTime;
///
/// let fire = FireTime::from_millis(1_750_000_000_000);
/// let same = FireTime::from(SystemTime::UNIX_EPOCH + Duration::from_secs(1_750_000_000));
/// assert_eq!(fire, same);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FireTime(u64);

impl FireTime {
    /// The fire time that is this many milliseconds after 1970 began, UTC.
    ///
    /// # Examples
    /// ```
    /// # use leasehold_api::FireTime;
    /// assert_eq!(FireTime::from_millis(5).as_millis(), 5);
    /// ```
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since 1970 began, UTC.
    ///
    /// # Examples
    /// ```
    /// # use leasehold_api::FireTime;
    /// assert_eq!(FireTime::from_millis(5).as_millis(), 5);
    /// ```
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    pub(crate) const fn server_time(self) -> ServerTime {
        ServerTime::from_micros(self.0.saturating_mul(1_000))
    }

    pub(crate) const fn of(at: ServerTime) -> Self {
        Self(at.as_micros() / 1_000)
    }

    pub(crate) fn after(self, time: Duration) -> ServerTime {
        self.server_time().saturating_add(time)
    }
}

/// A time before 1970 becomes 1970.
#[expect(
    clippy::disallowed_types,
    reason = "converts a time that the caller has; reads no clock"
)]
impl From<std::time::SystemTime> for FireTime {
    fn from(time: std::time::SystemTime) -> Self {
        let since = time.duration_since(std::time::SystemTime::UNIX_EPOCH);
        let millis = since.unwrap_or_default().as_millis();
        Self(u64::try_from(millis).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for FireTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.as_millis())
    }
}

/// An opaque id of the clock that a stamp was read from.
///
/// It changes when the backend reaches another server. For Redis it stands for the server's `run_id`. If the
/// client library reconnects without notice, the backend starts a new id when stamps and local time disagree,
/// with [`after_steps`](Self::after_steps). For a database it stands for the running server, such as the time
/// at which the server started: not for a connection, and not for a table. A store that has the clock of its
/// machine has a constant id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClockId(u64);

impl ClockId {
    /// Creates an id from a number that the backend uses for one clock only.
    pub const fn new(id: u64) -> Self {
        Self(id)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The id of a clock of the same server after this many steps. It may be another clock: a step is a
    /// disagreement between stamps and local time.
    #[must_use]
    pub const fn after_steps(self, steps: u64) -> Self {
        Self(self.0.wrapping_add(steps << SERVER_BITS))
    }

    /// The part of the number that names the server: the lower 48 bits. Steps don't change it, because each
    /// backend counts its own.
    pub const fn server(self) -> u64 {
        self.0 & ((1 << SERVER_BITS) - 1)
    }
}

/// How many bits of a [`ClockId`] name the server.
const SERVER_BITS: u32 = 48;

/// The time of a step on the backend's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// The clock.
    pub clock: ClockId,
    /// The backend's time, read in the step.
    pub at: ServerTime,
}

/// A reply and the stamp of the step that computed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamped<T> {
    /// The time at which the reply is true.
    pub stamp: Stamp,
    /// The reply.
    pub reply: T,
}

/// Displays a duration in a message, with two significant digits below ten units: `2.3 ms`, `12 ms`, `5 s`.
#[derive(Clone, Copy, Debug)]
pub struct Rounded(pub Duration);

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        let (unit, name) = match micros {
            0..1_000 => (1, "µs"),
            1_000..1_000_000 => (1_000, "ms"),
            _ => (1_000_000, "s"),
        };
        let tenths = (micros * 10 + unit / 2) / unit;
        if tenths < 100 && !tenths.is_multiple_of(10) {
            write!(f, "{}.{} {name}", tenths / 10, tenths % 10)
        } else {
            write!(f, "{} {name}", (micros + unit / 2) / unit)
        }
    }
}

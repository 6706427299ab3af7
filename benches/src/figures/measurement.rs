//! What a measurement gets, and what it returns.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use leasehold_test_servers::RedisServer;

use crate::Result;
use crate::library::Library;

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Just enough to show that everything works.
    Quick,
    /// Enough for meaningful figures.
    Full,
}

impl Effort {
    /// Selects one of two values.
    pub fn of<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

/// How a client reaches the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Loopback TCP.
    Tcp,
    /// A Unix socket.
    Unix,
}

/// The server and the client library of one measurement.
#[derive(Debug)]
pub struct Fixture {
    /// The client library.
    pub library: Library,
    /// A server that nothing else uses.
    pub server: RedisServer,
    /// How clients reach the server.
    pub transport: Transport,
    /// How long to measure.
    pub effort: Effort,
}

impl Fixture {
    /// The server's address.
    #[must_use]
    pub fn url(&self) -> String {
        match self.transport {
            Transport::Tcp => self.server.url(),
            Transport::Unix => self.server.unix_url(),
        }
    }
}

/// The goal of a figure. Most goals limit the ratio to the floor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// Maximum of the ratio.
    RatioAtMost(f64),
    /// Minimum of the ratio.
    RatioAtLeast(f64),
    /// Maximum of the value.
    AtMost(f64),
}

impl Goal {
    /// Whether the figure meets the goal.
    #[must_use]
    pub fn is_met(self, value: f64, ratio: Option<f64>) -> bool {
        match self {
            Self::RatioAtMost(limit) => ratio.is_some_and(|ratio| ratio <= limit),
            Self::RatioAtLeast(limit) => ratio.is_some_and(|ratio| ratio >= limit),
            Self::AtMost(limit) => value <= limit,
        }
    }

    /// The limit.
    #[must_use]
    pub const fn limit(self) -> f64 {
        match self {
            Self::RatioAtMost(limit) | Self::RatioAtLeast(limit) | Self::AtMost(limit) => limit,
        }
    }

    /// Whether the goal limits the ratio.
    #[must_use]
    pub const fn is_on_ratio(self) -> bool {
        !matches!(self, Self::AtMost(_))
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RatioAtMost(limit) => write!(f, "ratio <= {limit}"),
            Self::RatioAtLeast(limit) => write!(f, "ratio >= {limit}"),
            Self::AtMost(limit) => write!(f, "value <= {limit}"),
        }
    }
}

/// One figure of one round.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The id without the client, such as `distinct_keys.64`.
    pub id: String,
    /// The measured value.
    pub value: f64,
    /// The unit of the value and the floor.
    pub unit: &'static str,
    /// The floor, measured in the same round.
    pub floor: Option<f64>,
    /// The goal, if there is one.
    pub goal: Option<Goal>,
}

impl Reading {
    /// A figure without a floor and a goal.
    pub fn new(id: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self {
            id: id.into(),
            value,
            unit,
            floor: None,
            goal: None,
        }
    }

    /// Sets the floor.
    #[must_use]
    pub const fn over(mut self, floor: f64) -> Self {
        self.floor = Some(floor);
        self
    }

    /// Sets the goal.
    #[must_use]
    pub const fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self
    }
}

type Measuring<'a> = Pin<Box<dyn Future<Output = Result<Vec<Reading>>> + Send + 'a>>;

/// How often a measurement runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Often {
    /// In each round, on each client library.
    EachRound,
    /// In the first round, on each client library. For long measurements without a goal.
    Once,
    /// In each round, once. For measurements that use no client library.
    WithoutLibrary,
}

/// One measurement.
#[derive(Clone, Copy)]
pub struct Measurement {
    /// The prefix of the ids of its figures.
    pub name: &'static str,
    /// How clients reach the server.
    pub transport: Transport,
    /// How often it runs.
    pub often: Often,
    /// Runs it.
    pub run: for<'a> fn(&'a Fixture) -> Measuring<'a>,
}

impl fmt::Debug for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

pub(crate) fn micros(duration: std::time::Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// The median; NaN without values.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        at(middle)
    } else {
        (at(middle.wrapping_sub(1)) + at(middle)) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_no_values() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn goal_limits_the_ratio_or_the_value() {
        assert!(Goal::RatioAtMost(1.2).is_met(99.0, Some(1.2)));
        assert!(!Goal::RatioAtMost(1.2).is_met(0.0, Some(1.3)));
        assert!(!Goal::RatioAtMost(1.2).is_met(0.0, None));
        assert!(Goal::RatioAtLeast(1.5).is_met(0.0, Some(1.6)));
        assert!(!Goal::RatioAtLeast(1.5).is_met(9.0, Some(1.4)));
        assert!(Goal::AtMost(8.0).is_met(8.0, Some(99.0)));
        assert!(!Goal::AtMost(8.0).is_met(f64::NAN, None));
    }
}

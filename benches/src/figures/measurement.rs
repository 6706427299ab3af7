//! What a measurement gets, and what it returns.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use leasehold_test_servers::RedisServer;

use crate::Result;
use crate::library::Library;
use crate::samples::Samples;

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Just enough to show that everything works.
    Quick,
    /// Enough for meaningful figures.
    Full,
}

impl Effort {
    pub(crate) fn of<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

/// What a measurement gets.
#[derive(Debug)]
pub(crate) struct Fixture {
    pub(crate) library: Library,
    /// A server that nothing else uses.
    pub(crate) server: RedisServer,
    pub(crate) effort: Effort,
}

impl Fixture {
    /// The server's address on loopback TCP.
    pub(crate) fn url(&self) -> String {
        self.server.url()
    }
}

/// One figure of one round.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    /// The id without the client, such as `distinct_keys.64`.
    pub(crate) id: String,
    pub(crate) value: f64,
    /// The unit of the value and the floor.
    pub(crate) unit: &'static str,
    /// The floor, measured in the same round.
    pub(crate) floor: Option<f64>,
}

impl Reading {
    pub(crate) fn new(id: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self {
            id: id.into(),
            value,
            unit,
            floor: None,
        }
    }

    /// A percentile, over the same of the floor.
    pub(crate) fn percentile(id: &str, percent: usize, own: &Samples, floor: &Samples) -> Self {
        let at = |samples: &Samples| micros(samples.percentile(percent));
        Self::new(format!("{id}.p{percent}"), at(own), "µs").over(at(floor))
    }

    pub(crate) const fn over(mut self, floor: f64) -> Self {
        self.floor = Some(floor);
        self
    }
}

type Measuring<'a> = Pin<Box<dyn Future<Output = Result<Vec<Reading>>> + Send + 'a>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Often {
    /// In each round, on each client library.
    EachLibrary,
    /// The same, but only if it is named: it takes minutes, and is compared with limits.
    IfNamed,
    /// In each round, once: it doesn't depend on the library.
    #[cfg_attr(not(any(feature = "peers", feature = "postgres")), expect(dead_code))]
    Once,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Measurement {
    /// The prefix of the ids of its figures.
    pub(crate) name: &'static str,
    pub(crate) often: Often,
    pub(crate) run: for<'a> fn(&'a Fixture) -> Measuring<'a>,
}

pub(crate) fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// The median; NaN without values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
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
}

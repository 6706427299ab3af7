//! Measured durations and their statistics.

use std::time::Duration;

#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    pub(crate) fn add(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub(crate) const fn count(&self) -> usize {
        self.0.len()
    }

    /// The given percentile by the nearest-rank method; zero without samples.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let mut samples = Samples::default();
        assert_eq!(samples.percentile(50), Duration::ZERO);
        (1..=200)
            .rev()
            .for_each(|n| samples.add(Duration::from_micros(n)));
        assert_eq!(samples.percentile(50), Duration::from_micros(100));
        assert_eq!(samples.percentile(99), Duration::from_micros(198));
        assert_eq!(samples.percentile(100), Duration::from_micros(200));
    }
}

//! The clock of one client's machine.

use std::time::Duration;

const MILLION: i128 = 1_000_000;

/// A clock that may run faster or slower than true time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LocalClock {
    /// When the clock began to run at this rate, in true time.
    since: Duration,
    /// What the clock showed then.
    shown: Duration,
    /// The rate error in parts per million.
    ppm: i32,
}

fn scaled(time: Duration, by: i128, of: i128) -> Duration {
    // Times stay below 2^96 ns, so the product fits. `of` is not 0, because a rate is more than
    // -1,000,000 ppm.
    let nanos = i128::try_from(time.as_nanos()).unwrap_or(i128::MAX);
    let scaled = nanos.saturating_mul(by).div_euclid(of);
    Duration::from_nanos(u64::try_from(scaled).unwrap_or(u64::MAX))
}

impl LocalClock {
    /// Returns what the clock shows at a true time.
    pub(crate) fn show(&self, elapsed: Duration) -> Duration {
        let running = elapsed.saturating_sub(self.since);
        let running = match self.ppm {
            0 => running,
            ppm => scaled(running, MILLION + i128::from(ppm), MILLION),
        };
        self.shown.saturating_add(running)
    }

    /// Returns the true time in which the clock advances by `span`, rounded up.
    pub(crate) fn true_span(&self, span: Duration) -> Duration {
        if self.ppm == 0 {
            return span;
        }
        scaled(span, MILLION, MILLION + i128::from(self.ppm))
            .saturating_add(Duration::from_nanos(1))
    }

    pub(crate) fn set_rate(&mut self, now: Duration, ppm: i32) {
        (self.shown, self.since) = (self.show(now), now);
        self.ppm = ppm;
    }

    pub(crate) fn jump(&mut self, now: Duration, by: Duration) {
        (self.shown, self.since) = (self.show(now).saturating_add(by), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_fast_clock_is_ahead_and_its_sleeps_are_short() {
        let mut clock = LocalClock::default();
        assert_eq!(clock.show(secs(7)), secs(7));
        clock.set_rate(secs(10), 500_000);
        assert_eq!(clock.show(secs(10)), secs(10));
        assert_eq!(clock.show(secs(12)), secs(13));
        assert_eq!(clock.true_span(secs(3)).as_secs(), 2);
        clock.set_rate(secs(12), -500_000);
        assert_eq!(clock.show(secs(14)), secs(14));
        clock.jump(secs(14), secs(100));
        assert_eq!(clock.show(secs(16)), secs(115));
    }

    #[test]
    fn a_sleep_is_never_too_short() {
        for ppm in [-300_000, -7, 0, 13, 999, 900_000] {
            let mut clock = LocalClock::default();
            clock.set_rate(secs(1), ppm);
            for span in [1, 999, 1_000_000, 123_456_789_123].map(Duration::from_nanos) {
                let end = secs(1) + clock.true_span(span);
                assert!(clock.show(end) >= secs(1) + span, "{ppm} {span:?}");
            }
        }
    }
}

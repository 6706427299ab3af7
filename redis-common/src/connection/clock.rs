//! Clock ids for a user's connection, and for a server without a `run_id`.
//!
//! A client library that reconnects by itself may reach another server without saying so. The
//! local clock and the server's clock run at the same rate within the drift allowance. So if the
//! server's time and the local time since the last stamp differ by more, the new stamp comes from
//! another clock, or the clock was stepped. Both count as a new clock.

use std::time::Duration;

use leasehold_api::{ClockId, Moment, ServerTime, bounds};

/// The time in the answer to `TIME`. What is too large for it, from a broken proxy, counts as the latest time.
///
/// # Examples
/// ```
/// use leasehold_redis_common::connection::time_of;
///
/// assert_eq!(time_of(2, 500_000).as_micros(), 2_500_000);
/// assert_eq!(time_of(u64::MAX, 0).as_micros(), u64::MAX);
/// ```
pub const fn time_of(seconds: u64, micros: u64) -> ServerTime {
    ServerTime::from_micros(seconds.saturating_mul(1_000_000).saturating_add(micros))
}

#[derive(Debug)]
pub(crate) struct ClockWatch {
    server: ClockId,
    steps: u64,
    reference: Option<Sample>,
}

/// One exchange. The server read its clock between the two moments.
#[derive(Clone, Copy, Debug)]
struct Sample {
    sent: Moment,
    received: Moment,
    at: ServerTime,
}

impl ClockWatch {
    pub(crate) const fn new(server: ClockId) -> Self {
        Self {
            server,
            steps: 0,
            reference: None,
        }
    }

    /// Call this after reading the `run_id` again.
    pub(crate) fn connected(&mut self, server: ClockId) {
        if server != self.server {
            self.server = server;
            self.reference = None;
        }
    }

    pub(crate) fn observe(&mut self, sent: Moment, received: Moment, at: ServerTime) -> ClockId {
        let sample = Sample { sent, received, at };
        match self.reference {
            Some(reference) if !reference.fits(&sample) => {
                self.steps += 1;
                self.reference = Some(sample);
            }
            Some(reference) if !sample.is_more_precise_than(&reference) => {}
            _ => self.reference = Some(sample),
        }
        self.current()
    }

    pub(crate) const fn current(&self) -> ClockId {
        self.server.after_steps(self.steps)
    }
}

impl Sample {
    /// Whether both may come from one clock.
    fn fits(&self, later: &Self) -> bool {
        let between =
            |from: Moment, to: Moment| micros(to.since_origin()) - micros(from.since_origin());
        let most = between(self.sent, later.received);
        let least = between(self.received, later.sent);
        let allowance = most.abs() / i128::from(bounds::DRIFT_PARTS) + micros(bounds::DRIFT_FLOOR);
        let elapsed = i128::from(later.at.as_micros()) - i128::from(self.at.as_micros());
        (least - allowance..=most + allowance).contains(&elapsed)
    }

    /// Whether this sample is the better reference. Drift makes an older sample less precise.
    fn is_more_precise_than(&self, older: &Self) -> bool {
        let age = self.received.saturating_since(older.received);
        self.width() <= older.width() + age / bounds::DRIFT_PARTS
    }

    fn width(&self) -> Duration {
        self.received.saturating_since(self.sent)
    }
}

fn micros(duration: Duration) -> i128 {
    duration.as_micros().cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: ClockId = ClockId::new(7);

    fn at(ms: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(ms))
    }

    fn stamp(ms: u64) -> ServerTime {
        ServerTime::from_micros(1_000_000_000 + ms * 1_000)
    }

    #[test]
    fn steady_clock_keeps_its_id() {
        let mut watch = ClockWatch::new(SERVER);
        for ms in (0..100_000).step_by(777) {
            // Half a percent fast.
            let id = watch.observe(at(ms), at(ms + 3), stamp(ms + ms / 200 + 1));
            assert_eq!(id, SERVER, "after {ms} ms");
        }
    }

    #[test]
    fn overlapping_exchanges_keep_the_id() {
        let mut watch = ClockWatch::new(SERVER);
        assert_eq!(watch.observe(at(10), at(500), stamp(490)), SERVER);
        assert_eq!(watch.observe(at(0), at(505), stamp(2)), SERVER);
        assert_eq!(watch.observe(at(505), at(506), stamp(506)), SERVER);
    }

    #[test]
    fn clock_step_changes_the_id() {
        for step in [-50_i64, 50] {
            let mut watch = ClockWatch::new(SERVER);
            watch.observe(at(0), at(1), stamp(1_000));
            let stepped = stamp((1_100 + step).unsigned_abs());
            let id = watch.observe(at(100), at(101), stepped);
            assert_ne!(id, SERVER, "step of {step} ms");
            assert_eq!(id.server(), SERVER.server(), "it is the same server");
            let later = stamp((1_200 + step).unsigned_abs());
            assert_eq!(watch.observe(at(200), at(201), later), id);
        }
    }

    #[test]
    fn slow_exchange_does_not_replace_a_precise_reference() {
        let mut watch = ClockWatch::new(SERVER);
        watch.observe(at(0), at(1), stamp(0));
        assert_eq!(watch.observe(at(1), at(900), stamp(450)), SERVER);
        // 300 ms ahead: consistent with the slow exchange, but not with the fast one.
        assert_ne!(watch.observe(at(901), at(902), stamp(1_200)), SERVER);
    }

    #[test]
    fn new_server_has_a_new_id_after_steps() {
        let mut watch = ClockWatch::new(SERVER);
        watch.observe(at(0), at(1), stamp(0));
        let stepped = watch.observe(at(2), at(3), stamp(5_000));
        watch.connected(ClockId::new(1_000));
        let other = watch.observe(at(4), at(5), stamp(90_000));
        assert!(other != stepped && other != SERVER);
        watch.connected(ClockId::new(1_000));
        assert_eq!(watch.observe(at(6), at(7), stamp(90_002)), other);
    }
}

//! Estimates the server's clock from samples, and computes local deadlines.
//!
//! Each reply gives a sample: the server read `at` from its clock between the local moments `sent`
//! and `received`. For each clock id, the latest sample and the best sample of the last seconds are
//! kept. The best sample took the shortest time from `sent` to `at`.
//!
//! A new sample must agree with both: between two samples, the server's clock must advance as much
//! as the local clock, within the uncertainty of the samples and the drift allowance. Otherwise the
//! server's clock has stepped. A pushed grant has a stamp but no `sent`, so its moment is
//! extrapolated from the best sample. Samples of different clock ids are never compared.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bounds::{DELIVERY_WINDOW, DRIFT_FLOOR, DRIFT_PARTS, MAX_LEASE};
use crate::mutants::mutant;
use crate::runtime::Moment;
use crate::sync::Mutex;
use crate::time::{ClockId, ServerTime, Stamp};

/// A new sample replaces a best sample older than this, because clocks drift apart.
const MAX_BEST_AGE: Duration = Duration::from_secs(5);
/// A clock that no reply has had for this long is forgotten. Each restart of a server brings a new
/// clock. A holder depends on a clock for at most a lease after its last reply.
const MAX_UNUSED: Duration = MAX_LEASE;
/// The maximum number of clocks that are remembered. A cluster has one for each primary.
const MAX_CLOCKS: usize = 1_024;

/// How far the two clocks may drift apart over a duration.
pub(crate) fn drift_allowance(over: Duration) -> Duration {
    over / DRIFT_PARTS + DRIFT_FLOOR
}

/// The local deadline of a holder that had `remaining` in the reply to a request sent at `sent`
/// (rule 2). The holder is valid *before* that moment, not at it.
pub(crate) fn local_deadline(sent: Moment, remaining: Duration) -> Moment {
    if mutant!(DriftAllowanceIgnored) {
        return sent.saturating_add(remaining);
    }
    if mutant!(DriftFloorIgnored) {
        return sent.saturating_add(remaining - remaining / DRIFT_PARTS);
    }
    sent.saturating_add(remaining.saturating_sub(drift_allowance(remaining)))
}

/// The server's clock with this id jumped relative to the local clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stepped(pub(crate) ClockId);

#[derive(Clone, Copy, Debug)]
struct Sample {
    sent: i128,
    at: i128,
    received: i128,
}

impl Sample {
    fn new(sent: Moment, at: ServerTime, received: Moment) -> Self {
        Self {
            sent: local_micros(sent),
            at: i128::from(at.as_micros()),
            received: local_micros(received),
        }
    }

    /// A lower bound of the local time, in microseconds, when the server's clock showed `at`. It
    /// holds even if that clock runs fast.
    fn not_after(&self, at: i128) -> i128 {
        let since = at - self.at;
        self.sent + since - since.max(0) / i128::from(DRIFT_PARTS)
    }

    /// Whether both clocks advanced equally between the two samples.
    fn agrees_with(&self, earlier: &Self) -> bool {
        let server = self.at - earlier.at;
        let (min, max) = (self.sent - earlier.received, self.received - earlier.sent);
        let allowance = allowance_micros(max.max(-min));
        min - allowance <= server && server <= max + allowance
    }
}

#[derive(Debug)]
struct ClockSamples {
    latest: Sample,
    best: Sample,
}

/// The samples of each clock.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(Mutex<Clocks>);

#[derive(Debug, Default)]
struct Clocks {
    by_id: BTreeMap<ClockId, ClockSamples>,
    /// The clock of the last reply.
    last: Option<ClockId>,
}

impl ServerClock {
    /// Adds the sample of one call. Fails if it shows that the clock has stepped.
    pub(crate) fn observe(
        &self,
        sent: Moment,
        stamp: Stamp,
        received: Moment,
    ) -> Result<(), Stepped> {
        let sample = Sample::new(sent, stamp.at, received);
        let mut clocks = self.0.lock();
        clocks.last = Some(stamp.clock);
        let mut stepped = false;
        match clocks.by_id.get_mut(&stamp.clock) {
            Some(clock) => {
                // The latest sample may be so uncertain that it hides a step.
                stepped = !sample.agrees_with(&clock.latest) || !sample.agrees_with(&clock.best);
                let outdated = sample.sent - clock.best.sent > duration_micros(MAX_BEST_AGE);
                let better = sample.sent - sample.at >= clock.best.sent - clock.best.at;
                if stepped || outdated || better {
                    clock.best = sample;
                }
                clock.latest = sample;
            }
            None => {
                let clock = ClockSamples {
                    latest: sample,
                    best: sample,
                };
                clocks.forget_unused(sample.received);
                clocks.by_id.insert(stamp.clock, clock);
            }
        }
        if stepped && !mutant!(SteppedWallClock) {
            Err(Stepped(stamp.clock))
        } else {
            Ok(())
        }
    }

    /// A lower bound of the time on a clock now; `None` before its first sample. Without an id, the
    /// clock is that of the last reply.
    pub(crate) fn server_now(&self, now: Moment, clock: Option<ClockId>) -> Option<ServerTime> {
        let clocks = self.0.lock();
        let latest = clocks.by_id.get(&clock.or(clocks.last)?)?.latest;
        let at = latest.at + (local_micros(now) - latest.received).max(0);
        Some(ServerTime::from_micros(u64::try_from(at).ok()?))
    }

    /// The deliver-before of an acquire that is sent now: two call timeouts ahead, at most the
    /// delivery window. Without an id, the clock is that of the last reply.
    pub(crate) fn deliver_before(
        &self,
        now: Moment,
        clock: Option<ClockId>,
        call_timeout: Duration,
    ) -> Option<ServerTime> {
        let ahead = (call_timeout * 2).min(DELIVERY_WINDOW);
        Some(self.server_now(now, clock)?.saturating_add(ahead))
    }

    /// A lower bound of the local moment when a pushed grant was made. The grant has this stamp and
    /// arrived at `received`.
    ///
    /// `None` without a sample of that clock, or if the clock has stepped.
    pub(crate) fn granted_at(&self, stamp: Stamp, received: Moment) -> Option<Moment> {
        let clocks = self.0.lock();
        let best = clocks.by_id.get(&stamp.clock)?.best;
        let granted = best.not_after(i128::from(stamp.at.as_micros()));
        if mutant!(SteppedWallClock) {
            let granted = u64::try_from(granted).ok()?;
            return Some(Moment::from_origin(Duration::from_micros(granted)));
        }
        let received = local_micros(received);
        if granted > received + allowance_micros((received - best.sent).abs()) {
            return None;
        }
        let granted = u64::try_from(granted.min(received)).ok()?;
        Some(Moment::from_origin(Duration::from_micros(granted)))
    }
}

impl Clocks {
    /// Makes room for another clock.
    fn forget_unused(&mut self, now: i128) {
        let oldest = now - duration_micros(MAX_UNUSED);
        self.by_id
            .retain(|_, clock| clock.latest.received >= oldest);
        if self.by_id.len() >= MAX_CLOCKS {
            let unused = self
                .by_id
                .iter()
                .min_by_key(|(_, clock)| clock.latest.received);
            if let Some(id) = unused.map(|(id, _)| *id) {
                self.by_id.remove(&id);
            }
        }
    }
}

fn local_micros(moment: Moment) -> i128 {
    duration_micros(moment.since_origin())
}

fn duration_micros(duration: Duration) -> i128 {
    i128::try_from(duration.as_micros()).unwrap_or(i128::MAX)
}

fn allowance_micros(over: i128) -> i128 {
    over / i128::from(DRIFT_PARTS) + duration_micros(DRIFT_FLOOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(ms))
    }

    fn stamp(clock: u64, ms: u64) -> Stamp {
        Stamp {
            clock: ClockId::new(clock),
            at: ServerTime::from_micros(ms * 1_000),
        }
    }

    #[test]
    fn deadline_leaves_the_drift_allowance() {
        let deadline = local_deadline(at(1_000), Duration::from_secs(30));
        assert_eq!(deadline, at(1_000 + 30_000 - 300 - 10));
        assert_eq!(local_deadline(at(5), Duration::from_millis(10)), at(5));
    }

    #[test]
    fn deliver_before_needs_a_sample_and_counts_from_the_reply() {
        let clock = ServerClock::default();
        let call = Duration::from_secs(1);
        assert_eq!(clock.deliver_before(at(0), None, call), None);
        clock
            .observe(at(100), stamp(1, 50_000), at(140))
            .expect("first");
        let until = clock.deliver_before(at(240), None, call).expect("a sample");
        assert_eq!(until.as_micros(), 50_000_000 + 100_000 + 2_000_000);
        let far = clock.deliver_before(at(240), None, Duration::from_secs(60));
        assert_eq!(far.expect("a sample").as_micros(), 50_100_000 + 10_000_000);
    }

    #[test]
    fn time_is_that_of_the_named_clock_or_else_of_the_last_reply() {
        let clock = ServerClock::default();
        // More servers than a client met before clusters, five seconds apart.
        for id in 0..100 {
            clock
                .observe(at(id), stamp(id, 90_000 + 5_000 * id), at(id))
                .expect("another clock is no step");
        }
        let micros = |id: u64| 1_000 * (90_000 + 5_000 * id + 200 - id);
        for id in 0..100 {
            let named = clock.server_now(at(200), Some(ClockId::new(id)));
            assert_eq!(named, Some(ServerTime::from_micros(micros(id))), "{id}");
        }
        let last = clock.server_now(at(200), None);
        assert_eq!(last, Some(ServerTime::from_micros(micros(99))));
        let unknown = Some(ClockId::new(100));
        assert_eq!(clock.server_now(at(200), unknown), None);
        let call = Duration::from_secs(1);
        assert_eq!(clock.deliver_before(at(200), unknown, call), None);
        let own = clock.deliver_before(at(200), Some(ClockId::new(7)), call);
        assert_eq!(own, Some(ServerTime::from_micros(micros(7) + 2_000_000)));
    }

    #[test]
    fn unused_clocks_are_forgotten() {
        let clock = ServerClock::default();
        let seen = |ms, id| {
            clock
                .observe(at(ms), stamp(id, ms), at(ms))
                .expect("no step");
        };
        let known = |ms, id| clock.server_now(at(ms), Some(ClockId::new(id))).is_some();
        let hour = 3_600_000;
        seen(0, 1);
        seen(1, 2);
        seen(hour, 2);
        seen(hour, 3);
        assert!(known(hour, 1), "a lease may depend on it");
        seen(hour + 1, 4);
        assert!(!known(hour + 1, 1) && known(hour + 1, 2) && known(hour + 1, 3));
        for id in 0..u64::try_from(MAX_CLOCKS).expect("small") {
            seen(hour + 2 + id, 1_000 + id);
        }
        assert_eq!(clock.0.lock().by_id.len(), MAX_CLOCKS);
        assert!(!known(hour + 9, 2) && known(hour + 9, 1_000));
    }

    #[test]
    fn step_is_noticed_in_both_directions_but_not_in_a_slow_reply() {
        let clock = ServerClock::default();
        clock.observe(at(0), stamp(1, 1_000), at(2)).expect("first");
        // Both clocks advanced by 100 ms, but the reply took 900 ms.
        clock
            .observe(at(100), stamp(1, 1_100), at(1_000))
            .expect("no step");
        assert!(
            clock
                .observe(at(1_100), stamp(1, 7_000), at(1_101))
                .is_err()
        );
        clock
            .observe(at(1_200), stamp(1, 7_100), at(1_201))
            .expect("no further step");
        assert!(
            clock
                .observe(at(1_300), stamp(1, 5_000), at(1_301))
                .is_err()
        );
    }

    #[test]
    fn slow_call_hides_no_step() {
        let clock = ServerClock::default();
        clock.observe(at(0), stamp(1, 1_000), at(1)).expect("first");
        clock
            .observe(at(1), stamp(1, 1_450), at(900))
            .expect("no step");
        // A step by 300 ms agrees with the slow sample, but not with the fast one.
        assert!(clock.observe(at(901), stamp(1, 2_200), at(902)).is_err());
    }

    #[test]
    fn pushed_grant_counts_from_the_best_sample_but_not_after_its_receipt() {
        let clock = ServerClock::default();
        assert_eq!(clock.granted_at(stamp(1, 0), at(0)), None);
        // The first request took 5 ms to arrive, the second 1 ms, so the second is better.
        clock.observe(at(0), stamp(1, 1_005), at(6)).expect("first");
        clock
            .observe(at(100), stamp(1, 1_101), at(103))
            .expect("second");
        // 100 ms after the sample, less the drift of a fast clock.
        assert_eq!(clock.granted_at(stamp(1, 1_201), at(260)), Some(at(199)));
        // The server's clock stepped forward after the sample.
        assert_eq!(clock.granted_at(stamp(1, 9_000), at(260)), None);
        // A stamp slightly ahead is within the allowance and counts from the receipt.
        assert_eq!(clock.granted_at(stamp(1, 1_264), at(260)), Some(at(260)));
    }
}

//! The server's clock as the client knows it: samples from replies, and what is computed from
//! them.
//!
//! Each reply gives a sample: the server read its clock at `at`, some time between the moments
//! `sent` and `received` of the local clock. Local and server time are never compared except
//! through such a pair, and samples of different clocks never mix.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bounds::{DELIVERY_WINDOW, DRIFT_FLOOR, DRIFT_PARTS};
use crate::mutants::mutant;
use crate::runtime::Moment;
use crate::sync::Mutex;
use crate::time::{ClockId, ServerTime, Stamp};

/// A sample older than this is no longer the best, however small its round trip was: clocks
/// drift apart.
const BEST_FOR: Duration = Duration::from_secs(5);
/// Clocks remembered; a server that restarts brings a new one.
const CLOCKS: usize = 8;

/// How much the two clocks may disagree over a duration.
pub(crate) fn drift_allowance(over: Duration) -> Duration {
    over / DRIFT_PARTS + DRIFT_FLOOR
}

/// Up to when a holder may be used that had `remaining` when a reply to something sent at `sent`
/// was computed. It is over *at* that moment.
pub(crate) fn local_deadline(sent: Moment, remaining: Duration) -> Moment {
    if mutant!(DriftAllowanceIgnored) {
        return sent.saturating_add(remaining);
    }
    sent.saturating_add(remaining.saturating_sub(drift_allowance(remaining)))
}

/// The clock that this sample was read from did not go on as the local one did.
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

    /// Latest local moment, in microseconds, that is surely not after the server read `at`, even
    /// if its clock goes fast.
    fn not_after(&self, at: i128) -> i128 {
        let since = at - self.at;
        self.sent + since - since.max(0) / i128::from(DRIFT_PARTS)
    }

    /// Whether the server's clock went on between the two samples as the local one did.
    fn agrees_with(&self, earlier: &Self) -> bool {
        let server = self.at - earlier.at;
        let (least, most) = (self.sent - earlier.received, self.received - earlier.sent);
        let allowance = allowance_micros(most.max(-least));
        least - allowance <= server && server <= most + allowance
    }
}

#[derive(Debug)]
struct OneClock {
    latest: Sample,
    best: Sample,
    used: u64,
}

/// Samples by clock.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(Mutex<Clocks>);

#[derive(Debug, Default)]
struct Clocks {
    by_id: BTreeMap<ClockId, OneClock>,
    current: Option<ClockId>,
    used: u64,
}

impl ServerClock {
    /// Takes the sample of one exchange.
    pub(crate) fn observe(
        &self,
        sent: Moment,
        stamp: Stamp,
        received: Moment,
    ) -> Result<(), Stepped> {
        let sample = Sample::new(sent, stamp.at, received);
        let mut clocks = self.0.lock();
        clocks.used += 1;
        let used = clocks.used;
        clocks.current = Some(stamp.clock);
        let mut stepped = false;
        match clocks.by_id.get_mut(&stamp.clock) {
            Some(clock) => {
                // The latest may have taken so long that a step fits into it.
                stepped = !sample.agrees_with(&clock.latest) || !sample.agrees_with(&clock.best);
                let outdated = sample.sent - clock.best.sent > duration_micros(BEST_FOR);
                let better = sample.sent - sample.at >= clock.best.sent - clock.best.at;
                if stepped || outdated || better {
                    clock.best = sample;
                }
                clock.latest = sample;
                clock.used = used;
            }
            None => {
                let clock = OneClock {
                    latest: sample,
                    best: sample,
                    used,
                };
                clocks.by_id.insert(stamp.clock, clock);
                clocks.forget_the_oldest();
            }
        }
        if stepped && !mutant!(SteppedWallClock) {
            Err(Stepped(stamp.clock))
        } else {
            Ok(())
        }
    }

    /// What the server's clock shows now, at least; `None` before the first exchange.
    pub(crate) fn server_now(&self, now: Moment) -> Option<ServerTime> {
        let clocks = self.0.lock();
        let latest = clocks.by_id.get(&clocks.current?)?.latest;
        let at = latest.at + (local_micros(now) - latest.received).max(0);
        Some(ServerTime::from_micros(u64::try_from(at).ok()?))
    }

    /// Until when an acquire that is sent now may be executed: time enough for two calls, and
    /// never beyond the delivery window.
    pub(crate) fn deliver_before(&self, now: Moment, call_timeout: Duration) -> Option<ServerTime> {
        let ahead = (call_timeout * 2).min(DELIVERY_WINDOW);
        Some(self.server_now(now)?.saturating_add(ahead))
    }

    /// A moment that is surely not after the one when a grant was made that was pushed with this
    /// stamp and came at `received`. `None` if nothing can be computed: no sample of that clock,
    /// or the clock was stepped.
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
    fn forget_the_oldest(&mut self) {
        if self.by_id.len() <= CLOCKS {
            return;
        }
        let oldest = self.by_id.iter().min_by_key(|(_, clock)| clock.used);
        if let Some(id) = oldest.map(|(id, _)| *id) {
            self.by_id.remove(&id);
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
    fn a_deadline_leaves_the_drift_allowance() {
        let deadline = local_deadline(at(1_000), Duration::from_secs(30));
        assert_eq!(deadline, at(1_000 + 30_000 - 300 - 10));
        assert_eq!(local_deadline(at(5), Duration::from_millis(10)), at(5));
    }

    #[test]
    fn deliver_before_needs_a_sample_and_counts_from_the_reply() {
        let clock = ServerClock::default();
        let call = Duration::from_secs(1);
        assert_eq!(clock.deliver_before(at(0), call), None);
        clock
            .observe(at(100), stamp(1, 50_000), at(140))
            .expect("first");
        let until = clock.deliver_before(at(240), call).expect("a sample");
        assert_eq!(until.as_micros(), 50_000_000 + 100_000 + 2_000_000);
        let far = clock.deliver_before(at(240), Duration::from_secs(60));
        assert_eq!(far.expect("a sample").as_micros(), 50_100_000 + 10_000_000);
    }

    #[test]
    fn the_current_clock_is_that_of_the_last_reply() {
        let clock = ServerClock::default();
        clock
            .observe(at(0), stamp(1, 90_000), at(0))
            .expect("first");
        clock
            .observe(at(10), stamp(2, 1_000), at(10))
            .expect("another clock never disagrees");
        assert_eq!(
            clock.server_now(at(10)),
            Some(ServerTime::from_micros(1_000_000))
        );
    }

    #[test]
    fn a_step_is_noticed_in_both_directions_and_a_slow_reply_is_none() {
        let clock = ServerClock::default();
        clock.observe(at(0), stamp(1, 1_000), at(2)).expect("first");
        // 100 ms later by both clocks, but the reply took 900 ms to be read.
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
            .expect("goes on from there");
        assert!(
            clock
                .observe(at(1_300), stamp(1, 5_000), at(1_301))
                .is_err()
        );
    }

    #[test]
    fn a_slow_exchange_hides_no_step() {
        let clock = ServerClock::default();
        clock.observe(at(0), stamp(1, 1_000), at(1)).expect("first");
        clock
            .observe(at(1), stamp(1, 1_450), at(900))
            .expect("no step");
        // 300 ms ahead: within the slow exchange's reach, not within the fast one's.
        assert!(clock.observe(at(901), stamp(1, 2_200), at(902)).is_err());
    }

    #[test]
    fn a_pushed_grant_counts_from_the_best_sample_and_at_most_from_its_receipt() {
        let clock = ServerClock::default();
        assert_eq!(clock.granted_at(stamp(1, 0), at(0)), None);
        // A request that took 5 ms to arrive, then one that took 1 ms: the second is better.
        clock.observe(at(0), stamp(1, 1_005), at(6)).expect("first");
        clock
            .observe(at(100), stamp(1, 1_101), at(103))
            .expect("second");
        // 100 ms after it, less what a clock may go fast in that time.
        assert_eq!(clock.granted_at(stamp(1, 1_201), at(260)), Some(at(199)));
        // The server's clock stepped forward after the sample: nothing can be computed.
        assert_eq!(clock.granted_at(stamp(1, 9_000), at(260)), None);
        // A little ahead is within the allowance, and counts from the receipt.
        assert_eq!(clock.granted_at(stamp(1, 1_264), at(260)), Some(at(260)));
    }
}

//! Estimates the server's clock from samples, and computes local deadlines.
//!
//! Each reply gives a sample: the server read `at` from its clock between the local moments `sent`
//! and `received`. For each clock id, the latest sample and the best sample of the last seconds are
//! kept. The best sample took the shortest time from `sent` to `at`.
//!
//! A new sample must agree with both: between two samples, the server's clock must advance as much
//! as the local clock, within the uncertainty of the samples and the drift allowance. Otherwise the
//! server's clock has stepped. A pushed grant has a stamp but no `sent`, so its moment is
//! extrapolated from the best sample.
//!
//! Samples of different clock ids say how far these clocks differ. A key may move from one server to
//! another, and its lease ends by the clock of the server that has it then. So servers whose samples
//! disagree beyond the same allowance are reported.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bounds::{DELIVERY_WINDOW, DRIFT_FLOOR, DRIFT_PARTS, MAX_LEASE};
use crate::runtime::Moment;
use crate::sync::Mutex;
use crate::time::{ClockId, ServerTime, Stamp};

/// A new sample replaces a best sample older than this, because clocks drift apart.
const MAX_BEST_AGE: Duration = Duration::from_secs(5);
/// A clock that no reply has had for this long is forgotten. Each restart of a server brings a new
/// clock. A holder depends on a clock for at most a lease after its last reply.
const MAX_UNUSED: Duration = MAX_LEASE;
/// A clock that differs from others is reported at most this often.
const REPORT_EVERY: Duration = Duration::from_secs(60 * 60);
/// The maximum number of clocks that are remembered. A cluster has one for each primary.
const MAX_CLOCKS: usize = 1_024;

/// How far the two clocks may drift apart over a duration.
pub(crate) fn drift_allowance(over: Duration) -> Duration {
    over / DRIFT_PARTS + DRIFT_FLOOR
}

/// The local deadline of a holder that had `remaining` in the reply to a request sent at `sent`
/// (rule 2). The holder is valid *before* that moment, not at it.
pub(crate) fn local_deadline(sent: Moment, remaining: Duration) -> Moment {
    sent.saturating_add(remaining.saturating_sub(drift_allowance(remaining)))
}

/// What a sample tells about the clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// The clock of the sample jumped relative to the local clock.
    pub(crate) stepped: bool,
    /// The clock of the sample and another one differ, which was not reported yet.
    pub(crate) apart: Option<Apart>,
}

/// Two clocks that differ by more than the drift allowance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Apart {
    pub(crate) ahead: ClockId,
    pub(crate) behind: ClockId,
    /// An estimate of the difference.
    pub(crate) by: Duration,
}

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

    /// The earliest local time, in µs, at which the server's clock can have shown `at`. After this sample it
    /// allows for a clock that runs fast. Before it, no allowance is needed: a deadline leaves 1 % of `remaining`,
    /// and the age of such a grant is less than `remaining`.
    fn earliest_local(&self, at: i128) -> i128 {
        let since = at - self.at;
        self.sent + since - since.max(0) / i128::from(DRIFT_PARTS)
    }

    /// Whether both clocks advanced equally between the two samples, if two readings of one moment differ by at most `error`.
    /// Of samples of two clocks: whether these may show the same time.
    fn agrees_with(&self, earlier: &Self, error: i128) -> bool {
        let server = self.at - earlier.at;
        let (min, max) = (self.sent - earlier.received, self.received - earlier.sent);
        let allowance = allowance_micros(max.max(-min)) + error;
        min - allowance <= server && server <= max + allowance
    }

    /// How far the clock of this sample is ahead of the clock of the other sample.
    fn ahead_of(&self, other: &Self) -> i128 {
        let ahead = |sample: &Self| sample.at - (sample.sent + sample.received) / 2;
        ahead(self) - ahead(other)
    }
}

#[derive(Debug)]
struct ClockSamples {
    latest: Sample,
    best: Sample,
    /// The time of the last report that it differs from another clock.
    reported: Option<i128>,
    /// The last step that was noticed: what was promised to a request that was sent before this time is void.
    stepped: Option<i128>,
}

impl ClockSamples {
    fn agree_with(&self, sample: &Sample, error: i128) -> bool {
        sample.agrees_with(&self.latest, error) && sample.agrees_with(&self.best, error)
    }

    fn may_report(&self, now: i128) -> bool {
        let next = |last| last + duration_micros(REPORT_EVERY);
        self.reported.is_none_or(|last| now >= next(last))
    }
}

/// The samples of each clock.
#[derive(Debug, Default)]
pub(crate) struct ServerClock {
    clocks: Mutex<Clocks>,
    /// How far two readings of the same moment may differ.
    error: Duration,
}

#[derive(Debug, Default)]
struct Clocks {
    by_id: BTreeMap<ClockId, ClockSamples>,
    /// The clock of the last reply.
    last: Option<ClockId>,
    /// Samples from before this local time are not compared with those of other clocks. A clock seemed to
    /// step then, and it may have been the client's own.
    compared_from: i128,
}

impl ServerClock {
    pub(crate) fn new(error: Duration) -> Self {
        let clocks = Mutex::default();
        Self { clocks, error }
    }

    /// Adds a sample. The time of a step that it shows is kept: a grant whose request was sent before may become a guard
    /// only later, when no reply shows the step again (decision 0076).
    pub(crate) fn observe(&self, sent: Moment, stamp: Stamp, received: Moment) -> Findings {
        let sample = Sample::new(sent, stamp.at, received);
        let mut clocks = self.clocks.lock();
        clocks.last = Some(stamp.clock);
        let error = duration_micros(self.error);
        let (mut stepped, mut is_best) = (false, true);
        match clocks.by_id.get_mut(&stamp.clock) {
            Some(clock) => {
                let is_late = sample.sent < clock.latest.sent;
                // The latest sample may be so uncertain that it hides a step.
                let agrees = clock.agree_with(&sample, error);
                // A late one from before a step that was noticed is no step back.
                let is_known = clock.stepped.is_some_and(|noticed| sample.sent < noticed);
                stepped = !agrees && !is_known;
                if stepped {
                    // Of a late one, nobody can tell whether the latest is from before the step.
                    let after = if is_late {
                        clock.latest.sent + 1
                    } else {
                        sample.sent
                    };
                    clock.stepped = Some(after);
                }
                let outdated = sample.sent - clock.best.sent > duration_micros(MAX_BEST_AGE);
                let better = sample.sent - sample.at >= clock.best.sent - clock.best.at;
                let replaces = agrees || (stepped && !is_late);
                is_best = replaces && (stepped || outdated || better);
                if is_best {
                    clock.best = sample;
                }
                if replaces {
                    clock.latest = sample;
                }
            }
            None => {
                let clock = ClockSamples {
                    latest: sample,
                    best: sample,
                    reported: None,
                    stepped: None,
                };
                clocks.forget_unused(sample.received);
                clocks.by_id.insert(stamp.clock, clock);
            }
        }
        if stepped {
            clocks.compared_from = clocks.compared_from.max(sample.sent);
        }
        let apart = match is_best {
            true => clocks.compare(stamp.clock, &sample, error),
            false => None,
        };
        Findings { stepped, apart }
    }

    /// Whether a step of a clock was noticed by a reply to a later request than the one that was `sent` then.
    pub(crate) fn has_stepped(&self, clock: ClockId, sent: Moment) -> bool {
        let clocks = self.clocks.lock();
        let stepped = clocks.by_id.get(&clock).and_then(|clock| clock.stepped);
        stepped.is_some_and(|stepped| stepped > local_micros(sent))
    }

    /// A lower bound of the time on a clock now, but for its error; `None` before its first sample. Without an id, the
    /// clock is that of the last reply.
    pub(crate) fn server_now(&self, now: Moment, clock: Option<ClockId>) -> Option<ServerTime> {
        let clocks = self.clocks.lock();
        let latest = clocks.by_id.get(&clock.or(clocks.last)?)?.latest;
        let at = latest.at + (local_micros(now) - latest.received).max(0);
        Some(ServerTime::from_micros(u64::try_from(at).ok()?))
    }

    /// The deliver-before of an acquire that is sent now. Without an id, the clock is that of the last reply.
    pub(crate) fn deliver_before(
        &self,
        now: Moment,
        clock: Option<ClockId>,
        call_timeout: Duration,
    ) -> Option<ServerTime> {
        Some(self.latest_delivery(self.server_now(now, clock)?, call_timeout))
    }

    /// The deliver-before of an acquire at a time of the server: two call timeouts ahead, at most the delivery window. The next
    /// reading may be ahead of this one, so that less time is left, or behind it, so that its window ends earlier.
    pub(crate) fn latest_delivery(&self, now: ServerTime, call_timeout: Duration) -> ServerTime {
        let ahead = (call_timeout * 2 + self.error).min(DELIVERY_WINDOW.saturating_sub(self.error));
        now.saturating_add(ahead)
    }

    /// A lower bound of the local moment when a pushed grant was made. The grant has this stamp and
    /// arrived at `received`.
    ///
    /// `None` without a sample of that clock, or if the clock has stepped.
    pub(crate) fn granted_at(&self, stamp: Stamp, received: Moment) -> Option<Moment> {
        let clocks = self.clocks.lock();
        let best = clocks.by_id.get(&stamp.clock)?.best;
        let error = duration_micros(self.error);
        let granted = best.earliest_local(i128::from(stamp.at.as_micros()));
        let received = local_micros(received);
        if granted > received + allowance_micros((received - best.sent).abs()) + error {
            return None;
        }
        let granted = u64::try_from(granted.min(received)).ok()?;
        Some(Moment::from_origin(Duration::from_micros(granted)))
    }
}

impl Clocks {
    /// Compares a sample with those of all other clocks. Returns the greatest difference that is to be
    /// reported.
    fn compare(&mut self, id: ClockId, sample: &Sample, error: i128) -> Option<Apart> {
        let now = sample.received;
        if self.by_id.len() == 1 || !self.by_id.get(&id)?.may_report(now) {
            return None;
        }
        let differ = self.by_id.iter().filter(|(other, clock)| {
            let agree = clock.agree_with(sample, error);
            let is_comparable = clock.best.sent >= self.compared_from;
            **other != id && is_comparable && !agree && clock.may_report(now)
        });
        let differences = differ.map(|(other, clock)| (*other, sample.ahead_of(&clock.best)));
        let (other, ahead) = differences.max_by_key(|(_, ahead)| ahead.abs())?;
        for reported in [id, other] {
            self.by_id.get_mut(&reported)?.reported = Some(now);
        }
        let (ahead_id, behind) = if ahead > 0 { (id, other) } else { (other, id) };
        let by = u64::try_from(ahead.abs()).unwrap_or(u64::MAX);
        Some(Apart {
            ahead: ahead_id,
            behind,
            by: Duration::from_micros(by),
        })
    }

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
    use crate::bounds::{MAX_CALL_TIMEOUT, MAX_CLOCK_ERROR, MIN_CALL_TIMEOUT};
    use crate::client::state::holder::tests::at;

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
        clock.observe(at(100), stamp(1, 50_000), at(140));
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
            let found = clock.observe(at(id), stamp(id, 90_000 + 5_000 * id), at(id));
            assert!(!found.stepped, "another clock is no step");
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

    /// Whatever the next reading is, a request that arrives within a call timeout is in its window.
    #[test]
    fn deliver_before_allows_for_the_error_of_the_clock() {
        let [second, most] = [Duration::from_secs(1), MAX_CLOCK_ERROR];
        let now = ServerTime::from_micros(50_000_000);
        for call in [MIN_CALL_TIMEOUT, second, MAX_CALL_TIMEOUT] {
            for error in [Duration::ZERO, second / 2, most] {
                let until = ServerClock::new(error).latest_delivery(now, call);
                let ahead = now.saturating_add(call + error);
                assert!(ahead <= until, "{call:?} {error:?}");
                let behind = until.saturating_since(now) + error;
                assert!(behind <= DELIVERY_WINDOW, "{call:?} {error:?}");
            }
        }
        let until = ServerClock::new(second / 2).latest_delivery(now, second);
        assert_eq!(until.as_micros(), 52_500_000);
    }

    /// A reply to an earlier request arrives last, and shows that the clock has stepped in between.
    #[test]
    fn late_sample_replaces_no_newer_one() {
        let clock = ServerClock::default();
        let server = ClockId::new(1);
        clock.observe(at(120), stamp(1, 50_120), at(121));
        let late = clock.observe(at(90), stamp(1, 49_090), at(130));
        assert!(late.stepped);
        assert!(
            clock.has_stepped(server, at(120)),
            "either may be the old one"
        );
        assert!(!clock.has_stepped(server, at(121)));
        // Neither a late one that agrees nor one that doesn't makes the next one a step.
        for (sent, shown) in [(95, 50_095), (100, 49_100)] {
            let late = clock.observe(at(sent), stamp(1, shown), at(131));
            assert!(!late.stepped, "{sent}");
        }
        assert!(!clock.observe(at(140), stamp(1, 50_140), at(141)).stepped);
    }

    #[test]
    fn unused_clocks_are_forgotten() {
        let clock = ServerClock::default();
        let seen = |ms, id| {
            let found = clock.observe(at(ms), stamp(id, ms), at(ms));
            assert_eq!(found, Findings::default());
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
        assert_eq!(clock.clocks.lock().by_id.len(), MAX_CLOCKS);
        assert!(!known(hour + 9, 2) && known(hour + 9, 1_000));
    }

    #[test]
    fn step_is_noticed_in_both_directions_but_not_in_a_slow_reply() {
        let clock = ServerClock::default();
        clock.observe(at(0), stamp(1, 1_000), at(2));
        // Both clocks advanced by 100 ms, but the reply took 900 ms.
        let stepped = |sent, ms, received| {
            let found = clock.observe(at(sent), stamp(1, ms), at(received));
            found.stepped
        };
        assert!(!stepped(100, 1_100, 1_000));
        assert!(stepped(1_100, 7_000, 1_101));
        assert!(!stepped(1_200, 7_100, 1_201), "no further step");
        assert!(stepped(1_300, 5_000, 1_301));
    }

    #[test]
    fn difference_within_the_error_of_the_clock_is_no_step() {
        let clock = ServerClock::new(Duration::from_millis(400));
        let stepped = |sent, ms| clock.observe(at(sent), stamp(1, ms), at(sent)).stepped;
        assert!(!stepped(0, 1_000));
        assert!(!stepped(100, 1_500));
        assert!(!stepped(200, 1_200));
        // Such a push is no step either. It counts from its receipt at the latest.
        assert_eq!(clock.granted_at(stamp(1, 1_680), at(290)), Some(at(290)));
        assert_eq!(clock.granted_at(stamp(1, 1_780), at(290)), None);
        // Two servers whose clocks differ so much aren't reported.
        assert_eq!(clock.observe(at(200), stamp(2, 800), at(200)).apart, None);
        assert!(stepped(300, 1_715));
    }

    #[test]
    fn slow_call_hides_no_step() {
        let clock = ServerClock::default();
        clock.observe(at(0), stamp(1, 1_000), at(1));
        assert!(!clock.observe(at(1), stamp(1, 1_450), at(900)).stepped);
        // A step by 300 ms agrees with the slow sample, but not with the fast one.
        assert!(clock.observe(at(901), stamp(1, 2_200), at(902)).stepped);
    }

    #[test]
    fn pushed_grant_counts_from_the_best_sample_but_not_after_its_receipt() {
        let clock = ServerClock::default();
        assert_eq!(clock.granted_at(stamp(1, 0), at(0)), None);
        // The first request took 5 ms to arrive, the second 1 ms, so the second is better.
        clock.observe(at(0), stamp(1, 1_005), at(6));
        clock.observe(at(100), stamp(1, 1_101), at(103));
        // 100 ms after the sample, less the drift of a fast clock.
        assert_eq!(clock.granted_at(stamp(1, 1_201), at(260)), Some(at(199)));
        // The server's clock stepped forward after the sample.
        assert_eq!(clock.granted_at(stamp(1, 9_000), at(260)), None);
        // A stamp slightly ahead is within the allowance and counts from the receipt.
        assert_eq!(clock.granted_at(stamp(1, 1_264), at(260)), Some(at(260)));
    }

    /// The clocks with these ids, if a sample shows that the first is ahead.
    fn apart(ahead: u64, behind: u64, by: Duration) -> Option<Apart> {
        Some(Apart {
            ahead: ClockId::new(ahead),
            behind: ClockId::new(behind),
            by,
        })
    }

    #[test]
    fn clocks_that_differ_are_reported_once_an_hour() {
        let clock = ServerClock::default();
        let seen = |id, ms, offset| {
            let found = clock.observe(at(ms), stamp(id, ms + offset), at(ms));
            assert!(!found.stepped);
            found.apart
        };
        let sixty = Duration::from_secs(60);
        assert_eq!(seen(1, 0, 100_000), None);
        assert_eq!(seen(2, 12, 160_000), apart(2, 1, sixty));
        for ms in (100..3_600_000).step_by(4_000) {
            assert_eq!(seen(1, ms, 100_000), None);
            assert_eq!(seen(2, ms, 160_000), None);
        }
        assert_eq!(seen(1, 3_600_012, 100_000), apart(2, 1, sixty));
        // Both of them were just reported.
        assert_eq!(seen(3, 3_600_013, 40_000), None);
    }

    #[test]
    fn greatest_difference_is_reported() {
        let clock = ServerClock::default();
        for (id, offset) in [(1, 1_003), (2, 1_005), (3, 1_000), (4, 1_009)] {
            let found = clock.observe(at(5), stamp(id, 5 + offset), at(5));
            assert_eq!(found.apart, None, "clock {id} is within the allowance");
        }
        let found = clock.observe(at(6), stamp(5, 6), at(6));
        assert_eq!(found.apart, apart(4, 5, Duration::from_millis(1_009)));
        let found = clock.observe(at(7), stamp(6, 7), at(7));
        assert_eq!(found.apart, apart(2, 6, Duration::from_millis(1_005)));
    }

    #[test]
    fn jump_of_the_own_clock_is_no_difference() {
        let clock = ServerClock::default();
        let seen = |id, ms, shown| clock.observe(at(ms), stamp(id, shown), at(ms));
        assert_eq!(seen(1, 0, 100_000), Findings::default());
        assert_eq!(seen(2, 1, 100_001), Findings::default());
        // The client's clock jumps by an hour. Each server seems to have stepped.
        for (id, shown) in [(1, 100_010), (2, 100_020), (1, 100_030), (2, 100_040)] {
            assert_eq!(seen(id, 3_600_000 + shown - 100_000, shown).apart, None);
        }
        // One of them steps in fact.
        assert!(seen(2, 3_600_050, 160_050).stepped);
        let sixty = Duration::from_secs(60);
        assert_eq!(seen(1, 3_600_060, 100_060).apart, apart(2, 1, sixty));
    }

    #[test]
    fn difference_must_be_certain() {
        // Each case: when the stamp of the second clock came, how far it is ahead of the first clock at
        // that time, and how long its reply took. The first clock's came at 0.
        for (ms, ahead, took, differs) in [
            (1, 10, 0, false),
            (1, 11, 0, true),
            // The clock may have been read at any time since the request.
            (500, -300, 400, false),
            (500, -500, 400, true),
            // Both clocks may have drifted by 1 % since.
            (60_000, 600, 0, false),
            (60_000, 611, 0, true),
        ] {
            let clock = ServerClock::default();
            clock.observe(at(0), stamp(1, 100_000), at(0));
            let shown = (100_000_u64 + ms).saturating_add_signed(ahead);
            let found = clock.observe(at(ms - took), stamp(2, shown), at(ms));
            assert_eq!(found.apart.is_some(), differs, "{ahead} ms at {ms} ms");
        }
    }
}

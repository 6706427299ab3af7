//! Decides what happens with an occurrence. It depends only on the record, the wish and the server's time.

use std::time::Duration;

use crate::client::once::record::{Last, Record};
use crate::id::Label;
use crate::time::{FireTime, ServerTime};

/// The pause before the second attempt. Each further pause is twice as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(30);
const LONGEST_PAUSE: Duration = Duration::from_secs(15 * 60);
/// By how much the clocks of servers may differ that a lock can move between, with a large margin.
const CLOCKS_DIFFER: Duration = Duration::from_secs(1);

/// Which occurrence a caller wants to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// The occurrence with this fire time.
    At(FireTime),
    /// One that begins now, unless another one was done less than this long ago.
    NotWithin(Duration),
}

/// What a caller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) when: When,
    /// From a fire time until the last moment to start its occurrence.
    pub(super) window: Duration,
    /// How far ahead of the server's clock the fire time may be.
    pub(super) max_ahead: Duration,
    pub(super) max_attempts: u32,
    /// The last moment to start in this call: the end of the window of the occurrence that it met first. Else a body
    /// that takes longer than the window would begin one occurrence after the other, each time
    /// without a pause, as the first attempt.
    pub(super) until: Option<ServerTime>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Run the body. It is the attempt with this number, from 1.
    Start {
        fire: FireTime,
        attempt: u32,
    },
    Wait(ServerTime),
    Done {
        fire: FireTime,
        at: ServerTime,
    },
    Missed,
    GaveUp {
        attempts: u32,
    },
    /// A time that is too far ahead of the server's clock: the one that was asked for, or one of the record.
    Ahead {
        fire: FireTime,
    },
}

impl Wish {
    /// The same in a call that meets this record first.
    pub(super) fn of_a_call(self, record: &Record, now: ServerTime) -> Self {
        let met = self.occurrence(record, now).ok();
        let until = met.map(|fire| fire.after(self.window));
        Self { until, ..self }
    }

    pub(super) fn decide(&self, record: &Record, now: ServerTime) -> Decision {
        if let Some(fire) = self.ahead(record, now) {
            return Decision::Ahead { fire };
        }
        let fire = match self.occurrence(record, now) {
            Ok(fire) => fire,
            Err(decision) => return decision,
        };
        if self.when == When::At(fire) && fire.server_time() > now {
            return Decision::Wait(fire.server_time());
        }
        let end = self.until.unwrap_or_else(|| fire.after(self.window));
        if now >= end || record.tried.is_some_and(|tried| tried > fire) {
            return Decision::Missed;
        }
        let attempts = match record.tried == Some(fire) {
            true => record.attempts,
            false => 0,
        };
        if attempts >= self.max_attempts {
            return Decision::GaveUp { attempts };
        }
        let next = record.next_attempt();
        // A clock that was stepped back must not keep the job waiting longer than the pause. But the server after
        // a failover may be a little behind the one before.
        let stepped_back = record.tried_at > now.saturating_add(CLOCKS_DIFFER);
        if attempts > 0 && now < next && !stepped_back {
            return Decision::Wait(next.min(end));
        }
        let attempt = attempts + 1;
        Decision::Start { fire, attempt }
    }

    /// What an operator sees of an attempt that begins.
    pub(super) fn last(&self, by: &Label) -> Last {
        Last {
            by: by.clone(),
            failed: false,
            exit_status: None,
            max_attempts: self.max_attempts,
            window: self.window,
            apart: match self.when {
                When::At(_) => None,
                When::NotWithin(apart) => Some(apart),
            },
        }
    }

    /// The time that is too far ahead of the server's clock, if there is one. The clock was wrong when it was recorded.
    /// Without this check, it would silence the job until that time: later occurrences would be done, or missed
    /// because another one was tried (decision 0061).
    fn ahead(&self, record: &Record, now: ServerTime) -> Option<FireTime> {
        let (asked, done_at, bearable) = match self.when {
            When::At(fire) => (Some(fire), None, self.window),
            When::NotWithin(apart) => {
                let done_at = record.done_at.map(FireTime::of);
                (None, done_at, self.window.max(apart))
            }
        };
        let beyond = |limit| {
            let latest = now.saturating_add(limit);
            move |fire: &FireTime| fire.server_time() > latest
        };
        let recorded = [record.done, record.tried, done_at]
            .into_iter()
            .flatten()
            .max();
        let recorded = recorded.filter(beyond(bearable));
        recorded.or(asked.filter(beyond(self.max_ahead)))
    }

    /// The occurrence that is wanted. If it is done, the decision that says so.
    fn occurrence(&self, record: &Record, now: ServerTime) -> Result<FireTime, Decision> {
        let done_at = record.done_at.unwrap_or_default();
        match self.when {
            When::At(fire) => match record.done {
                Some(done) if fire <= done => Err(Decision::Done {
                    fire: done,
                    at: done_at,
                }),
                _ => Ok(fire),
            },
            When::NotWithin(apart) => {
                if let (Some(fire), Some(at)) = (record.done, record.done_at)
                    && now < at.saturating_add(apart)
                {
                    return Err(Decision::Done { fire, at });
                }
                // One that was tried, and is neither done nor too late, goes on.
                let open = record
                    .tried
                    .filter(|tried| record.done < Some(*tried) && now < tried.after(self.window));
                let new = FireTime::of(now).max(record.tried.unwrap_or_default());
                Ok(open.unwrap_or(new))
            }
        }
    }
}

impl Record {
    /// When the occurrence that was tried last may be tried again.
    pub(super) fn next_attempt(&self) -> ServerTime {
        self.tried_at.saturating_add(pause_after(self.attempts))
    }
}

fn pause_after(attempts: u32) -> Duration {
    let doublings = attempts.saturating_sub(1).min(16);
    (FIRST_PAUSE * (1 << doublings)).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::MAX_FIRE_AHEAD;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn at(secs: u64) -> ServerTime {
        ServerTime::from_micros(secs * 1_000_000)
    }

    fn fire(secs: u64) -> FireTime {
        FireTime::from_millis(secs * 1_000)
    }

    fn start(fire_secs: u64, attempt: u32) -> Decision {
        let fire = fire(fire_secs);
        Decision::Start { fire, attempt }
    }

    fn wish(when: When) -> Wish {
        Wish {
            when,
            window: HOUR,
            max_ahead: MAX_FIRE_AHEAD,
            max_attempts: 3,
            until: None,
        }
    }

    fn done(up_to: u64, at_secs: u64) -> Record {
        Record {
            done: Some(fire(up_to)),
            done_at: Some(at(at_secs)),
            tried: Some(fire(up_to)),
            tried_at: at(at_secs),
            attempts: 1,
            last: None,
        }
    }

    /// The record of a first attempt that has failed.
    fn failed(fire_secs: u64, at_secs: u64) -> Record {
        Record {
            tried: Some(fire(fire_secs)),
            tried_at: at(at_secs),
            attempts: 1,
            ..Record::default()
        }
    }

    #[test]
    fn occurrence_is_done_up_to_its_fire_time() {
        let record = done(10_000, 10_001);
        let decide = |of| wish(When::At(fire(of))).decide(&record, at(12_000));
        for old in [8_000, 9_999, 10_000] {
            let (fire, at) = (fire(10_000), at(10_001));
            assert_eq!(decide(old), Decision::Done { fire, at });
        }
        assert_eq!(decide(10_001), start(10_001, 1));
    }

    #[test]
    fn window_is_open_from_the_fire_time_on() {
        let decide = |now| wish(When::At(fire(10_000))).decide(&Record::default(), now);
        assert_eq!(decide(at(9_999)), Decision::Wait(at(10_000)));
        assert_eq!(decide(at(10_000)), start(10_000, 1));
        let last = ServerTime::from_micros(13_600_000_000 - 1);
        assert_eq!(decide(last), start(10_000, 1));
        assert_eq!(decide(at(13_600)), Decision::Missed);
        // A nightly job waits for a day, and a yearly one for a year.
        assert_eq!(decide(at(0)), Decision::Wait(at(10_000)));
        let in_micros = fire(1_750_000_000_000);
        let wrong = wish(When::At(in_micros)).decide(&Record::default(), at(10_000));
        assert_eq!(wrong, Decision::Ahead { fire: in_micros });
    }

    #[test]
    fn attempts_are_counted_with_growing_pauses() {
        let mut record = failed(10_000, 10_000);
        let wish = wish(When::At(fire(10_000)));
        for (attempts, pause) in [(1, 30), (2, 60)] {
            record.attempts = attempts;
            let next = at(10_000 + pause);
            assert_eq!(wish.decide(&record, at(10_000)), Decision::Wait(next));
            assert_eq!(wish.decide(&record, next), start(10_000, attempts + 1));
        }
        record.attempts = 3;
        let gave_up = Decision::GaveUp { attempts: 3 };
        assert_eq!(wish.decide(&record, at(10_500)), gave_up);
        // The next occurrence starts again, and the one before it is over.
        record.tried = Some(fire(10_100));
        assert_eq!(wish.decide(&record, at(10_500)), Decision::Missed);
        assert_eq!(pause_after(9), LONGEST_PAUSE);
    }

    /// Otherwise a job with a short period would miss its next occurrences after an error.
    #[test]
    fn pause_ends_with_the_window() {
        let record = failed(10_000, 10_001);
        for when in [When::At(fire(10_000)), When::NotWithin(HOUR)] {
            let wish = Wish {
                window: Duration::from_secs(10),
                ..wish(when)
            };
            assert_eq!(wish.decide(&record, at(10_002)), Decision::Wait(at(10_010)));
        }
    }

    #[test]
    fn record_too_far_ahead_is_an_error() {
        let failed = Record {
            done: Some(fire(9_000)),
            done_at: Some(at(9_001)),
            ..failed(50_000, 50_000)
        };
        let ahead = Decision::Ahead { fire: fire(50_000) };
        for record in [done(50_000, 50_000), failed] {
            for when in [When::At(fire(10_000)), When::NotWithin(HOUR)] {
                assert_eq!(wish(when).decide(&record, at(10_000)), ahead);
            }
        }
        // The clock was stepped while the body ran.
        let stepped = done(9_999, 50_000);
        assert_eq!(
            wish(When::NotWithin(HOUR)).decide(&stepped, at(10_000)),
            ahead
        );
        let next = wish(When::At(fire(10_000))).decide(&stepped, at(10_000));
        assert_eq!(next, start(10_000, 1));
    }

    /// A clock that was a little ahead: the failed occurrence goes on, and nobody waits until its fire time.
    #[test]
    fn failed_attempt_a_little_ahead_of_the_clock_goes_on() {
        let record = failed(11_000, 11_000);
        let decided = wish(When::NotWithin(HOUR)).decide(&record, at(10_000));
        assert_eq!(decided, start(11_000, 2));
    }

    /// Without this, the next attempt would follow a failover at once.
    #[test]
    fn pause_bears_a_server_that_is_a_little_behind() {
        let record = Record {
            tried_at: at(10_001).saturating_add(Duration::from_millis(10)),
            ..failed(10_000, 10_001)
        };
        let decided = wish(When::At(fire(10_000))).decide(&record, at(10_001));
        assert!(matches!(decided, Decision::Wait(_)), "{decided:?}");
    }

    #[test]
    fn not_within_counts_from_the_last_success() {
        let wish = wish(When::NotWithin(HOUR));
        let record = done(9_000, 10_000);
        let last = Decision::Done {
            fire: fire(9_000),
            at: at(10_000),
        };
        let now = ServerTime::from_micros(13_600_000_000 - 1);
        assert_eq!(wish.decide(&record, now), last);
        assert_eq!(wish.decide(&record, at(13_600)), start(13_600, 1));
        // A failed attempt goes on under its fire time, until the window has passed.
        let failed = Record {
            tried: Some(fire(13_600)),
            tried_at: at(13_600),
            attempts: 1,
            ..record
        };
        assert_eq!(wish.decide(&failed, at(13_601)), Decision::Wait(at(13_630)));
        assert_eq!(wish.decide(&failed, at(13_640)), start(13_600, 2));
        assert_eq!(wish.decide(&failed, at(17_200)), start(17_200, 1));
        // In another call: one that has met the failed one, or waited for it, starts no other.
        let waiting = wish.of_a_call(&failed, at(13_601));
        assert_eq!(waiting.decide(&failed, at(13_640)), start(13_600, 2));
        assert_eq!(waiting.decide(&failed, at(17_200)), Decision::Missed);
        // It still says what was done meanwhile.
        let done = waiting.decide(&done(13_600, 17_100), at(17_200));
        assert!(matches!(done, Decision::Done { .. }), "{done:?}");
    }

    /// How long an occurrence may start is one thing, how long it is done another.
    #[test]
    fn window_to_start_in_does_not_shorten_not_within() {
        let wish = Wish {
            window: Duration::from_secs(10),
            ..wish(When::NotWithin(HOUR))
        };
        let record = done(9_000, 10_000);
        let almost = ServerTime::from_micros(13_600_000_000 - 1);
        let decided = wish.decide(&record, almost);
        assert!(matches!(decided, Decision::Done { .. }), "{decided:?}");
        assert_eq!(wish.decide(&record, at(13_600)), start(13_600, 1));
        // The clock may be as far behind a success as without that window.
        let decided = wish.decide(&record, at(8_000));
        assert!(matches!(decided, Decision::Done { .. }), "{decided:?}");
        let failed = failed(10_000, 10_001);
        let call = wish.of_a_call(&failed, at(10_001));
        assert_eq!(call.decide(&failed, at(10_009)), Decision::Wait(at(10_010)));
        assert_eq!(call.decide(&failed, at(10_010)), Decision::Missed);
    }
}

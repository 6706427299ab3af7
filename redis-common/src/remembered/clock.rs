//! What the client knows of the server's clock: a time that it has passed.

use std::time::Duration;

use leasehold_api::{ClockId, Moment, ServerTime, Stamp, bounds};

/// The server's clock is estimated for this time after a stamp.
pub(super) const CLOCK_LASTS: Duration = Duration::from_secs(10);

#[derive(Clone, Copy)]
pub(super) struct Exchange {
    pub(super) sent: Moment,
    pub(super) received: Moment,
}

/// A lower bound of the server's clock.
#[derive(Clone, Copy)]
pub(super) struct Estimate {
    pub(super) clock: ClockId,
    pub(super) at: ServerTime,
    /// What the clock shows if it runs like the local one.
    pub(super) likely: ServerTime,
    /// By how much the bound may be behind.
    pub(super) lag: Duration,
}

/// A stamp, and the call that brought it.
#[derive(Clone, Copy)]
pub(super) struct Sample {
    pub(super) stamp: Stamp,
    pub(super) exchange: Exchange,
}

impl Sample {
    /// The server's clock, if it was read lately.
    pub(super) fn estimate(&self, now: Moment) -> Option<Estimate> {
        (!self.is_old(now)).then(|| Estimate {
            clock: self.stamp.clock,
            at: self.lower_bound(now),
            likely: self
                .stamp
                .at
                .saturating_add(now.saturating_since(self.exchange.received)),
            lag: self.lag(now),
        })
    }

    /// By how much the clocks may have drifted apart since.
    fn drift(&self, now: Moment) -> Duration {
        now.saturating_since(self.exchange.received) / bounds::DRIFT_PARTS + bounds::DRIFT_FLOOR
    }

    /// By how much the lower bound may be behind.
    fn lag(&self, now: Moment) -> Duration {
        let Exchange { sent, received } = self.exchange;
        // The server's clock may be ahead by the drift that the bound has taken off, and by as much again.
        self.drift(now) * 2 + received.saturating_since(sent)
    }

    /// A time that the server's clock has passed at `now`.
    fn lower_bound(&self, now: Moment) -> ServerTime {
        let elapsed = now.saturating_since(self.exchange.received);
        let at = Duration::from_micros(self.stamp.at.as_micros()) + elapsed;
        let micros = at.saturating_sub(self.drift(now)).as_micros();
        ServerTime::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)).max(self.stamp.at)
    }

    /// Whether a later stamp shows that the clock is another one, or was set back in between.
    pub(super) fn is_contradicted_by(&self, later: &Self) -> bool {
        let sent = later.exchange.sent;
        let set_back = self.lower_bound(sent).saturating_since(later.stamp.at);
        let was_set_back = sent >= self.exchange.received && set_back > bounds::DRIFT_FLOOR;
        self.stamp.clock != later.stamp.clock || was_set_back
    }

    /// The one of two that is the better lower bound, or the new one if this one is old.
    pub(super) fn or_better(self, new: Self) -> Self {
        let now = new.exchange.received;
        let is_better = self.is_old(now) || self.lower_bound(now) <= new.lower_bound(now);
        if is_better { new } else { self }
    }

    fn is_old(&self, now: Moment) -> bool {
        now.saturating_since(self.exchange.received) > CLOCK_LASTS
    }
}

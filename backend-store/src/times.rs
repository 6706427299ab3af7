//! The times of one step.

use std::borrow::Cow;

use leasehold_api::machine::Command;
use leasehold_api::{ClockId, Moment, ServerTime, Stamp};

/// The clock of the replies of a store without a clock: that of the client's own runtime.
const OWN: ClockId = ClockId::new(0);
/// The clock of its messages. No reply has it, so a client can't compute how long a grant lasts that comes in a message: it
/// renews the grant first.
const UNKNOWN: ClockId = ClockId::new(1);

/// The time of a step, and what clients are told. These are the same, unless the store has no clock. Then each row
/// has its own time (see [`Observed`](crate::Observed)), which would confuse clients that compare stamps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// The time at which the step is executed.
    pub(crate) step: Stamp,
    /// The stamp of the replies. The times in a request count from it.
    pub(crate) reply: Stamp,
    /// The stamp of the messages to this client.
    pub(crate) message: Stamp,
}

impl Times {
    /// A step on a store with a clock.
    pub(crate) const fn of_clock(stamp: Stamp) -> Self {
        Self {
            step: stamp,
            reply: stamp,
            message: stamp,
        }
    }

    /// A step at the time of a row, which this client received before `now`.
    pub(crate) fn of_row(stamp: Stamp, now: Moment) -> Self {
        Self {
            step: stamp,
            reply: own_stamp(now),
            message: unknown_stamp(stamp.at),
        }
    }

    /// Whether the store has no clock.
    pub(crate) fn is_of_row(&self) -> bool {
        self.step != self.reply
    }

    /// The command with its times as times of the step.
    pub(crate) fn convert<'a>(&self, command: &'a Command) -> Cow<'a, Command> {
        let Command::Acquire(acquire) = command else {
            return Cow::Borrowed(command);
        };
        if !self.is_of_row() {
            return Cow::Borrowed(command);
        }
        let mut acquire = acquire.clone();
        acquire.deliver_before = self.convert_time(acquire.deliver_before);
        if let Some(wait) = &mut acquire.wait {
            wait.wait_until = wait.wait_until.map(|until| self.convert_time(until));
        }
        Cow::Owned(Command::Acquire(acquire))
    }

    fn convert_time(&self, at: ServerTime) -> ServerTime {
        let [at, reply, step] =
            [at, self.reply.at, self.step.at].map(|it| i128::from(it.as_micros()));
        let micros = (at - reply + step).max(0);
        ServerTime::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}

/// The stamp of a reply that has no row.
pub(crate) fn own_stamp(now: Moment) -> Stamp {
    let at = ServerTime::default().saturating_add(now.since_origin());
    Stamp { clock: OWN, at }
}

/// A stamp that clients compare with nothing.
pub(crate) const fn unknown_stamp(at: ServerTime) -> Stamp {
    Stamp { clock: UNKNOWN, at }
}

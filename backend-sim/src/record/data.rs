//! The data that a server has or lacks after a restart or a failover.

use std::fmt;
use std::time::Duration;

/// What a server has after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// All that it had.
    Kept,
    /// Nothing.
    Lost,
    /// All but what was written last, as with a log that is flushed now and then.
    AllBut(Tail),
}

/// What was written last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// By so many commands, as far back as the
    /// [journal](crate::SimOptions::with_journal) goes.
    Commands(usize),
    /// In so much time, as far back as the journal goes.
    Last(Duration),
}

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Commands(1) => write!(f, "the last command"),
            Self::Commands(n) => write!(f, "the last {n} commands"),
            Self::Last(time) => write!(f, "the last {time:?}"),
        }
    }
}

//! The data that a server keeps or loses in a restart or a failover.

use std::fmt;
use std::time::Duration;

/// What a server keeps in a [restart](crate::SimServer::restart).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// All data.
    Kept,
    /// No data.
    Lost,
    /// All data except the latest writes, as with a log that is flushed at intervals. Needs a
    /// [journal](crate::SimOptions::journal).
    AllBut(Tail),
}

/// The latest writes of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// The writes of the last commands, at most as many as the
    /// [journal](crate::SimOptions::journal) has.
    Commands(usize),
    /// The writes of the last commands in this much virtual time, at most as many as the journal
    /// has.
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

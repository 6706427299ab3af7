//! Watching a run from outside of it, on the true timeline.

use std::time::Duration;

use leasehold_api::machine::{Command, Message, State};
use leasehold_api::{Key, Stamp};

use crate::record::{Answer, Event};

/// Sees all that happens in a simulation, at the moment when it happens, and for less than a log
/// costs.
///
/// It is called while the simulation is locked: it must not use the server or its clients.
pub trait Observer: Send {
    /// The server is about to execute a command; this is under its key: `None` if nothing is, or a
    /// foreign value. [`executed`](Self::executed) follows.
    fn executes(&mut self, key: &Key, state: Option<&State>) {
        let _ = (key, state);
    }

    /// The server executed a command.
    fn executed(&mut self, execution: &Execution<'_>);

    /// Anything else happened; to the client of this index, if to one. Clients are numbered in the
    /// order in which they were made.
    fn event(&mut self, at: Duration, client: Option<usize>, event: &Event) {
        let _ = (at, client, event);
    }
}

/// One command that a server executed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Execution<'a> {
    /// When the client sent it, since the start of the simulation.
    pub sent: Duration,
    /// When it was executed.
    pub at: Duration,
    /// Whose command it was: clients are numbered in the order in which they were made.
    pub client: usize,
    /// On which key.
    pub key: &'a Key,
    /// What was asked.
    pub command: &'a Command,
    /// When, and on which server's clock.
    pub stamp: Stamp,
    /// What was answered.
    pub answer: &'a Answer,
    /// Who was told what.
    pub messages: &'a [Message],
    /// How many commands the call carried, this one included.
    pub together: usize,
    /// Whether this was the second delivery of a duplicated request.
    pub again: bool,
    /// What is left under the key; `None` if nothing is, or a foreign value.
    pub state: Option<&'a State>,
}

//! What happened in a simulation, in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use leasehold_api::machine::{self, Command, Settings};
use leasehold_api::{Key, Notice, SessionId, Stamp};

use crate::faults::Fault;
use crate::store::{Data, Store};

/// What the server answered to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What the state machine said.
    Reply(machine::Reply),
    /// Something else lives under the key: its type.
    Foreign(String),
}

/// What a call to the server was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is the backend method of its name")]
pub enum Call {
    Hello,
    Listen,
    Acquire,
    Poll,
    Renew,
    End,
    Convert,
    Inspect,
    ForceRelease,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When, since the start of the simulation.
    pub at: Duration,
    /// To which client, if to one.
    pub client: Option<Arc<str>>,
    /// What.
    pub event: Event,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The server read its clock for the client.
    Hello {
        /// What it showed.
        stamp: Stamp,
    },
    /// The server executed a command of the client.
    Executed {
        /// On which key.
        key: Key,
        /// What was asked.
        command: Box<Command>,
        /// When, on the server's clock.
        stamp: Stamp,
        /// What was answered.
        answer: Answer,
        /// Whether this was the second delivery of a duplicated request.
        again: bool,
    },
    /// A subscription to a session's channel stands at the server.
    Subscribed {
        /// Whose channel.
        session: SessionId,
    },
    /// One is gone.
    Unsubscribed {
        /// Whose channel.
        session: SessionId,
    },
    /// The client received a notice.
    Notified {
        /// Which.
        notice: Notice,
    },
    /// A fault that was injected came to pass.
    Fault {
        /// Which.
        fault: Fault,
        /// In which call; `None` for one of a push.
        call: Option<Call>,
        /// On which key.
        key: Option<Key>,
    },
    /// A call ended without an answer of the state machine.
    Failed {
        /// Which.
        call: Call,
        /// The error.
        error: String,
    },
    /// A request reached no server: it was stopped, or not the one that the request was sent to.
    Undelivered {
        /// Which.
        call: Call,
    },
    /// Something was done to the client.
    Client(ClientEvent),
    /// Something was done to the server.
    Server(ServerEvent),
}

/// What a test does to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is the method of its name")]
pub enum ClientEvent {
    Paused,
    Resumed,
    Killed,
    ConnectionDropped,
    Isolated,
    Reachable,
    Closed,
}

/// What a test does to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerEvent {
    /// Its process ended.
    Stopped,
    /// Another process started.
    Started {
        /// With what data.
        data: Data,
    },
    /// Its clock was set.
    ClockStepped {
        /// Which way.
        forward: bool,
        /// How far.
        by: Duration,
    },
    /// A value of another program was written under a key.
    ForeignPlanted {
        /// Where.
        key: Key,
        /// Its type.
        found: String,
    },
    /// Somebody deleted a key.
    KeyRemoved {
        /// Which.
        key: Key,
    },
}

/// The latest entries, oldest first.
#[derive(Debug)]
pub(crate) struct Log {
    entries: VecDeque<Entry>,
    limit: usize,
    dropped: u64,
}

impl Log {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            limit,
            dropped: 0,
        }
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.entries.push_back(entry);
        if self.entries.len() > self.limit {
            self.entries.pop_front();
            self.dropped += 1;
        }
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// How many entries were dropped for the limit.
    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// Executes the commands of a complete log on a fresh server, and compares the answers.
///
/// # Errors
/// The first entry whose replay answered otherwise, and that answer.
pub fn replay(settings: Settings, entries: &[Entry]) -> Result<(), Box<(Entry, Answer)>> {
    let mut store = Store::new(settings);
    for entry in entries {
        match &entry.event {
            Event::Executed {
                key,
                command,
                answer,
                stamp,
                ..
            } => {
                let executed = store.execute(entry.at, key, command);
                if executed.answer != *answer || executed.stamp != *stamp {
                    return Err(Box::new((entry.clone(), executed.answer)));
                }
            }
            Event::Subscribed { session } => store.subscribe(*session),
            Event::Unsubscribed { session } => store.unsubscribe(*session),
            Event::Server(event) => store.apply(event),
            _ => {}
        }
    }
    Ok(())
}

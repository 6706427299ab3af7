//! What happened in a simulation, in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use leasehold_api::machine::{self, Command, Settings};
use leasehold_api::{ClockId, Key, Notice, SessionId, Stamp};

use crate::faults::Fault;
use crate::servers::Servers;
use crate::store::{Data, Tail};

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
    /// Number of the [`Message`] that brought it, if one did.
    pub message: Option<u64>,
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
        /// At which server: whose clock.
        clock: ClockId,
    },
    /// One is gone.
    Unsubscribed {
        /// Whose channel.
        session: SessionId,
        /// At which server: whose clock.
        clock: ClockId,
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
    /// What the code under test said about itself.
    Note {
        /// Its words.
        text: String,
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
    ClockRate { ppm: i32 },
    ClockJumped { by: Duration },
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
    /// A replica took its place.
    FailedOver {
        /// What the replica did not have.
        lost: Tail,
    },
    /// A replica became a primary beside it.
    Split {
        /// What the replica did not have.
        lost: Tail,
        /// Clients that the old primary goes on serving.
        staying: Vec<String>,
    },
    /// The old of two primaries gave up.
    Healed,
    /// It publishes nothing any more, and cannot tell who listens.
    PublishRefused,
    /// It publishes again.
    PublishAllowed,
    /// Somebody deleted a key.
    KeyRemoved {
        /// Which.
        key: Key,
    },
}

/// Something that was sent between a client and the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Which: messages are numbered from 0, in the order in which they were sent.
    pub number: u64,
    /// From or to which client.
    pub client: Arc<str>,
    /// What it was.
    pub content: Content,
    /// When it was sent, since the start of the simulation.
    pub sent: Duration,
    /// What became of it.
    pub fate: Fate,
}

/// What a message was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Content {
    /// A request of a client.
    Request {
        /// For what.
        call: Call,
        /// Whether the client's library sent it a second time by itself.
        again: bool,
    },
    /// The server's reply to a request.
    Reply {
        /// For what.
        call: Call,
        /// Number of the request's message.
        to: u64,
    },
    /// What the server pushed to a client that listens.
    Push {
        /// What it says.
        notice: Notice,
        /// Number of the request's message that caused it, if one did.
        cause: Option<u64>,
    },
    /// A client unsubscribes.
    Unlisten,
}

impl Content {
    /// Whether it goes from the client to the server.
    pub const fn is_to_server(&self) -> bool {
        matches!(self, Self::Request { .. } | Self::Unlisten)
    }
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It had not arrived when the log was read.
    UnderWay,
    /// It arrived.
    Arrived(Duration),
    /// It was lost, or reached nobody who wanted it.
    Lost(Duration),
}

/// The latest entries and messages, oldest first.
#[derive(Debug)]
pub(crate) struct Log {
    entries: VecDeque<Entry>,
    messages: VecDeque<Message>,
    limit: usize,
    dropped: u64,
    /// How many messages there have been.
    sent: u64,
}

impl Log {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            messages: VecDeque::new(),
            limit,
            dropped: 0,
            sent: 0,
        }
    }

    pub(crate) const fn is_kept(&self) -> bool {
        self.limit > 0
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.entries.push_back(entry);
        if self.entries.len() > self.limit {
            self.entries.pop_front();
            self.dropped += 1;
        }
    }

    /// Keeps a message that was just sent; returns its number.
    pub(crate) fn sent(&mut self, sent: Duration, client: Arc<str>, content: Content) -> u64 {
        let number = self.sent;
        self.sent += 1;
        self.messages.push_back(Message {
            number,
            client,
            content,
            sent,
            fate: Fate::UnderWay,
        });
        if self.messages.len() > self.limit {
            self.messages.pop_front();
        }
        number
    }

    /// Notes what became of a message.
    pub(crate) fn ended(&mut self, number: u64, fate: Fate) {
        let first = self.messages.front().map_or(self.sent, |m| m.number);
        let index = number
            .checked_sub(first)
            .and_then(|i| usize::try_from(i).ok());
        if let Some(message) = index.and_then(|i| self.messages.get_mut(i)) {
            message.fate = fate;
        }
    }

    pub(crate) fn messages(&self) -> impl ExactSizeIterator<Item = &Message> {
        self.messages.iter()
    }

    pub(crate) fn entries(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.entries.iter()
    }

    /// How many entries were dropped for the limit.
    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// Executes the commands of a complete log on fresh servers, and compares the answers.
///
/// # Errors
/// The first entry whose replay answered otherwise, and that answer.
pub fn replay(settings: Settings, entries: &[Entry]) -> Result<(), Box<(Entry, Answer)>> {
    let mut servers = Servers::new(settings, usize::MAX);
    for entry in entries {
        match &entry.event {
            Event::Executed {
                key,
                command,
                answer,
                stamp,
                ..
            } => {
                let store = servers.by_clock(stamp.clock);
                let executed = store.execute(entry.at, key, command);
                if executed.answer != *answer || executed.stamp != *stamp {
                    return Err(Box::new((entry.clone(), executed.answer)));
                }
            }
            Event::Subscribed { session, clock } => servers.by_clock(*clock).subscribe(*session),
            Event::Unsubscribed { session, clock } => {
                servers.by_clock(*clock).unsubscribe(*session);
            }
            Event::Server(event) => servers.apply(event),
            _ => {}
        }
    }
    Ok(())
}

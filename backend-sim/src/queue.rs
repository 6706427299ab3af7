//! What is going to happen, in virtual time.

use std::collections::BTreeMap;
use std::task::Waker;
use std::time::Duration;

use leasehold_api::machine::Command;
use leasehold_api::{BackendError, Key, Notice, SessionId, Stamp};

use crate::faults::Fault;
use crate::log::{Answer, Call};

/// When something happens: at a time, and among what happens at that time, in an order that is
/// drawn; then in the order of scheduling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct When {
    pub(crate) at: Duration,
    pub(crate) order: u32,
    number: u64,
}

/// Index of a client in its world.
pub(crate) type ClientIndex = usize;

/// What a client sends.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Hello,
    /// Subscribes; names the client's subscription.
    Listen(u64),
    /// One command, or a batch of them.
    Steps(Vec<(Key, Command)>),
}

/// What the server sends back: one answer for each command.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) stamp: Stamp,
    pub(crate) answers: Vec<Answer>,
}

/// A request on its way.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) client: ClientIndex,
    /// The number of the call that waits for the reply.
    pub(crate) number: u64,
    pub(crate) call: Call,
    pub(crate) request: Request,
    /// The server's process that it was sent to.
    pub(crate) process: u64,
    /// What befalls the call.
    pub(crate) fault: Option<Fault>,
    /// Whether this is a second delivery.
    pub(crate) again: bool,
    /// Number of its message in the log.
    pub(crate) message: u64,
}

/// Something that is going to happen.
#[derive(Debug)]
pub(crate) enum Happening {
    /// A timer runs out.
    Timer(u64),
    /// A request reaches the server.
    Arrival(Box<Arrival>),
    /// A reply reaches the client.
    Reply {
        client: ClientIndex,
        number: u64,
        result: Result<Response, BackendError>,
        message: u64,
    },
    /// A push reaches the client, over the connection that it was sent over.
    Push {
        client: ClientIndex,
        connection: u64,
        subscription: u64,
        notice: Notice,
        message: u64,
    },
    /// The end of a subscription reaches the server.
    Unlisten {
        client: ClientIndex,
        session: SessionId,
        process: u64,
        message: u64,
    },
    /// The client's library tries to subscribe again.
    Resubscribe {
        client: ClientIndex,
        connection: u64,
        subscription: u64,
    },
}

/// Everything that is going to happen, and the timers that somebody waits for.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    happenings: BTreeMap<When, Happening>,
    timers: BTreeMap<u64, (When, Option<Waker>)>,
    number: u64,
}

impl Queue {
    pub(crate) fn number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    pub(crate) fn insert(&mut self, at: Duration, order: u32, happening: Happening) {
        let number = self.number();
        let when = When { at, order, number };
        self.happenings.insert(when, happening);
    }

    /// Starts a timer; its number is known as long as it has not run out.
    pub(crate) fn start_timer(&mut self, at: Duration, order: u32) -> u64 {
        let number = self.number();
        let when = When { at, order, number };
        self.happenings.insert(when, Happening::Timer(number));
        self.timers.insert(number, (when, None));
        number
    }

    /// Where to keep the waker of a timer, unless that has run out.
    pub(crate) fn timer(&mut self, number: u64) -> Option<&mut Option<Waker>> {
        self.timers.get_mut(&number).map(|(_, waker)| waker)
    }

    /// Takes a timer away, because it ran out or because nobody waits for it any more.
    pub(crate) fn take_timer(&mut self, number: u64) -> Option<Waker> {
        let (when, waker) = self.timers.remove(&number)?;
        self.happenings.remove(&when);
        waker
    }

    pub(crate) fn next_at(&self) -> Option<Duration> {
        self.happenings.keys().next().map(|when| when.at)
    }

    pub(crate) fn pop_due(&mut self, now: Duration) -> Option<(Duration, Happening)> {
        let first = self.happenings.first_entry()?;
        if first.key().at > now {
            return None;
        }
        let (when, happening) = first.remove_entry();
        Some((when.at, happening))
    }
}

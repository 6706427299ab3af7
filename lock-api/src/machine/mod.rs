//! The specification of a lock: one pure, synchronous state machine.
//!
//! A key has a **capacity** and **holders** that take weight: a mutex has capacity 1; of a
//! reader/writer lock a reader takes 1 and a writer all; a semaphore has n permits. One machine
//! serves all three, with one queue, as tokio builds its `RwLock` on its semaphore. The Redis
//! scripts are a port of this module, and random command sequences played to both must give the
//! same replies and the same messages.
//!
//! # How a step works
//! Every mutating command does the same, in this order:
//!
//! 1. A [`State`] past its own stored end counts as empty.
//! 2. **Settle**: drop holders that have expired, then grant what the policy says to the queue.
//! 3. The command's own work. It decides first and changes afterwards.
//! 4. Settle again, if that freed something.
//!
//! An acquire that comes outside its delivery window, or with an implausible floor, stops before
//! the first of these. An inspection does none of them: it filters by the time it is asked at.
//!
//! # Expiry
//! Expiry is per owner. The state remembers a lower bound of the earliest end: inserting lowers
//! it, and only a scan of all holders raises it. A scan happens when the bound has passed *and*
//! the outcome of the command depends on it; with more than [`SCAN_FREELY`] holders at most every
//! [`SCAN_INTERVAL`]. A command that names an operation always looks at that operation's own end.
//! Expired is `now >= end`.
//!
//! # The queue
//! Places have tickets, in the order of arrival. Settling walks them in ticket order; it drops
//! those past their end as it meets them, skips those marked *unreachable*, and stops at the first that
//! does not fit. Granting a place makes it a **offer**: it ends where the place would have ended,
//! and only a renewal extends it, so that a dead waiter costs no more than its place. A waiter
//! that says it listens but on whose channel nobody does is marked unreachable, at most
//! [`MAX_AWAY_WATERMARKS`] times; its next poll clears the watermark. If all are unreachable, the key counts as
//! free for whoever asks first.
//!
//! # Late and doubled commands
//! The state keeps, per session, the highest sequence that an acquire or an end carried, for
//! twice the delivery window. An acquire at or below it that is not live is stale. The delivery
//! window of an acquire is at most the delivery window, so no copy can arrive after the watermark is gone.
//!
//! # Parts
//! [`State::to_parts`] takes a state apart into plain data and [`State::from_parts`] puts it together
//! again: to store it, to check it from outside, or to plant a mutant in it.
//!
//! # Sources
//! The one-capacity view of mutex, reader/writer lock and semaphore follows tokio's
//! `batch_semaphore`; fencing tokens follow Gray and Cheriton's leases and Burrows' Chubby
//! (sequencers); watermarks per session follow the at-most-once tables of Liskov's viewstamped
//! replication.

mod acquire;
mod hold;
mod inspect;
mod parts;
mod settle;
mod state;

use std::time::Duration;

use crate::bounds::{DELIVERY_WINDOW, TOKEN_RETENTION};
#[cfg(doc)]
use crate::bounds::{MAX_UNREACHABLE_MARKS, SCAN_FREELY, SCAN_INTERVAL};
use crate::id::{FencingToken, SessionId};
use crate::reply::{
    AcquireReply, ConvertReply, ForceReply, InspectReply, PollReply, ReleaseReply, RenewReply,
};
use crate::request::{Acquire, Convert, ForceRelease, Poll, Release, Renew};
use crate::time::ServerTime;

pub use parts::{HoldParts, HolderParts, Inconsistent, StateParts, WaiterParts, WatermarkParts};
pub use state::State;

/// The two spans that a backend fixes for all its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// H: how far ahead of the clock an acquire may be deliverable.
    pub delivery_window: Duration,
    /// T: how long a token is remembered after the holder's end.
    pub retention: Duration,
}

impl Settings {
    /// Other spans than the defaults, for tests that cannot wait for minutes.
    pub const fn new(delivery_window: Duration, retention: Duration) -> Self {
        Self {
            delivery_window,
            retention,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            delivery_window: DELIVERY_WINDOW,
            retention: TOKEN_RETENTION,
        }
    }
}

/// Whether a message to a session would be heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Somebody listens on its channel.
    Listening,
    /// Nobody does.
    Nobody,
    /// The backend cannot tell; counts as listening.
    Unknown,
}

/// What surrounds a step.
#[derive(Clone, Copy)]
pub struct Env<'a> {
    /// The backend's time, the same throughout the step.
    pub now: ServerTime,
    /// The backend's spans.
    pub settings: Settings,
    /// Who listens.
    pub reachable: &'a dyn Fn(SessionId) -> Reach,
}

impl std::fmt::Debug for Env<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Env")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

/// Something to tell a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Message {
    /// Whom.
    pub to: SessionId,
    /// What.
    pub payload: Payload,
}

/// What a session is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Payload {
    /// Its queued attempt was granted.
    Granted {
        /// Which attempt.
        sequence: u64,
        /// Token of the epoch.
        token: FencingToken,
        /// Time that the offer has left.
        remaining: Duration,
    },
    /// A barging key is free; its queued attempt may poll now.
    WakeUp {
        /// Which attempt.
        sequence: u64,
    },
    /// Its hold was revoked, or ended by force.
    Revoked {
        /// Which attempt.
        sequence: u64,
    },
}

/// Any command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// See [`Acquire`].
    Acquire(Acquire),
    /// See [`Poll`].
    Poll(Poll),
    /// See [`Renew`].
    Renew(Renew),
    /// See [`Release`].
    Release(Release),
    /// See [`Convert`].
    Convert(Convert),
    /// Looks at the key.
    Inspect,
    /// See [`ForceRelease`].
    ForceRelease(ForceRelease),
}

/// The reply to a [`Command`], of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant answers the command of its name")]
pub enum Reply {
    Acquire(AcquireReply),
    Poll(PollReply),
    Renew(RenewReply),
    Release(ReleaseReply),
    Convert(ConvertReply),
    Inspect(InspectReply),
    ForceRelease(ForceReply),
}

/// One step of one key: changes the state, answers, and says who is to be told what.
///
/// The messages are in the order in which they were decided; one to a session that nobody
/// listens for may be among them, and is simply not heard.
pub fn step(state: &mut State, env: Env<'_>, command: &Command) -> (Reply, Vec<Message>) {
    let mut messages = Vec::new();
    let out = &mut messages;
    let reply = match command {
        Command::Acquire(request) => Reply::Acquire(state.acquire(env, request, out)),
        Command::Poll(request) => Reply::Poll(state.poll(env, request, out)),
        Command::Renew(request) => Reply::Renew(state.renew(env, request, out)),
        Command::Release(request) => Reply::Release(state.release(env, request, out)),
        Command::Convert(request) => Reply::Convert(state.convert(env, request, out)),
        Command::Inspect => Reply::Inspect(state.inspect(env.now)),
        Command::ForceRelease(request) => {
            Reply::ForceRelease(state.force_release(env, request, out))
        }
    };
    debug_assert_eq!(state.check(), Ok(()), "after {command:?}: {state:?}");
    (reply, messages)
}

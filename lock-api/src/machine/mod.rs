//! The specification of a lock: a pure, synchronous state machine.
//!
//! Call [`step`] with the [`State`] of a key, the time and a [`Command`]. It changes the state and
//! returns the reply and the messages to send. It does no I/O, reads no clock and never blocks.
//!
//! A key has a **capacity**, and its **holders** take weight. A mutex has capacity 1. A reader takes
//! 1 of a reader/writer lock, and a writer takes all of it. A semaphore has n permits. There is one
//! machine and one queue for all three.
//!
//! The Redis scripts are a port of this module. A test plays random commands to both and compares
//! replies and messages. `docs/semantics.md` in the repository states the same rules in prose, with
//! the numbers that the comments here cite.
//!
//! # How a step works
//! Every mutating command does the same things in this order:
//!
//! 1. A [`State`] past its own stored end counts as empty (rule 14).
//! 2. An acquire outside its delivery window is [`TooLate`](crate::AcquireReply::TooLate). One with an
//!    implausible floor is [`FloorTooHigh`](crate::Refused::FloorTooHigh). Both stop here and change
//!    nothing else.
//! 3. If the owner's own holder or the operation's own waiter has expired, it is dropped. So a
//!    command never finds its own operation alive past its expiry.
//! 4. A poll refreshes its own waiter and clears its unreachable mark.
//! 5. **Settle**: expired holders are dropped if that matters (see [Expiry](#expiry)). Then the
//!    key is granted to the queue.
//! 6. The command does its own work. It decides first and changes afterwards (rule 13).
//! 7. If that work freed something, the key settles again.
//!
//! An inspection does none of this. It leaves out what has expired at the time of the inspection.
//!
//! # Expiry
//! Expired means `now >= end`. Each owner's holder expires by itself (rule 4).
//!
//! The state keeps a lower bound of the earliest end. An insert lowers it, the first holder of a key sets it, and only
//! a scan of all holders raises it otherwise. A scan happens when the bound has passed *and* the outcome of the command
//! depends on it. With more than [`SCAN_FREELY`] holders, a scan happens at most every
//! [`SCAN_INTERVAL`].
//!
//! # The queue
//! Each waiter has a ticket, its number in the order of arrival. Settling walks the waiters in ticket
//! order. It drops expired waiters as it meets them, skips *unreachable* ones, and
//! stops at the first waiter that does not fit.
//!
//! A grant turns a waiter into an **offer**. The offer expires when the waiter would have, or after
//! the lease that the waiter asked for (at least [`OFFER_POLLS`] poll intervals) if that is sooner.
//! Only a renewal extends it, and nothing shortens it (rule 10). So a waiter that dies in the queue
//! costs at most one waiter lease, and one that dies after its grant about its own lease.
//!
//! A waiter may say that it listens. If nobody listens on its channel when it is to be granted, it
//! is marked unreachable, at most [`MAX_UNREACHABLE_MARKS`] times. Its next poll clears the mark. If
//! all waiters are unreachable, the key counts as free for the first to ask (rule 9).
//!
//! # Late and duplicate commands
//! For each session, the state keeps a **watermark**: the highest sequence that an acquire or a
//! release carried. An acquire at or below the watermark that is not live is
//! [`Stale`](crate::AcquireReply::Stale) (rule 12). An acquire is deliverable for at most the delivery
//! window W, and a watermark lasts 2 W, so no copy of an acquire arrives after its watermark is gone.
//!
//! # The note
//! A holder may leave a note on the key ([`Command::Note`]). It stands while its token is the last one of
//! the key, and at least for the time that the holder asked for. Only a newer note replaces it: one with a
//! higher token, or with a higher version under the same token (rule 16).
//!
//! # Parts
//! [`State::to_bytes`] converts a state to bytes, and [`State::from_bytes`] converts them back. Use
//! them to store a state. [`State::to_parts`] and [`State::from_parts`] do the same with plain data,
//! to check or change a state from outside.
//!
//! # Sources
//! - One capacity for mutexes, reader/writer locks and semaphores: tokio's `batch_semaphore`.
//! - Fencing tokens: the leases of Gray and Cheriton, and the sequencers of Burrows' Chubby.
//! - Watermarks: the at-most-once tables of Liskov's viewstamped replication.

mod acquire;
mod bytes;
mod from_parts;
mod hold;
mod inspect;
mod note;
mod parts;
mod settle;
mod state;

use std::time::Duration;

use crate::backend::Notification;
use crate::bounds::{DELIVERY_WINDOW, TOKEN_RETENTION};
#[cfg(doc)]
use crate::bounds::{MAX_UNREACHABLE_MARKS, OFFER_POLLS, SCAN_FREELY, SCAN_INTERVAL};
use crate::id::{FencingToken, SessionId};
use crate::reply::{
    AcquireReply, ConvertReply, ForceReply, InspectReply, NoteReply, PollReply, ReleaseReply,
    RenewReply,
};
use crate::request::{Acquire, Convert, ForceRelease, Note, Poll, Release, Renew};
use crate::time::{ServerTime, Stamp};

pub use bytes::DecodeError;
pub use parts::{
    HoldParts, HolderParts, Inconsistent, NoteParts, StateParts, WaiterParts, WatermarkParts,
};
pub use state::State;

/// The two durations that a backend sets for all its keys.
///
/// The default is [`DELIVERY_WINDOW`] and [`TOKEN_RETENTION`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// W: how far ahead of the clock the deliver-before of an acquire may be.
    pub delivery_window: Duration,
    /// T: how long the state keeps the last token after the last holder.
    pub retention: Duration,
}

impl Settings {
    /// Settings other than the defaults, for tests that cannot wait for minutes.
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

/// Whether anybody listens for the messages to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Somebody listens on the session's channel.
    Listening,
    /// Nobody listens.
    Nobody,
    /// The backend cannot tell. The session counts as listening.
    Unknown,
}

/// The environment of a step.
#[derive(Clone, Copy)]
pub struct Env<'a> {
    /// The backend's time, read once per step.
    pub now: ServerTime,
    /// The backend's settings.
    pub settings: Settings,
    /// Tells whether a session listens. It can't wait. If your store answers asynchronously, execute the step on
    /// a copy of the state first, with [`Reach::Nobody`] for everybody, which asks about all whom it may grant.
    /// Ask your store about these sessions, then execute the step with the answers. Don't publish a message to
    /// find out: a step sends nothing to a session that nobody listens for.
    pub reachable: &'a (dyn Fn(SessionId) -> Reach + Sync),
}

impl std::fmt::Debug for Env<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Env")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

/// A message to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Message {
    /// The session.
    pub to: SessionId,
    /// The content.
    pub payload: Payload,
}

/// The content of a [`Message`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Payload {
    /// A queued attempt was granted.
    Granted {
        /// Sequence of the attempt.
        sequence: u64,
        /// Token of the epoch.
        token: FencingToken,
        /// Time until the offer expires.
        remaining: Duration,
    },
    /// A forced release revoked or removed the hold.
    Revoked {
        /// Sequence of the attempt that made the hold.
        sequence: u64,
    },
}

impl Payload {
    /// The notification that the session gets. `stamp` is the time at which the command was executed, and the
    /// clock. A backend calls this for each message of a [`step`], or
    /// does the same in its store.
    #[must_use]
    pub const fn stamped(self, stamp: Stamp) -> Notification {
        match self {
            Self::Granted {
                sequence,
                token,
                remaining,
            } => Notification::Granted {
                sequence,
                token,
                remaining,
                stamp,
            },
            Self::Revoked { sequence } => Notification::Revoked { sequence, stamp },
        }
    }
}

/// A command to the machine.
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
    /// Describes the key. Changes nothing.
    Inspect,
    /// See [`ForceRelease`].
    ForceRelease(ForceRelease),
    /// See [`Note`].
    Note(Note),
}

/// The reply to the [`Command`] of the same name.
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
    Note(NoteReply),
}

/// Executes one command on the state of one key.
///
/// Returns the reply and the messages to send, in the order in which they were decided. A message
/// may be for a session that nobody listens for. It is then lost.
///
/// ```
/// use std::time::Duration;
///
/// use leasehold_api::machine::{self, Command, Env, Reach, Reply, Settings, State};
/// use leasehold_api::{Acquire, AcquireReply, Key, LockSpec, Mode, ServerTime};
/// # use leasehold_api::{Operation, OwnerId, SessionId};
///
/// # let session = SessionId::from_bytes([1; 16]);
/// # let operation = Operation { session, sequence: 1, owner: OwnerId::from_u64(1) };
/// let now = ServerTime::from_micros(1_000_000);
/// let deliver_before = now.saturating_add(Duration::from_secs(1));
/// let lease = Duration::from_secs(30);
/// let key = Key::new("invoice:42")?;
/// let request =
///     Acquire::new(key, LockSpec::mutex(), Mode::Exclusive, operation, lease, deliver_before)?;
///
/// let mut state = State::default();
/// let env = Env { now, settings: Settings::default(), reachable: &|_session| Reach::Unknown };
/// let (reply, messages) = machine::step(&mut state, env, &Command::Acquire(request));
///
/// assert!(matches!(reply, Reply::Acquire(AcquireReply::Acquired(_))));
/// assert!(messages.is_empty());
/// # Ok::<(), leasehold_api::InvalidInput>(())
/// ```
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
        Command::Note(request) => Reply::Note(state.note(env, request, out)),
    };
    debug_assert_eq!(state.check(), Ok(()), "after {command:?}: {state:?}");
    (reply, messages)
}

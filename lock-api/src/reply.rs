//! The replies of a backend. The enums are exhaustive, so that every caller handles each outcome. Only the reasons that
//! users match may become more.

use std::time::Duration;

use crate::id::{FencingToken, Key, Label};
use crate::request::{Cursor, LockSpec, Mode};

/// The macro keeps [`EndReason::ALL`] complete, by which decoders invert what an exhaustive `match` encodes.
macro_rules! end_reasons {
    ($($(#[$attribute:meta])* $reason:ident = $name:literal,)+) => {
        /// Why an operation no longer holds or waits: what a backend answers. A guard turns it into a
        /// [`Loss`](crate::Loss).
        ///
        /// [`Unknown`](Self::Unknown) is the answer whenever the state no longer tells. The other reasons
        /// are never guesses.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum EndReason {
            $($(#[$attribute])* $reason,)+
        }

        impl EndReason {
            /// All reasons.
            pub const ALL: &[Self] = &[$(Self::$reason),+];

            /// Returns the reason in one word, for logs and metrics.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$reason => $name,)+
                }
            }
        }
    };
}

end_reasons! {
    /// Its lease or waiter lease ran out, and this command was the first to notice. Later commands
    /// get [`Unknown`](Self::Unknown).
    Expired = "expired",
    /// A forced release removed or revoked it.
    Forced = "forced",
    /// It was released.
    Released = "released",
    /// The state no longer tells.
    Unknown = "unknown",
}

/// A live hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Acquired {
    /// Token of the epoch: of this exclusive hold, or of all readers that overlap. Above 0.
    pub token: FencingToken,
    /// How many holds the owner has on the key, including this one.
    pub holds: u32,
    /// Time until the holder expires, counted from the stamp.
    pub remaining: Duration,
}

/// A live waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Queued {
    /// Upper bound of the number of waiters ahead of this one.
    pub ahead: u32,
    /// When to poll again, if no notification arrives first (rule 3).
    pub poll_after: Duration,
    /// Time until the waiter expires unless it polls.
    pub waiter_remaining: Duration,
}

/// Why an attempt did not get the key: it is held, or others wait for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Contended {
    /// Time until a lease may end. If a holder releases the key sooner, an earlier attempt succeeds.
    pub retry_after: Duration,
    /// Label of the holder whose lease ends first. `None` if the key has no holder, or more than
    /// [`SCAN_FREELY`](crate::bounds::SCAN_FREELY).
    pub holder: Option<Label>,
}

/// Why an acquire was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refused {
    /// The key is in use with another spec.
    Mismatch {
        /// The spec in use.
        lives_with: LockSpec,
    },
    /// The key has as many waiters as the attempt allows.
    QueueFull,
    /// The key has as many holders as the attempt allows.
    HoldersFull,
    /// The owner has as many holds as the attempt allows.
    HoldLimit,
    /// The owner holds the key for reading and asks to write: it would wait for itself.
    WouldDeadlock,
    /// The floor is more than [`MAX_FLOOR_AHEAD`](crate::bounds::MAX_FLOOR_AHEAD) ahead of both the
    /// server's time and the stored token, or above [`MAX_FLOOR`](crate::bounds::MAX_FLOOR).
    FloorTooHigh,
}

/// Answer to [`Acquire`](crate::Acquire).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireReply {
    /// The operation holds the key.
    Acquired(Acquired),
    /// The operation waits in the queue.
    Queued(Queued),
    /// The key is not free, and the attempt did not ask to wait, or its
    /// [`wait_until`](crate::Wait::wait_until) has passed.
    Contended(Contended),
    /// The key has seen this sequence of the session, or a higher one (rule 12). Try again with a
    /// new sequence.
    Stale,
    /// The request arrived after its `deliver_before`, or more than the delivery window before it.
    /// Try again with a `deliver_before` that is computed from the stamp of this reply.
    TooLate,
    /// The attempt was refused, and would be again.
    Refused(Refused),
}

/// Answer to [`Poll`](crate::Poll).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PollReply {
    /// The operation holds the key. A poll never extends a hold, nor an offer, which only a renewal confirms.
    Acquired(Acquired),
    /// The operation still waits.
    Queued(Queued),
    /// The operation neither holds nor waits.
    Gone(EndReason),
}

/// Answer to [`Renew`](crate::Renew).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewReply {
    /// The holder is live.
    Renewed {
        /// Token of the epoch. It is greater than before if another reader had to start a new
        /// epoch (rule 15).
        token: FencingToken,
        /// Time until the holder expires, counted from the stamp.
        remaining: Duration,
    },
    /// The hold is gone, or was revoked.
    Lost(EndReason),
}

/// The state of a live holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HolderStatus {
    /// The strongest of its holds.
    pub mode: Mode,
    /// Token of the epoch.
    pub token: FencingToken,
    /// Time until the holder expires, counted from the stamp.
    pub remaining: Duration,
}

/// Answer to [`Release`](crate::Release).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseReply {
    /// The hold was removed.
    Released {
        /// How many holds the owner still has on the key.
        holds_left: u32,
        /// The holder that is left, if any.
        holder: Option<HolderStatus>,
    },
    /// The waiter was removed.
    Left,
    /// There was no hold, offer or waiter.
    NotHeld(EndReason),
}

/// Answer to [`Convert`](crate::Convert).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvertReply {
    /// The hold has the target mode. If that is a change, a new epoch began.
    Converted {
        /// Token of the epoch.
        token: FencingToken,
        /// Time until the holder expires, counted from the stamp.
        remaining: Duration,
    },
    /// The upgrade is impossible: there are other holders, or others wait and this holder has
    /// already upgraded once. Also the reply if the key is not a reader/writer lock.
    NotSoleHolder,
    /// The current epoch is not the one in the request. Nothing was changed.
    WrongEpoch(HolderStatus),
    /// The hold is gone.
    Lost(EndReason),
}

/// Answer to [`ForceRelease`](crate::ForceRelease).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it says whether a holder was released"]
pub enum ForceReply {
    /// Holders were revoked or removed.
    Forced {
        /// How many.
        holders: u32,
    },
    /// No holder has one of these tokens.
    WrongEpoch,
}

/// Answer to [`Note`](crate::Note). It carries the note that stands after the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoteReply {
    /// The hold is live. The note that stands is this one, or a newer one.
    Noted(NoteView),
    /// The hold is gone. Nothing was changed. The note that stands may still be this one, if an earlier
    /// copy of the command wrote it.
    Lost {
        /// Why the hold is gone.
        reason: EndReason,
        /// The note that stands, if there is one.
        note: Option<NoteView>,
    },
}

/// The note of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NoteView {
    /// Token of the hold that wrote it.
    pub token: FencingToken,
    /// Its version. It orders the notes of one epoch.
    pub version: u32,
    /// The content.
    pub bytes: Vec<u8>,
    /// How long it stands at least, counted from the stamp. It also stands while its token is the last
    /// one of the key.
    pub kept_for: Duration,
}

/// A holder, as an inspection shows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HolderView {
    /// Its label.
    pub label: Label,
    /// The strongest of its holds.
    pub mode: Mode,
    /// How many holds it has.
    pub holds: u32,
    /// Token of its epoch.
    pub token: FencingToken,
    /// Time until the holder expires, counted from the stamp.
    pub remaining: Duration,
    /// Whether a forced release revoked it. It cannot be renewed.
    pub revoked: bool,
}

/// A waiter, as an inspection shows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WaiterView {
    /// Its label.
    pub label: Label,
    /// The mode that it waits for.
    pub mode: Mode,
    /// Time until the waiter expires unless it polls.
    pub waiter_remaining: Duration,
    /// Whether nobody listened on its channel when it was to be granted (rule 9).
    pub unreachable: bool,
}

/// Answer to an inspection: what is live at the stamp. An inspection changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InspectReply {
    /// The spec in use, or `None` if the key is idle.
    pub spec: Option<LockSpec>,
    /// The last token that was granted, as long as the key keeps it.
    pub token: Option<FencingToken>,
    /// The holders by remaining time, at most [`INSPECT_LIST`](crate::bounds::INSPECT_LIST).
    pub holders: Vec<HolderView>,
    /// How many holders there are in all.
    pub holder_count: u32,
    /// How much of the capacity all holders take: of a semaphore, the permits that are held.
    pub weight: u32,
    /// The waiters in queue order, at most [`INSPECT_LIST`](crate::bounds::INSPECT_LIST).
    pub waiters: Vec<WaiterView>,
    /// How many waiters there are in all.
    pub waiter_count: u32,
    /// The note that stands.
    pub note: Option<NoteView>,
    /// How long ago the client that asked has seen the last change, if the store has no clock. What holders and waiters have
    /// left is at most what this client knows then: another one may have seen the key for longer.
    pub last_change: Option<Duration>,
}

/// A page of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// The keys. Those of the same page may be in any order.
    pub keys: Vec<Key>,
    /// Where the next page begins; `None` if this is the last one.
    pub next: Option<Cursor>,
}

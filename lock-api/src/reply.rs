//! What a backend answers. Outcomes are exhaustive: every caller must decide about each.

use std::time::Duration;

use crate::id::{FencingToken, Label};
use crate::request::{LockSpec, Mode};

/// Why an operation is no longer there, as far as the state still tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// Its lease, or its place, ran out.
    Expired,
    /// A forced release took it.
    Forced,
    /// It was released before.
    Released,
    /// The state does not tell any more.
    Unknown,
}

/// A hold that stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Acquired {
    /// Token of the epoch.
    pub token: FencingToken,
    /// Holds of this owner on the key, this one included.
    pub holds: u32,
    /// Time that the holder has left at the stamp, at least.
    pub remaining: Duration,
}

/// A place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Queued {
    /// Waiters before this one, at most.
    pub ahead: u32,
    /// When to poll again, if no push comes first.
    pub poll_after: Duration,
    /// Time that the place lasts without a poll.
    pub waiter_remaining: Duration,
}

/// Somebody else has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Contention {
    /// Earliest time at which that may change holder itself.
    pub retry_after: Duration,
    /// Label of the holder whose lease ends first, unless there are too many to look.
    pub holder: Option<Label>,
}

/// An acquire that was turned down for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refused {
    /// An older attempt of the session than one already seen; try with a new sequence.
    Stale,
    /// Executed after its deliver-before, or too far ahead of it; try again with this stamp.
    TooLate,
    /// The key is in use as something else.
    Mismatch {
        /// What it is in use as.
        lives_with: LockSpec,
    },
    /// The key has as many waiters as the attempt allows.
    QueueFull,
    /// The key has as many holders as the attempt allows.
    HoldersFull,
    /// The owner has as many holds as the attempt allows.
    HoldLimit,
    /// The owner holds the key for reading and would wait for itself.
    WouldDeadlock,
    /// The floor is implausibly far ahead of the server's time and of the stored token.
    FloorTooHigh,
}

/// Answer to [`Acquire`](crate::Acquire).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireReply {
    /// It holds.
    Acquired(Acquired),
    /// It waits.
    Queued(Queued),
    /// It does neither: the key is held and the attempt did not ask to wait.
    Contended(Contention),
    /// It cannot.
    Refused(Refused),
}

/// Answer to [`Poll`](crate::Poll).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PollReply {
    /// It holds; a poll never extends.
    Acquired(Acquired),
    /// It still waits.
    Queued(Queued),
    /// It does neither.
    Gone(EndReason),
}

/// Answer to [`Renew`](crate::Renew).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewReply {
    /// The holder stands.
    Renewed {
        /// Token of the epoch; greater than before if readers had to start a new one.
        token: FencingToken,
        /// Time that the holder has left at the stamp.
        remaining: Duration,
    },
    /// It does not, or may not be renewed.
    Lost(EndReason),
}

/// How a holder stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HolderStatus {
    /// The strongest of its holds.
    pub mode: Mode,
    /// Token of the epoch.
    pub token: FencingToken,
    /// Time left at the stamp.
    pub remaining: Duration,
}

/// Answer to [`Release`](crate::Release).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseReply {
    /// The hold is over.
    Released {
        /// Holds that its owner has left on the key.
        holds_left: u32,
        /// What those amount to, if any.
        holder: Option<HolderStatus>,
    },
    /// The place is given up.
    Left,
    /// There was neither.
    NotHeld(EndReason),
}

/// Answer to [`Convert`](crate::Convert).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvertReply {
    /// Done, in a new epoch.
    Converted {
        /// Its token.
        token: FencingToken,
        /// Time that the holder has left.
        remaining: Duration,
    },
    /// Others hold it too, or wait and the holder has had its upgrade, or it is no
    /// reader/writer lock.
    NotSole,
    /// The epoch is another than the caller named; nothing was changed.
    WrongEpoch(HolderStatus),
    /// The hold is gone.
    Lost(EndReason),
}

/// Answer to [`ForceRelease`](crate::ForceRelease).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForceReply {
    /// So many holders were revoked or ended.
    Forced {
        /// Their number.
        holders: u32,
    },
    /// None with these tokens.
    WrongEpoch,
}

/// A holder as others may see it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HolderView {
    /// What it calls itself.
    pub label: Label,
    /// The strongest of its holds.
    pub mode: Mode,
    /// How many holds it has.
    pub holds: u32,
    /// Token of its epoch.
    pub token: FencingToken,
    /// Time left.
    pub remaining: Duration,
    /// Whether it may no longer renew.
    pub revoked: bool,
}

/// A waiter as others may see it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WaiterView {
    /// What it calls itself.
    pub label: Label,
    /// What it waits for.
    pub mode: Mode,
    /// Time that its place lasts without a poll.
    pub waiter_remaining: Duration,
    /// Whether nobody listened when it was to be told of a grant.
    pub unreachable: bool,
}

/// Answer to an inspection: what stands at the stamp; nothing is settled by looking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InspectReply {
    /// What the key is in use as; `None` when idle.
    pub spec: Option<LockSpec>,
    /// The last token granted, while it is remembered.
    pub token: Option<FencingToken>,
    /// Holders, by time left, at most [`INSPECT_LIST`](crate::bounds::INSPECT_LIST) of them.
    pub holders: Vec<HolderView>,
    /// How many holders there are.
    pub holder_count: u32,
    /// Waiters in the order of the queue, at most as many.
    pub waiters: Vec<WaiterView>,
    /// How many waiters there are.
    pub waiter_count: u32,
}

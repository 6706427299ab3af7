//! The parts of a state as plain data, to check it from outside.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use smallvec::SmallVec;

use crate::bounds::MAX_NOTE_BYTES;
use crate::id::{FencingToken, Label, Operation, SessionId};
use crate::reply::EndReason;
use crate::request::{Kind, LockSpec, Mode};
use crate::time::ServerTime;

/// A [`State`](super::State) as plain data, including what has expired.
///
/// [`State::to_parts`](super::State::to_parts) and [`State::from_parts`](super::State::from_parts) are inverse to each
/// other. Code that uses the parts can build and match the struct field by field. It then fails to compile if it misses a
/// field. To store a state, use [`State::to_bytes`](super::State::to_bytes).
///
/// The parts contain owners, which are secret. They are for stores and checkers, not for users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateParts {
    /// The spec that the key was last used with.
    pub spec: Option<LockSpec>,
    /// The last token that was granted, or 0 before the first.
    pub token: u64,
    /// The state counts as empty from this time on (rule 14).
    pub stored_end: ServerTime,
    /// Lower bound of the ends of all holders (rule 4).
    pub earliest: ServerTime,
    /// When all holders were last scanned.
    pub last_scan: ServerTime,
    /// The ticket of the next waiter.
    pub next_ticket: u64,
    /// The holders, by session and id.
    pub holders: Vec<HolderParts>,
    /// The waiters, in queue order.
    pub waiters: Vec<WaiterParts>,
    /// The watermarks, by session.
    pub watermarks: Vec<WatermarkParts>,
    /// The note, if there is one.
    pub note: Option<NoteParts>,
}

impl StateParts {
    /// Resets the parts to those of an unused key. Keeps their memory.
    pub fn clear(&mut self) {
        let old = std::mem::take(self);
        (self.holders, self.waiters, self.watermarks) = (old.holders, old.waiters, old.watermarks);
        self.holders.clear();
        self.waiters.clear();
        self.watermarks.clear();
    }

    /// Checks the invariants that a `State` cannot break, and those that making one relies on.
    /// [`State::check`](super::State::check) checks the others.
    pub(super) fn check(&self) -> Result<(), Inconsistent> {
        self.check_numbers()?;
        let fits = |mode| self.spec.is_some_and(|spec| spec.check_mode(mode).is_ok());
        let in_token = |token: FencingToken| match self.is_semaphore() {
            true => token.get() <= self.token,
            false => token.get() == self.token,
        };
        let (holders, waiters) = (&self.holders, &self.waiters);
        let mut holds = holders.iter().flat_map(|holder| &holder.holds);
        let has_hold = |holder: &HolderParts| !holder.holds.is_empty();
        require("every holder has a hold", holders.iter().all(has_hold))?;
        let fit = holds.all(|(_, mode)| fits(*mode));
        require("every hold fits the key", fit)?;
        let fit = waiters.iter().all(|waiter| fits(waiter.mode));
        require("every waiter fits the key", fit)?;
        let granted = holders.iter().all(|holder| in_token(holder.token));
        require("every token is one that was granted", granted)?;
        let mut tickets = waiters.iter().map(|waiter| waiter.ticket);
        let given = tickets.all(|ticket| ticket < self.next_ticket);
        require("every ticket is one that was given", given)?;
        let note = self.note.as_ref();
        let writable =
            note.is_none_or(|it| it.token.get() <= self.token && it.bytes.len() <= MAX_NOTE_BYTES);
        require("the note is one that can be written", writable)
    }

    /// Checks the numbers that a step counts up, and the sequences of the holds.
    fn check_numbers(&self) -> Result<(), Inconsistent> {
        let (token, next_ticket) = (self.token, self.next_ticket);
        require("the last token is below 2^53", token < TOO_LARGE)?;
        require("the next ticket is below 2^53", next_ticket < TOO_LARGE)?;
        let mut floors = self.waiters.iter().filter_map(|waiter| waiter.floor);
        let small = floors.all(|floor| floor.get() < TOO_LARGE);
        require("every floor is below 2^53", small)?;
        let mut holds = self.holders.iter().map(|holder| &holder.holds);
        let distinct = holds.all(HoldParts::are_distinct);
        require("no hold is listed twice", distinct)?;
        let mut holders = self.holders.iter();
        let single = !self.is_semaphore() || holders.all(HolderParts::is_one_acquisition);
        require("a holder of a semaphore is one acquisition", single)
    }

    fn is_semaphore(&self) -> bool {
        self.spec.is_some_and(|spec| spec.kind() == Kind::Semaphore)
    }
}

/// Tokens and tickets are below this number, and so have room to grow.
const TOO_LARGE: u64 = 1 << 53;

/// A holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderParts {
    /// The session of its owner.
    pub session: SessionId,
    /// The id within the session: the owner, or for a semaphore the sequence.
    pub id: u64,
    /// Its holds, in the order in which they were made.
    pub holds: HoldParts,
    /// When it expires.
    pub end: ServerTime,
    /// Token of its epoch, which overlapping readers share.
    pub token: FencingToken,
    /// The name that others see.
    pub label: Label,
    /// A forced release revoked it: its lease cannot be extended.
    pub revoked: bool,
    /// It has upgraded once while others waited.
    pub upgraded: bool,
}

impl HolderParts {
    /// Whether the holder has one hold, after which it is named.
    fn is_one_acquisition(&self) -> bool {
        matches!(&*self.holds, [(sequence, _)] if *sequence == self.id)
    }
}

/// The sequence and mode of each hold of a holder.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct HoldParts(SmallVec<[(u64, Mode); 1]>);

impl HoldParts {
    fn are_distinct(&self) -> bool {
        let mut sequences: Vec<u64> = self.iter().map(|(sequence, _)| *sequence).collect();
        sequences.sort_unstable();
        sequences.windows(2).all(|pair| pair[0] != pair[1])
    }
}

impl fmt::Debug for HoldParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Deref for HoldParts {
    type Target = [(u64, Mode)];

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl FromIterator<(u64, Mode)> for HoldParts {
    fn from_iter<I: IntoIterator<Item = (u64, Mode)>>(holds: I) -> Self {
        Self(holds.into_iter().collect())
    }
}

impl<'a> IntoIterator for &'a HoldParts {
    type Item = &'a (u64, Mode);
    type IntoIter = std::slice::Iter<'a, (u64, Mode)>;

    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// A waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterParts {
    /// Its number in the order of arrival.
    pub ticket: u64,
    /// The attempt that waits.
    pub operation: Operation,
    /// The mode that it waits for.
    pub mode: Mode,
    /// The name that others see.
    pub label: Label,
    /// The highest token that its client has seen.
    pub floor: Option<FencingToken>,
    /// The lease that it asked for.
    pub lease: Duration,
    /// When it expires.
    pub end: ServerTime,
    /// The waiter's own deadline, if it has one.
    pub wait_until: Option<ServerTime>,
    /// Whether its latest acquire or poll said that it listens.
    pub listening: bool,
    /// Whether it is marked unreachable (rule 9).
    pub unreachable: bool,
    /// How often it was marked unreachable.
    pub unreachable_marks: u8,
}

/// The highest sequence that an acquire or a release of a session carried (rule 12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatermarkParts {
    /// The session.
    pub session: SessionId,
    /// The sequence.
    pub sequence: u64,
    /// When the watermark expires.
    pub end: ServerTime,
    /// Why the operation with exactly this sequence is gone, if known.
    pub reason: Option<EndReason>,
}

/// The note of a key (rule 16).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoteParts {
    /// Token of the hold that wrote it.
    pub token: FencingToken,
    /// Its version.
    pub version: u32,
    /// The content.
    pub bytes: Vec<u8>,
    /// It stands until then, and longer while its token is the last one of the key.
    pub end: ServerTime,
}

/// The error for parts that no state has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the state of a lock breaks its invariant: {invariant}")]
pub struct Inconsistent {
    invariant: &'static str,
}

/// Fails unless the invariant is true.
pub(super) fn require(invariant: &'static str, is_true: bool) -> Result<(), Inconsistent> {
    is_true.then_some(()).ok_or(Inconsistent { invariant })
}

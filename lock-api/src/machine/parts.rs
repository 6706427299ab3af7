//! A state as plain data, for those who store it or check it from outside.

use std::fmt;
use std::ops::Deref;

use smallvec::SmallVec;

use crate::id::{FencingToken, Label, Operation, SessionId};
use crate::machine::state::{Hold, Holder, HolderId, State, Waiter, Watermark};
use crate::reply::EndReason;
use crate::request::{Kind, LockSpec, Mode};
use crate::time::ServerTime;

/// Everything that a [`State`] holds, expired or not.
///
/// [`State::to_parts`] and [`State::from_parts`] are inverse to each other. The struct can be
/// built and matched field by field, so that code that stores a state does not compile when it
/// leaves out a field.
///
/// It shows owners, which nobody else may see: it is for stores and checkers, not for users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateParts {
    /// What the key was last used as.
    pub spec: Option<LockSpec>,
    /// The last token granted; 0 before the first.
    pub token: u64,
    /// When the state as a whole may be forgotten.
    pub stored_end: ServerTime,
    /// No holder's lease ends before this.
    pub earliest: ServerTime,
    /// When the ends of all holders were last looked at.
    pub last_scan: ServerTime,
    /// The ticket of the next waiter.
    pub next_ticket: u64,
    /// By session and id.
    pub holders: Vec<HolderParts>,
    /// In the order of the queue.
    pub waiters: Vec<WaiterParts>,
    /// By session.
    pub watermarks: Vec<WatermarkParts>,
}

impl StateParts {
    /// Makes them those of a key that holds nothing; their memory is kept.
    pub fn clear(&mut self) {
        let (mut holders, mut waiters, mut watermarks) = (
            std::mem::take(&mut self.holders),
            std::mem::take(&mut self.waiters),
            std::mem::take(&mut self.watermarks),
        );
        holders.clear();
        waiters.clear();
        watermarks.clear();
        *self = Self {
            holders,
            waiters,
            watermarks,
            ..Self::default()
        };
    }

    /// What [`State::check`] does not see, because a `State` cannot express it.
    fn check(&self) -> Result<(), Inconsistent> {
        let fits = |mode| self.spec.is_some_and(|spec| spec.check_mode(mode).is_ok());
        let mut holds = self.holders.iter().flat_map(|holder| &holder.holds);
        let semaphore = self.spec.is_some_and(|spec| spec.kind() == Kind::Semaphore);
        let in_token = |token: FencingToken| match semaphore {
            true => token.get() <= self.token,
            false => token.get() == self.token,
        };
        let all = [
            ("every holder_id holds", {
                let mut holders = self.holders.iter();
                holders.all(|holder| !holder.holds.is_empty())
            }),
            (
                "every hold fits the key",
                holds.all(|(_, mode)| fits(*mode)),
            ),
            (
                "every waiter fits the key",
                self.waiters.iter().all(|waiter| fits(waiter.mode)),
            ),
            (
                "every token is one that was granted",
                self.holders.iter().all(|holder| in_token(holder.token)),
            ),
            (
                "every ticket is one that was given",
                self.waiters.iter().all(|it| it.ticket < self.next_ticket),
            ),
        ];
        Inconsistent::unless(&all)
    }
}

/// One holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderParts {
    /// Whose.
    pub session: SessionId,
    /// Which of the session's: its owner, or of a semaphore its sequence.
    pub id: u64,
    /// In the order in which they were made.
    pub holds: HoldParts,
    /// When it expires.
    pub end: ServerTime,
    /// Token of its epoch.
    pub token: FencingToken,
    /// What others see of it.
    pub label: Label,
    /// May no longer be extended.
    pub revoked: bool,
    /// Has upgraded once while others waited.
    pub upgraded: bool,
}

/// Sequence and mode of each hold of a holder.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct HoldParts(SmallVec<[(u64, Mode); 1]>);

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

/// One waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterParts {
    /// Its number in the order of arrival.
    pub ticket: u64,
    /// Which attempt waits.
    pub operation: Operation,
    /// For what.
    pub mode: Mode,
    /// What others see of it.
    pub label: Label,
    /// The highest token that its client has seen.
    pub floor: Option<FencingToken>,
    /// When it expires.
    pub end: ServerTime,
    /// The waiter's own deadline.
    pub until: Option<ServerTime>,
    /// Whether the waiter said that it listens.
    pub listening: bool,
    /// Nobody listened when it was to be told of a grant.
    pub unreachable: bool,
    /// How often that happened.
    pub unreachable_marks: u8,
}

/// The highest sequence that an acquire or an end of a session carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatermarkParts {
    /// Of which session.
    pub session: SessionId,
    /// The sequence.
    pub sequence: u64,
    /// When it is forgotten.
    pub until: ServerTime,
    /// What became of exactly that sequence, where it is known.
    pub reason: Option<EndReason>,
}

/// Parts that no state has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the state of a lock breaks its invariant: {invariant}")]
pub struct Inconsistent {
    invariant: &'static str,
}

impl Inconsistent {
    /// The first that is false, if any is.
    pub(super) fn unless(invariants: &[(&'static str, bool)]) -> Result<(), Self> {
        let broken = invariants.iter().find(|(_, holds)| !holds);
        broken.map_or(Ok(()), |&(invariant, _)| Err(Self { invariant }))
    }
}

impl State {
    /// What it holds, expired or not.
    pub fn to_parts(&self) -> StateParts {
        let mut parts = StateParts::default();
        self.write_parts(&mut parts);
        parts
    }

    /// Writes what it holds over `parts` and reuses their memory.
    pub fn write_parts(&self, parts: &mut StateParts) {
        parts.clear();
        let holders = self.holders.iter();
        parts
            .holders
            .extend(holders.map(|(holder_id, holder)| HolderParts {
                session: holder_id.session,
                id: holder_id.id,
                holds: holder.holds.iter().map(|h| (h.sequence, h.mode)).collect(),
                end: holder.end,
                token: self.token_of(holder),
                label: holder.label.clone(),
                revoked: holder.revoked,
                upgraded: holder.upgraded,
            }));
        let waiters = self.waiters.iter();
        parts.waiters.extend(waiters.map(|(&ticket, waiter)| {
            let waiter = waiter.clone();
            WaiterParts {
                ticket,
                operation: waiter.operation,
                mode: waiter.mode,
                label: waiter.label,
                floor: waiter.floor,
                end: waiter.end,
                until: waiter.until,
                listening: waiter.listening,
                unreachable: waiter.unreachable,
                unreachable_marks: waiter.unreachable_marks,
            }
        }));
        let watermarks = self.watermarks.iter();
        parts
            .watermarks
            .extend(watermarks.map(|(&session, watermark)| WatermarkParts {
                session,
                sequence: watermark.sequence,
                until: watermark.until,
                reason: watermark.reason,
            }));
        (parts.spec, parts.token) = (self.spec, self.token);
        (parts.stored_end, parts.next_ticket) = (self.stored_end, self.next_ticket);
        (parts.earliest, parts.last_scan) = (self.earliest, self.last_scan);
    }

    /// The state that has these parts, in whatever order they are listed.
    ///
    /// # Errors
    /// [`Inconsistent`] if no sequence of steps leads to such a state: parts that exceed the
    /// capacity, that occur twice, or that the stored end does not cover.
    pub fn from_parts(parts: StateParts) -> Result<Self, Inconsistent> {
        parts.check()?;
        let (holders, waiters) = (parts.holders.len(), parts.waiters.len());
        let watermarks = parts.watermarks.len();
        let mut state = Self {
            spec: parts.spec,
            token: parts.token,
            stored_end: parts.stored_end,
            earliest: parts.earliest,
            last_scan: parts.last_scan,
            next_ticket: parts.next_ticket,
            ..Self::default()
        };
        for holder in parts.holders {
            state.put_holder(holder);
        }
        for waiter in parts.waiters {
            state.put_waiter(waiter);
        }
        state
            .watermarks
            .extend(parts.watermarks.iter().map(|watermark| {
                let (sequence, until, reason) =
                    (watermark.sequence, watermark.until, watermark.reason);
                let kept = Watermark {
                    sequence,
                    until,
                    reason,
                };
                (watermark.session, kept)
            }));
        Inconsistent::unless(&[
            (
                "no holder_id is listed twice",
                state.holders.len() == holders,
            ),
            ("no ticket is listed twice", state.waiters.len() == waiters),
            (
                "no session has two watermarks",
                state.watermarks.len() == watermarks,
            ),
        ])?;
        state.check()?;
        Ok(state)
    }

    fn put_holder(&mut self, parts: HolderParts) {
        let holder_id = HolderId {
            session: parts.session,
            id: parts.id,
        };
        let holds = parts.holds.iter();
        let holder = Holder {
            holds: holds
                .map(|&(sequence, mode)| Hold { sequence, mode })
                .collect(),
            end: parts.end,
            token: self.own_token(parts.token.get()),
            label: parts.label,
            revoked: parts.revoked,
            upgraded: parts.upgraded,
        };
        self.used = self.used.saturating_add(self.weight(holder.mode()));
        self.holders.insert(holder_id, holder);
    }

    fn put_waiter(&mut self, parts: WaiterParts) {
        let operation = parts.operation;
        self.unreachable += u32::from(parts.unreachable);
        self.tickets
            .insert((operation.session, operation.sequence), parts.ticket);
        let waiter = Waiter {
            operation,
            mode: parts.mode,
            label: parts.label,
            floor: parts.floor,
            end: parts.end,
            until: parts.until,
            listening: parts.listening,
            unreachable: parts.unreachable,
            unreachable_marks: parts.unreachable_marks,
        };
        self.waiters.insert(parts.ticket, waiter);
    }
}

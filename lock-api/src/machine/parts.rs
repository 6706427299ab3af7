//! A state as plain data, for those who store it or check it from outside.

use std::fmt;
use std::ops::Deref;

use smallvec::SmallVec;

use crate::id::{FencingToken, Label, Operation, SessionId};
use crate::machine::state::{Hold, Holder, Mark, Place, State, Tenure};
use crate::reply::Why;
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
    pub tenures: Vec<HolderParts>,
    /// In the order of the queue.
    pub places: Vec<WaiterParts>,
    /// By session.
    pub watermarks: Vec<WatermarkParts>,
}

impl StateParts {
    /// Makes them those of a key that holds nothing; their memory is kept.
    pub fn clear(&mut self) {
        let (mut tenures, mut places, mut watermarks) = (
            std::mem::take(&mut self.tenures),
            std::mem::take(&mut self.places),
            std::mem::take(&mut self.watermarks),
        );
        tenures.clear();
        places.clear();
        watermarks.clear();
        *self = Self {
            tenures,
            places,
            watermarks,
            ..Self::default()
        };
    }

    /// What [`State::check`] does not see, because a `State` cannot express it.
    fn check(&self) -> Result<(), Inconsistent> {
        let fits = |mode| self.spec.is_some_and(|spec| spec.check_mode(mode).is_ok());
        let mut holds = self.tenures.iter().flat_map(|tenure| &tenure.holds);
        let semaphore = self.spec.is_some_and(|spec| spec.kind() == Kind::Semaphore);
        let in_token = |token: FencingToken| match semaphore {
            true => token.get() <= self.token,
            false => token.get() == self.token,
        };
        let all = [
            ("every holder holds", {
                let mut tenures = self.tenures.iter();
                tenures.all(|tenure| !tenure.holds.is_empty())
            }),
            (
                "every hold fits the key",
                holds.all(|(_, mode)| fits(*mode)),
            ),
            (
                "every waiter fits the key",
                self.places.iter().all(|place| fits(place.mode)),
            ),
            (
                "every token is one that was granted",
                self.tenures.iter().all(|tenure| in_token(tenure.token)),
            ),
            (
                "every ticket is one that was given",
                self.places.iter().all(|it| it.ticket < self.next_ticket),
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
    pub away: bool,
    /// How often that happened.
    pub away_marks: u8,
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
    pub why: Option<Why>,
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
        let tenures = self.tenures.iter();
        parts
            .tenures
            .extend(tenures.map(|(holder, tenure)| HolderParts {
                session: holder.session,
                id: holder.id,
                holds: tenure.holds.iter().map(|h| (h.sequence, h.mode)).collect(),
                end: tenure.end,
                token: self.token_of(tenure),
                label: tenure.label.clone(),
                revoked: tenure.revoked,
                upgraded: tenure.upgraded,
            }));
        let places = self.places.iter();
        parts.places.extend(places.map(|(&ticket, place)| {
            let place = place.clone();
            WaiterParts {
                ticket,
                operation: place.operation,
                mode: place.mode,
                label: place.label,
                floor: place.floor,
                end: place.end,
                until: place.until,
                listening: place.listening,
                away: place.away,
                away_marks: place.away_marks,
            }
        }));
        let marks = self.marks.iter();
        parts
            .watermarks
            .extend(marks.map(|(&session, mark)| WatermarkParts {
                session,
                sequence: mark.sequence,
                until: mark.until,
                why: mark.why,
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
        let (tenures, places) = (parts.tenures.len(), parts.places.len());
        let marks = parts.watermarks.len();
        let mut state = Self {
            spec: parts.spec,
            token: parts.token,
            stored_end: parts.stored_end,
            earliest: parts.earliest,
            last_scan: parts.last_scan,
            next_ticket: parts.next_ticket,
            ..Self::default()
        };
        for tenure in parts.tenures {
            state.put_tenure(tenure);
        }
        for place in parts.places {
            state.put_place(place);
        }
        state.marks.extend(parts.watermarks.iter().map(|mark| {
            let (sequence, until, why) = (mark.sequence, mark.until, mark.why);
            let kept = Mark {
                sequence,
                until,
                why,
            };
            (mark.session, kept)
        }));
        Inconsistent::unless(&[
            ("no holder is listed twice", state.tenures.len() == tenures),
            ("no ticket is listed twice", state.places.len() == places),
            ("no session has two watermarks", state.marks.len() == marks),
        ])?;
        state.check()?;
        Ok(state)
    }

    fn put_tenure(&mut self, parts: HolderParts) {
        let holder = Holder {
            session: parts.session,
            id: parts.id,
        };
        let holds = parts.holds.iter();
        let tenure = Tenure {
            holds: holds
                .map(|&(sequence, mode)| Hold { sequence, mode })
                .collect(),
            end: parts.end,
            token: self.own_token(parts.token.get()),
            label: parts.label,
            revoked: parts.revoked,
            upgraded: parts.upgraded,
        };
        self.used = self.used.saturating_add(self.weight(tenure.mode()));
        self.tenures.insert(holder, tenure);
    }

    fn put_place(&mut self, parts: WaiterParts) {
        let operation = parts.operation;
        self.away += u32::from(parts.away);
        self.tickets
            .insert((operation.session, operation.sequence), parts.ticket);
        let place = Place {
            operation,
            mode: parts.mode,
            label: parts.label,
            floor: parts.floor,
            end: parts.end,
            until: parts.until,
            listening: parts.listening,
            away: parts.away,
            away_marks: parts.away_marks,
        };
        self.places.insert(parts.ticket, place);
    }
}

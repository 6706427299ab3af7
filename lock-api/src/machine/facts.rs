//! A state as those see it who check it from outside: simulators and model checkers.

use std::fmt;
use std::ops::Deref;

use smallvec::SmallVec;

use crate::id::{FencingToken, Operation, SessionId};
use crate::machine::state::State;
use crate::request::{LockSpec, Mode};
use crate::time::ServerTime;

/// Everything that a [`State`] holds and that a promise speaks of, expired or not.
///
/// It shows owners, which nobody else may see: it is for checking, not for users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Facts {
    /// What the key was last used as.
    pub spec: Option<LockSpec>,
    /// The last token granted; 0 before the first.
    pub token: u64,
    /// When the state as a whole may be forgotten.
    pub stored_end: ServerTime,
    /// By holder.
    pub tenures: Vec<TenureFacts>,
    /// In the order of the queue.
    pub places: Vec<PlaceFacts>,
}

impl Facts {
    /// Makes them those of a key that holds nothing; their memory is kept.
    pub fn clear(&mut self) {
        let Self {
            spec,
            token,
            stored_end,
            tenures,
            places,
        } = self;
        (*spec, *token, *stored_end) = (None, 0, ServerTime::default());
        tenures.clear();
        places.clear();
    }
}

/// One tenure.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenureFacts {
    /// Whose.
    pub session: SessionId,
    /// Which of the session's: its owner, or of a semaphore its sequence.
    pub id: u64,
    /// In the order in which they were made.
    pub holds: HoldFacts,
    /// When it expires.
    pub end: ServerTime,
    /// Token of its period.
    pub token: FencingToken,
    /// May no longer be extended.
    pub revoked: bool,
}

/// Sequence and mode of each hold of a tenure.
#[derive(Clone, PartialEq, Eq)]
pub struct HoldFacts(SmallVec<[(u64, Mode); 1]>);

impl fmt::Debug for HoldFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Deref for HoldFacts {
    type Target = [(u64, Mode)];

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<'a> IntoIterator for &'a HoldFacts {
    type Item = &'a (u64, Mode);
    type IntoIter = std::slice::Iter<'a, (u64, Mode)>;

    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// One place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlaceFacts {
    /// Its number in the order of arrival.
    pub ticket: u64,
    /// Which attempt waits.
    pub operation: Operation,
    /// For what.
    pub mode: Mode,
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

impl State {
    /// What it holds, expired or not.
    pub fn facts(&self) -> Facts {
        let mut facts = Facts::default();
        self.facts_into(&mut facts);
        facts
    }

    /// The same in place of what `facts` said, in its memory: for those who look at every step.
    pub fn facts_into(&self, facts: &mut Facts) {
        facts.clear();
        for (holder, tenure) in &self.tenures {
            let mut holds = SmallVec::new();
            for hold in &tenure.holds {
                holds.push((hold.sequence, hold.mode));
            }
            facts.tenures.push(TenureFacts {
                session: holder.session,
                id: holder.id,
                holds: HoldFacts(holds),
                end: tenure.end,
                token: self.token_of(tenure),
                revoked: tenure.revoked,
            });
        }
        for (&ticket, place) in &self.places {
            facts.places.push(PlaceFacts {
                ticket,
                operation: place.operation,
                mode: place.mode,
                floor: place.floor,
                end: place.end,
                until: place.until,
                listening: place.listening,
                away: place.away,
                away_marks: place.away_marks,
            });
        }
        (facts.spec, facts.token) = (self.spec, self.token);
        facts.stored_end = self.stored_end;
    }
}

//! A state as those see it who check it from outside: simulators and model checkers.

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

/// One tenure.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenureFacts {
    /// Whose.
    pub session: SessionId,
    /// Which of the session's: its owner, or of a semaphore its sequence.
    pub id: u64,
    /// Sequence and mode of each hold, in the order in which they were made.
    pub holds: Vec<(u64, Mode)>,
    /// When it expires.
    pub end: ServerTime,
    /// Token of its period.
    pub token: FencingToken,
    /// May no longer be extended.
    pub revoked: bool,
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
        let tenures = self.tenures.iter().map(|(holder, tenure)| TenureFacts {
            session: holder.session,
            id: holder.id,
            holds: tenure
                .holds
                .iter()
                .map(|hold| (hold.sequence, hold.mode))
                .collect(),
            end: tenure.end,
            token: self.token_of(tenure),
            revoked: tenure.revoked,
        });
        let places = self.places.iter().map(|(&ticket, place)| PlaceFacts {
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
        Facts {
            spec: self.spec,
            token: self.token,
            stored_end: self.stored_end,
            tenures: tenures.collect(),
            places: places.collect(),
        }
    }
}

//! What a user's call can come to, besides success.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{BackendError, InvalidInput};
use crate::id::Key;
use crate::reply::{Contention, EndReason, Refused};
use crate::request::{Kind, LockSpec};

/// The error of a client library.
type Cause = Arc<dyn StdError + Send + Sync>;

/// Why a call failed; the variants say what to do next.
///
/// Contention is not among them: that somebody else holds a lock, or that the time to wait was
/// over, is an [`Outcome`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input breaks a limit. Nothing was sent. Fix the caller.
    #[error("invalid input: {0}")]
    InvalidInput(InvalidInput),
    /// The server could not be reached, and nothing was changed. Try again later.
    #[error("the lock service is unavailable: {reason}")]
    Unavailable {
        /// What happened.
        reason: String,
        /// The client library's error, whose words are in `reason`: for programs, and no
        /// [`source`](StdError::source), or reports would say everything twice.
        cause: Option<Cause>,
    },
    /// No answer came. What the call may have left on the server is being ended in the
    /// background, or ends with its lease. Try again later.
    #[error("the lock service did not answer, the outcome is unknown: {reason}")]
    OutcomeUnknown {
        /// What happened.
        reason: String,
        /// The client library's error, whose words are in `reason`: for programs, and no
        /// [`source`](StdError::source), or reports would say everything twice.
        cause: Option<Cause>,
    },
    /// The server refuses for good. Fix its configuration, or the client's.
    #[error("the lock service rejects the client: {reason}")]
    Rejected {
        /// What the server said.
        reason: String,
        /// The client library's error, whose words are in `reason`: for programs, and no
        /// [`source`](StdError::source), or reports would say everything twice.
        cause: Option<Cause>,
    },
    /// The key's state does not allow it; waiting would not help. Read the reason.
    #[error("key {key:?}: refused: {}", refusal(asked, reason))]
    Refused {
        /// The key.
        key: Key,
        /// What the key was asked for as.
        asked: LockSpec,
        /// Why not.
        reason: Refused,
    },
    /// Something that is no lock of this library lives under the key. It was not touched.
    #[error("key {key:?} holds a foreign value ({found}), which was not touched")]
    ForeignValue {
        /// The key.
        key: Key,
        /// Its type, or its format version.
        found: String,
    },
    /// The backend cannot do this; its capabilities say so.
    #[error("this backend does not support {what}")]
    Unsupported {
        /// What it lacks.
        what: &'static str,
    },
    /// The client was shut down, or its backend closed.
    #[error("the lock client is closed")]
    Closed,
    /// The guard was released before. Take the lock anew.
    #[error("key {key:?}: the guard was released already")]
    Released {
        /// The key.
        key: Key,
    },
    /// The lock was lost. Stop the work that it protected; the fencing token keeps a late write
    /// out.
    #[error("key {key:?}: the lock was lost: {reason}")]
    Lost {
        /// The key.
        key: Key,
        /// Why.
        reason: Loss,
    },
    /// The hand-off cannot be adopted any more: somebody has adopted it, or its hold is over.
    /// Take the lock anew.
    #[error("key {key:?}: the hand-off is spent: {}", spent(reason))]
    HandoffSpent {
        /// The key.
        key: Key,
        /// What became of its hold.
        reason: EndReason,
    },
}

/// The backend has none.
pub(crate) const NO_TOKENS: Error = Error::Unsupported {
    what: "fencing tokens",
};

impl Error {
    /// Which key it is about, if it is about one.
    pub const fn key(&self) -> Option<&Key> {
        match self {
            Self::Refused { key, .. }
            | Self::ForeignValue { key, .. }
            | Self::Released { key }
            | Self::Lost { key, .. }
            | Self::HandoffSpent { key, .. } => Some(key),
            _ => None,
        }
    }

    /// Whether the same call may succeed later without any change.
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::OutcomeUnknown { .. })
    }
}

// Not its `source`: the message is part of this error's own, and would be printed twice.
impl From<InvalidInput> for Error {
    fn from(error: InvalidInput) -> Self {
        Self::InvalidInput(error)
    }
}

impl BackendError {
    /// As the user of a client sees it, of a call about a key.
    pub(crate) fn on(self, key: &Key) -> Error {
        match self {
            Self::Unavailable { reason, cause } => Error::Unavailable { reason, cause },
            Self::OutcomeUnknown { reason, cause } => Error::OutcomeUnknown { reason, cause },
            Self::Rejected { reason, cause } => Error::Rejected { reason, cause },
            Self::ForeignValue { found } => Error::ForeignValue {
                key: key.clone(),
                found,
            },
            Self::Unsupported { what } => Error::Unsupported { what },
            Self::Closed => Error::Closed,
        }
    }
}

/// Says a refusal in words.
fn refusal(asked: &LockSpec, reason: &Refused) -> String {
    match reason {
        Refused::Stale => "an attempt was older than another of this client".into(),
        Refused::TooLate => "the attempt reached the server too late".into(),
        Refused::Mismatch { lives_with } => format!(
            "asked for as a {}, while it is in use as a {}",
            described(asked),
            described(lives_with)
        ),
        Refused::QueueFull => "the key has as many waiters as are allowed".into(),
        Refused::HoldersFull => "the key has as many holders as are allowed".into(),
        Refused::HoldLimit => "the owner has nested as many holds as are allowed".into(),
        Refused::WouldDeadlock => {
            "the owner holds the key for reading and would wait for itself; upgrade instead".into()
        }
        Refused::FloorTooHigh => {
            "the highest token seen is implausibly far ahead of the server's clock".into()
        }
    }
}

/// Says what has become of a hand-off.
const fn spent(reason: &EndReason) -> &'static str {
    match reason {
        EndReason::Expired => "its lease ran out",
        EndReason::Forced => "its lock was released by force",
        EndReason::Released | EndReason::Unknown => "it was adopted before, or its lock is gone",
    }
}

/// Says all that must be the same for those who share a key.
fn described(spec: &LockSpec) -> String {
    format!(
        "{} (policy {:?}, waiter lease {:?})",
        kind(spec),
        spec.policy(),
        spec.waiter_lease()
    )
}

/// Says what a key is in use as.
pub(crate) fn kind(spec: &LockSpec) -> String {
    match spec.kind() {
        Kind::Mutex => "mutex".into(),
        Kind::RwLock => "reader/writer lock".into(),
        Kind::Semaphore => format!("semaphore of {}", spec.capacity()),
    }
}

/// Why a lock was lost while its guard was in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The guard's local deadline passed before a renewal succeeded.
    #[error("its lease ran out before it could be renewed")]
    Deadline,
    /// The server says that the lease ran out.
    #[error("the server let it expire")]
    Expired,
    /// Somebody released it by force.
    #[error("it was released by force")]
    Forced,
    /// The server does not know the lock any more: it lost its data, or somebody deleted it.
    #[error("the server does not know it any more")]
    Unknown,
    /// The server's clock was stepped, so that leases mean nothing.
    #[error("the server's clock was stepped")]
    ClockStepped,
    /// The longest time for which the lock may be held is over.
    #[error("it was held for as long as it may be held")]
    MaxHold,
    /// The client was shut down while the guard was in use.
    #[error("its client was shut down")]
    ClientClosed,
}

impl From<EndReason> for Loss {
    fn from(reason: EndReason) -> Self {
        match reason {
            EndReason::Expired => Self::Expired,
            EndReason::Forced => Self::Forced,
            EndReason::Released | EndReason::Unknown => Self::Unknown,
        }
    }
}

/// What an attempt to take a lock came to.
#[derive(Debug)]
#[must_use = "an outcome may carry a guard, which releases its lock when it is dropped"]
pub enum Outcome<G> {
    /// It is held.
    Acquired(G),
    /// Somebody else has it, and the call was not to wait: only the `try_…` forms answer this.
    Held(Contention),
    /// The time to wait was over: only the `…_within` forms answer this.
    TimedOut(TimedOut),
}

/// A wait that ended without the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TimedOut {
    /// How long the call took.
    pub waited: Duration,
    /// Waiters that were before this one at the last look, at most; `None` if it had no place
    /// in the queue.
    pub ahead: Option<u32>,
}

impl<G> Outcome<G> {
    /// The guard, if the lock is held.
    pub fn acquired(self) -> Option<G> {
        match self {
            Self::Acquired(guard) => Some(guard),
            Self::Held(_) | Self::TimedOut(_) => None,
        }
    }

    /// Whether the lock is held.
    pub const fn is_acquired(&self) -> bool {
        matches!(self, Self::Acquired(_))
    }

    /// The same with another guard.
    pub fn map<H>(self, f: impl FnOnce(G) -> H) -> Outcome<H> {
        match self {
            Self::Acquired(guard) => Outcome::Acquired(f(guard)),
            Self::Held(held) => Outcome::Held(held),
            Self::TimedOut(timed_out) => Outcome::TimedOut(timed_out),
        }
    }
}

/// What releasing a guard came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReleaseOutcome {
    /// The hold is over.
    Released {
        /// Holds that the same owner has left on the key (reentrant handles).
        holds_left: u32,
    },
    /// There was nothing left to release; somebody else may hold the lock since. What was done
    /// under it after its loss was not protected.
    NotHeld(EndReason),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_what_happened() {
        let key = || Key::new("invoice:42").expect("valid");
        let refused = |reason| Error::Refused {
            key: key(),
            asked: LockSpec::mutex(),
            reason,
        };
        let lost = |reason| Error::Lost { key: key(), reason };
        let foreign = BackendError::ForeignValue {
            found: "list".into(),
        };
        let errors = [
            Error::InvalidInput(InvalidInput::KeyLength { bytes: 0 }),
            BackendError::unavailable("connection refused").on(&key()),
            BackendError::outcome_unknown("no answer within 1s").on(&key()),
            BackendError::rejected("NOAUTH Authentication required").on(&key()),
            refused(Refused::Stale),
            refused(Refused::TooLate),
            refused(Refused::Mismatch {
                lives_with: LockSpec::rw_lock(),
            }),
            refused(Refused::QueueFull),
            refused(Refused::HoldersFull),
            refused(Refused::HoldLimit),
            refused(Refused::WouldDeadlock),
            refused(Refused::FloorTooHigh),
            foreign.on(&key()),
            Error::Unsupported { what: "convert" },
            Error::Closed,
            Error::Released { key: key() },
            lost(Loss::Deadline),
            lost(Loss::Expired),
            lost(Loss::Forced),
            lost(Loss::Unknown),
            lost(Loss::ClockStepped),
            lost(Loss::MaxHold),
            lost(Loss::ClientClosed),
            Error::HandoffSpent {
                key: key(),
                reason: EndReason::Released,
            },
            Error::InvalidInput(InvalidInput::KeyCount { asked: 65 }),
            Error::InvalidInput(InvalidInput::RepeatedKey { key: key() }),
        ];
        // What a report of the whole chain says.
        assert!(errors.iter().all(|error| error.source().is_none()));
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn only_an_outage_is_transient() {
        let key = Key::new("k").expect("valid");
        assert!(BackendError::unavailable("x").on(&key).is_transient());
        assert!(BackendError::outcome_unknown("x").on(&key).is_transient());
        assert!(!BackendError::rejected("x").on(&key).is_transient());
        assert!(!Error::Closed.is_transient());
    }
}

//! Errors of input and of backends.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::bounds::{MAX_CALL_TIMEOUT, MIN_CALL_TIMEOUT};
use crate::id::Key;
use crate::request::{Kind, Mode, Policy};

/// Input that is refused before any I/O; nothing was sent, nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidInput {
    /// A key that is empty or too long.
    #[error("a key has 1 to 256 bytes, this one has {bytes}")]
    KeyLength {
        /// Its length.
        bytes: usize,
    },
    /// A label that is too long.
    #[error("a label has at most 32 bytes, this one has {bytes}")]
    LabelLength {
        /// Its length.
        bytes: usize,
    },
    /// A lease outside its limits.
    #[error("a lease of {asked:?} is outside the limits (100 ms to 1 h)")]
    Lease {
        /// What was asked for.
        asked: Duration,
    },
    /// A waiter lease outside its limits.
    #[error("a waiter lease of {asked:?} is outside the limits (3 s to 60 s)")]
    WaiterLease {
        /// What was asked for.
        asked: Duration,
    },
    /// No permits, or more than there are.
    #[error("{asked} permits were asked for; 1 to {capacity} are possible")]
    Permits {
        /// What was asked for.
        asked: u32,
        /// How many there are.
        capacity: u32,
    },
    /// A policy that the kind of lock does not have.
    #[error("{policy:?} is for reader/writer locks, not for {kind:?}")]
    PolicyForKind {
        /// The policy.
        policy: Policy,
        /// The kind.
        kind: Kind,
    },
    /// A mode that the kind of lock does not have.
    #[error("{kind:?} has no mode {mode:?}")]
    ModeForKind {
        /// The mode.
        mode: Mode,
        /// The kind.
        kind: Kind,
    },
    /// A token floor above the range that tokens may reach.
    #[error("a token floor of {asked} is above the largest that may be brought (2^53 - 2^32)")]
    Floor {
        /// What was brought.
        asked: u64,
    },
    /// A number of keys to be taken at once that is outside its limits.
    #[error("1 to 64 keys can be taken at once, not {asked}")]
    KeyCount {
        /// How many were named.
        asked: usize,
    },
    /// A key that was named twice among those to be taken at once.
    #[error("the key {key:?} is named twice")]
    RepeatedKey {
        /// The key.
        key: Key,
    },
    /// A text that is no hand-off, or one of a version that is not known here. The text itself is
    /// not shown: it is secret.
    #[error("not a hand-off: {problem}")]
    HandoffText {
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A hand-off that was to be adopted as another kind of guard.
    #[error("a hand-off of a {carries} cannot be adopted as a {asked}")]
    HandoffKind {
        /// What it carries.
        carries: &'static str,
        /// What it was to be adopted as.
        asked: &'static str,
    },
    /// Anything else about a setting.
    #[error("{what}: {problem}")]
    Setting {
        /// Which setting.
        what: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

impl InvalidInput {
    /// Checks a limit to the time of a call or of a part of one: a client's and a backend's have
    /// the same range.
    ///
    /// # Errors
    /// [`InvalidInput::Setting`] that names `what` was set.
    pub fn check_time_limit(what: &'static str, asked: Duration) -> Result<(), Self> {
        if (MIN_CALL_TIMEOUT..=MAX_CALL_TIMEOUT).contains(&asked) {
            return Ok(());
        }
        Err(Self::Setting {
            what,
            problem: format!("{asked:?} is outside the limits (10 ms to 5 s)"),
        })
    }
}

/// The error of a client library.
type Cause = Arc<dyn StdError + Send + Sync>;

/// Why a backend could not answer; its variants say what the caller may do next.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The command was **not executed**; the same may be tried again later.
    #[error("unavailable: {reason}")]
    Unavailable {
        /// What happened.
        reason: String,
        /// The client library's error, whose words are in `reason`: for programs, and no
        /// [`source`](StdError::source), or reports would say everything twice.
        cause: Option<Cause>,
    },
    /// The command may or may not have been executed; retry the same operation, or end it.
    #[error("outcome unknown: {reason}")]
    OutcomeUnknown {
        /// What happened.
        reason: String,
        /// The client library's error, whose words are in `reason`: for programs, and no
        /// [`source`](StdError::source), or reports would say everything twice.
        cause: Option<Cause>,
    },
    /// The server refuses for good; the configuration must be changed.
    #[error("rejected by the server: {reason}")]
    Rejected {
        /// What the server said.
        reason: String,
        /// The client library's error, whose words are in `reason`: for programs, and no
        /// [`source`](StdError::source), or reports would say everything twice.
        cause: Option<Cause>,
    },
    /// Something else lives under the key; it was not touched.
    #[error("the key holds a foreign value ({found})")]
    ForeignValue {
        /// Its type, or its format version.
        found: String,
    },
    /// The backend does not have this command.
    #[error("this backend does not support {what}")]
    Unsupported {
        /// The command.
        what: &'static str,
    },
    /// The backend was closed.
    #[error("the backend is closed")]
    Closed,
}

impl BackendError {
    /// Not executed; may be tried again.
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self::Unavailable {
            reason: reason.into(),
            cause: None,
        }
    }

    /// Perhaps executed.
    pub fn outcome_unknown(reason: impl Into<String>) -> Self {
        Self::OutcomeUnknown {
            reason: reason.into(),
            cause: None,
        }
    }

    /// Refused for good.
    pub fn rejected(reason: impl Into<String>) -> Self {
        Self::Rejected {
            reason: reason.into(),
            cause: None,
        }
    }

    /// The same with the client library's error, where the variant has room for one. The
    /// `reason` must have its words already.
    #[must_use]
    pub fn with_cause(mut self, below: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        if let Self::Unavailable { cause, .. }
        | Self::OutcomeUnknown { cause, .. }
        | Self::Rejected { cause, .. } = &mut self
        {
            *cause = Some(Arc::from(below.into()));
        }
        self
    }

    /// The same with what was being done in front of the reason, where there is one.
    #[must_use]
    pub fn with_context(mut self, doing: impl fmt::Display) -> Self {
        if let Self::Unavailable { reason, .. }
        | Self::OutcomeUnknown { reason, .. }
        | Self::Rejected { reason, .. } = &mut self
        {
            *reason = format!("{doing}: {reason}");
        }
        self
    }

    /// Whether trying the same operation again may help.
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::OutcomeUnknown { .. })
    }
}

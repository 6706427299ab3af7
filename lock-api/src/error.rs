//! Errors of invalid input and of backends.

use std::error::Error as StdError;
use std::fmt;
use std::ops::{Deref, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

use crate::bounds::{
    MACHINE_MIN_LEASE, MAX_CALL_TIMEOUT, MAX_FLOOR, MAX_INFO_BYTES, MAX_KEY_BYTES,
    MAX_KEYS_AT_ONCE, MAX_LABEL_BYTES, MAX_NOTE_BYTES, MAX_NOTE_KEEP, MAX_PERMITS,
    MAX_WAITER_LEASE, MIN_CALL_TIMEOUT,
};
use crate::id::Key;
use crate::request::{Kind, Mode};

/// Invalid input. It is refused before any I/O: nothing was sent or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidInput {
    /// The key is empty or too long.
    #[error("a key has 1 to {max} bytes, this one has {bytes}", max = MAX_KEY_BYTES)]
    KeyLength {
        /// Its length in bytes.
        bytes: usize,
    },
    /// The label is too long.
    #[error("a label has at most {max} bytes, this one has {bytes}", max = MAX_LABEL_BYTES)]
    LabelLength {
        /// Its length in bytes.
        bytes: usize,
    },
    /// The lease is outside its limits.
    #[error("a lease of {asked:?} is outside the limits ({})", display(limits))]
    Lease {
        /// The lease that was asked for.
        asked: Duration,
        /// The limits. A client has narrower ones than the requests to a backend.
        limits: RangeInclusive<Duration>,
    },
    /// The waiter lease of a [`LockSpec`](crate::LockSpec) is outside its limits.
    #[error(
        "a waiter lease of {asked:?} is outside the limits ({})",
        display(&(MACHINE_MIN_LEASE..=MAX_WAITER_LEASE))
    )]
    WaiterLease {
        /// The waiter lease that was asked for.
        asked: Duration,
    },
    /// The number of permits to acquire is 0, or above the capacity of the semaphore.
    #[error("1 to {capacity} permits can be acquired at once, not {asked}")]
    Permits {
        /// The number that was asked for.
        asked: u32,
        /// How many permits the semaphore has.
        capacity: u32,
    },
    /// The capacity of a semaphore is outside its limits.
    #[error("a semaphore has 1 to {max} permits in total, not {asked}", max = MAX_PERMITS)]
    Capacity {
        /// The capacity that was asked for.
        asked: u32,
    },
    /// The kind of lock does not have this mode.
    #[error("{kind:?} has no mode {mode:?}")]
    ModeForKind {
        /// The mode.
        mode: Mode,
        /// The kind.
        kind: Kind,
    },
    /// The token floor is above [`MAX_FLOOR`](crate::bounds::MAX_FLOOR).
    #[error("a token floor of {asked} is above the limit ({max})", max = MAX_FLOOR)]
    Floor {
        /// The floor.
        asked: u64,
    },
    /// The note is too long.
    #[error("a note has at most {max} bytes, this one has {bytes}", max = MAX_NOTE_BYTES)]
    NoteLength {
        /// Its length in bytes.
        bytes: usize,
    },
    /// The info of a leader is too long.
    #[error("the info of a leader has at most {max} bytes, this one has {bytes}", max = MAX_INFO_BYTES)]
    InfoLength {
        /// Its length in bytes.
        bytes: usize,
    },
    /// The note would be kept too long.
    #[error("a note is kept for at most {max:?}, not {asked:?}", max = MAX_NOTE_KEEP)]
    NoteKeep {
        /// The time that was asked for.
        asked: Duration,
    },
    /// The number of keys to lock at once is outside its limits.
    #[error("1 to {max} keys can be locked at once, not {asked}", max = MAX_KEYS_AT_ONCE)]
    KeyCount {
        /// How many keys were named.
        asked: usize,
    },
    /// A key is named twice among the keys to lock at once.
    #[error("the key {key:?} is named twice")]
    RepeatedKey {
        /// The key.
        key: Key,
    },
    /// The key is not one of the guard's keys.
    #[error("the guard does not hold the key {key:?}")]
    OtherKey {
        /// The key.
        key: Key,
    },
    /// A call of the [blocking](crate::blocking) API in an async task, whose thread it would block.
    #[cfg(feature = "blocking")]
    #[error("a blocking call in an async task: make it in `spawn_blocking`, or use the async API")]
    AsyncContext,
    /// Another setting is invalid.
    #[error("{what}: {reason}")]
    Setting {
        /// The name of the setting.
        what: &'static str,
        /// What is wrong with the setting.
        reason: String,
    },
}

impl InvalidInput {
    /// Checks a timeout of a call, or of a part of a call. Clients and backends accept the same
    /// range: 10 ms to 5 s.
    ///
    /// # Errors
    /// [`InvalidInput::Setting`] with the name `what` if `asked` is outside the range.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use leasehold_api::InvalidInput;
    ///
    /// let timeout = Duration::from_secs(60);
    /// let error = InvalidInput::check_time_limit("connect_timeout", timeout).unwrap_err();
    /// assert_eq!(error.to_string(), "connect_timeout: 60s is outside the limits (10ms to 5s)");
    /// ```
    pub fn check_time_limit(what: &'static str, asked: Duration) -> Result<(), Self> {
        Self::check_time(what, asked, MIN_CALL_TIMEOUT..=MAX_CALL_TIMEOUT)
    }

    /// Checks a time against its limits.
    ///
    /// # Errors
    /// [`InvalidInput::Setting`] with the name `what` if `asked` is outside the limits.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use leasehold_api::InvalidInput;
    ///
    /// let limits = Duration::from_millis(10)..=Duration::from_secs(60);
    /// let error = InvalidInput::check_time("pause", Duration::ZERO, limits).unwrap_err();
    /// assert_eq!(error.to_string(), "pause: 0ns is outside the limits (10ms to 60s)");
    /// ```
    pub fn check_time(
        what: &'static str,
        asked: Duration,
        limits: RangeInclusive<Duration>,
    ) -> Result<(), Self> {
        if limits.contains(&asked) {
            return Ok(());
        }
        let limits = display(&limits);
        let reason = format!("{asked:?} is outside the limits ({limits})");
        Err(Self::setting(what, reason))
    }

    /// Returns the error of a setting, or of a URL, that can't be used.
    ///
    /// # Examples
    /// ```
    /// use leasehold_api::InvalidInput;
    ///
    /// let error = InvalidInput::setting("URL", "it has no host");
    /// assert_eq!(error.to_string(), "URL: it has no host");
    /// ```
    pub fn setting(what: &'static str, reason: impl fmt::Display) -> Self {
        Self::Setting {
            what,
            reason: reason.to_string(),
        }
    }

    pub(crate) fn check_lease(
        asked: Duration,
        limits: RangeInclusive<Duration>,
    ) -> Result<(), Self> {
        if limits.contains(&asked) {
            return Ok(());
        }
        Err(Self::Lease { asked, limits })
    }
}

fn display(limits: &RangeInclusive<Duration>) -> String {
    format!("{:?} to {:?}", limits.start(), limits.end())
}

/// The error of a client library, shared by the copies of a [`BackendError`] or an
/// [`Error`](crate::Error).
///
/// Their [`source`](StdError::source) is the library's error itself, so you can downcast it.
#[derive(Clone)]
pub struct Cause(Arc<dyn StdError + Send + Sync>);

impl Deref for Cause {
    type Target = dyn StdError + Send + Sync;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Displays an error and its sources: `error: source: source of the source`.
pub(crate) struct Chain<'a>(pub(crate) &'a dyn StdError);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut error = self.0;
        while let Some(source) = error.source() {
            write!(f, ": {source}")?;
            error = source;
        }
        Ok(())
    }
}

/// Why a backend has no reply. The variant says what you can do next.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The command was **not executed**. Try the same operation again later.
    #[error("unavailable: {reason}")]
    #[non_exhaustive]
    Unavailable {
        /// What happened.
        reason: String,
        /// The client library's error. `reason` does not repeat it.
        source: Option<Cause>,
    },
    /// The command may or may not have been executed. Retry the same operation, or release it.
    #[error("outcome unknown: {reason}")]
    #[non_exhaustive]
    OutcomeUnknown {
        /// What happened.
        reason: String,
        /// The client library's error. `reason` does not repeat it.
        source: Option<Cause>,
    },
    /// The server refuses the command, and goes on to until somebody changes a setting, a password or a right.
    #[error("rejected by the server: {reason}")]
    #[non_exhaustive]
    Rejected {
        /// What the server answered.
        reason: String,
        /// The client library's error. `reason` does not repeat it.
        source: Option<Cause>,
    },
    /// The key holds a value that is not a lock. The value was not touched.
    #[error("the key holds a foreign value ({found})")]
    #[non_exhaustive]
    ForeignValue {
        /// The type of the value, or its format version.
        found: String,
    },
    /// The backend does not implement this command.
    #[error("this backend does not support {what}")]
    #[non_exhaustive]
    Unsupported {
        /// The command.
        what: &'static str,
    },
    /// The backend was closed.
    #[error("the backend is closed")]
    Closed,
}

impl BackendError {
    /// An [`Unavailable`](Self::Unavailable) error without a source.
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self::Unavailable {
            reason: reason.into(),
            source: None,
        }
    }

    /// An [`OutcomeUnknown`](Self::OutcomeUnknown) error without a source.
    pub fn outcome_unknown(reason: impl Into<String>) -> Self {
        Self::OutcomeUnknown {
            reason: reason.into(),
            source: None,
        }
    }

    /// A [`Rejected`](Self::Rejected) error without a source.
    pub fn rejected(reason: impl Into<String>) -> Self {
        Self::Rejected {
            reason: reason.into(),
            source: None,
        }
    }

    /// A [`ForeignValue`](Self::ForeignValue) error. `found` is the type of the value, or its format
    /// version.
    pub fn foreign_value(found: impl Into<String>) -> Self {
        Self::ForeignValue {
            found: found.into(),
        }
    }

    /// An [`Unsupported`](Self::Unsupported) error.
    pub const fn unsupported(what: &'static str) -> Self {
        Self::Unsupported { what }
    }

    /// Sets the client library's error as the source. Does nothing if the variant has none.
    ///
    /// The `reason` must not repeat the text of that error, because error reports print both.
    ///
    /// ```
    /// use std::error::Error;
    ///
    /// use leasehold_api::BackendError;
    ///
    /// let library_error = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
    /// let error = BackendError::unavailable("no connection").with_source(library_error);
    /// assert_eq!(error.to_string(), "unavailable: no connection");
    /// assert!(error.source().is_some_and(|source| source.is::<std::io::Error>()));
    /// ```
    #[must_use]
    pub fn with_source(mut self, error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        if let Self::Unavailable { source, .. }
        | Self::OutcomeUnknown { source, .. }
        | Self::Rejected { source, .. } = &mut self
        {
            *source = Some(Cause(Arc::from(error.into())));
        }
        self
    }

    /// Puts `doing` in front of the reason: `"{doing}: {reason}"`. Does nothing if the variant has
    /// no reason.
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

    /// Turns an unknown outcome into "unavailable": a call that changes nothing leaves no doubt.
    pub(crate) fn not_executed(self) -> Self {
        match self {
            Self::OutcomeUnknown { reason, source } => Self::Unavailable { reason, source },
            other => other,
        }
    }

    /// One error for several attempts to connect. It is permanent if all of these errors are: an address that
    /// doesn't answer now may lead to a server that accepts this client.
    pub fn of_all(mut errors: Vec<Self>) -> Self {
        match errors.len() {
            0 => return Self::unavailable("there is no address"),
            1 => return errors.swap_remove(0),
            _ if errors.iter().all(|error| !error.is_transient()) => return errors.swap_remove(0),
            _ => {}
        }
        let reason = |error: &Self| {
            let reason = match error {
                Self::Unavailable { reason, .. }
                | Self::OutcomeUnknown { reason, .. }
                | Self::Rejected { reason, .. } => reason.clone(),
                other => other.to_string(),
            };
            match error.source() {
                Some(source) => format!("{reason}: {source}"),
                None => reason,
            }
        };
        let reasons: Vec<String> = errors.iter().map(reason).collect();
        Self::unavailable(reasons.join("; "))
    }

    /// Whether a retry of the same operation may succeed.
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::OutcomeUnknown { .. })
    }

    /// Whether no later try of the same command can succeed: the key holds no lock any more, or the backend is closed or
    /// doesn't have the command.
    ///
    /// [`Rejected`](Self::Rejected) is neither transient nor final. A caller hears of it at once. Background
    /// work that must get done, such as a release, is tried again, because somebody may restore the right or the
    /// password that is missing.
    pub const fn is_final(&self) -> bool {
        matches!(
            self,
            Self::ForeignValue { .. } | Self::Unsupported { .. } | Self::Closed
        )
    }
}

/// Why a lock service can't be used: the error of the constructors that connect to one.
///
/// # Examples
/// ```
/// use leasehold_api::{BackendError, ConnectError};
///
/// fn advice(error: &ConnectError) -> &'static str {
///     match error {
///         ConnectError::Backend(error) if error.is_transient() => "try again later",
///         ConnectError::Backend(_) => "look at the server, its users and its certificate",
///         _ => "look at the URL and the options",
///     }
/// }
/// # assert_eq!(advice(&BackendError::unavailable("no connection").into()), "try again later");
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A URL or a setting can't be used. Nothing was sent. The message contains no password.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// The server can't be reached, doesn't accept this client, or shows a certificate that isn't accepted.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

//! Errors of invalid input and of backends.

use std::error::Error as StdError;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Invalid input. It is refused before any I/O: nothing was sent or changed.
///
/// No program can mend it, so it has no variants: its text says to a person what is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidInput(Box<str>);

impl InvalidInput {
    pub(crate) fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
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
        Self::new(format!("{what}: {reason}"))
    }
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

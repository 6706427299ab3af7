//! What went wrong on the way to the server, and what that says about the command.

use std::error::Error;
use std::fmt;

use leasehold_api::{BackendError, InvalidInput};

use super::access::missing_access;
use crate::script::{ErrorClass, classify, without_arguments};

/// Why a backend could not be made.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A setting or a URL that cannot be used; nothing was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// The server could not be reached, or does not accept this client.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl ConnectError {
    /// A URL, or a client of the user's, that its library cannot use.
    pub fn unusable(what: &'static str, problem: &impl fmt::Display) -> Self {
        Self::Invalid(InvalidInput::Setting {
            what,
            problem: problem.to_string(),
        })
    }
}

/// An exchange that failed.
#[derive(Debug)]
pub struct Failure {
    kind: FailureKind,
    text: String,
    /// Whether the whole text would show arguments of a command.
    is_cut: bool,
    cause: Option<Cause>,
}

type Cause = Box<dyn Error + Send + Sync>;

/// How far the command came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The server answered with an error.
    Answered(ErrorClass),
    /// No connection could be made: nothing was sent.
    Refused,
    /// The client library itself refuses: nothing was sent, and trying again does not help.
    Misconfigured,
    /// Anything else. A cut before the execution looks the same as one after it.
    Lost,
}

impl Failure {
    /// A failure with the words for it, but for the arguments of a command, which some servers
    /// repeat: they authorise.
    pub fn new(kind: FailureKind, text: impl Into<String>) -> Self {
        let text = text.into();
        let shown = without_arguments(&text);
        Self {
            kind,
            is_cut: shown != text,
            text: shown.to_owned(),
            cause: None,
        }
    }

    /// The connection ended, or was given up.
    pub fn lost(text: impl Into<String>) -> Self {
        Self::new(FailureKind::Lost, text)
    }

    /// What answers is no server that can be used.
    pub fn misconfigured(text: impl Into<String>) -> Self {
        Self::new(FailureKind::Misconfigured, text)
    }

    /// The server answered with an error: its first word, and the rest.
    pub fn answered(code: &str, message: &str) -> Self {
        let kind = FailureKind::Answered(classify(code, message));
        Self::new(kind, format!("{code} {message}"))
    }

    /// An answer that no server gives to `command`.
    pub fn garbled(command: &str, answer: &impl fmt::Debug) -> Self {
        Self::lost(format!("{command} was answered with {answer:?}"))
    }

    /// With the library's own error, for those who look at the sources of errors.
    #[must_use]
    pub fn with_cause(mut self, cause: impl Error + Send + Sync + 'static) -> Self {
        // It would show what was cut off.
        if !self.is_cut {
            self.cause = Some(Box::new(cause));
        }
        self
    }

    /// How far the command came.
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// The failure of a command that changes nothing, or that came before any that does.
    pub(crate) fn at_connect(self, prefix: &str) -> BackendError {
        match self.kind {
            FailureKind::Misconfigured | FailureKind::Answered(ErrorClass::Rejected) => {
                self.into_error(prefix, BackendError::rejected)
            }
            _ => self.into_error(prefix, BackendError::unavailable),
        }
    }

    /// The failure of a command that may have been executed.
    pub(crate) fn in_call(self, prefix: &str) -> BackendError {
        match self.kind {
            FailureKind::Misconfigured => self.into_error(prefix, BackendError::rejected),
            FailureKind::Refused => self.into_error(prefix, BackendError::unavailable),
            FailureKind::Lost => self.into_error(prefix, BackendError::outcome_unknown),
            FailureKind::Answered(class) => self.into_error(prefix, |text| class.into_error(text)),
        }
    }

    fn into_error(self, prefix: &str, make: impl FnOnce(String) -> BackendError) -> BackendError {
        let text = match missing_access(prefix, &self.text) {
            Some(missing) => format!("{} ({missing})", self.text),
            None => self.text,
        };
        let error = make(text);
        match self.cause {
            Some(cause) => error.with_cause(cause),
            None => error,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_a_command_is_sent_nothing_is_unknown() {
        for kind in [
            FailureKind::Lost,
            FailureKind::Refused,
            FailureKind::Answered(ErrorClass::OutcomeUnknown),
        ] {
            let failure = || Failure::new(kind, "gone");
            let error = failure().at_connect("p:");
            assert!(matches!(error, BackendError::Unavailable { .. }), "{error}");
            let unknown = matches!(failure().in_call("p:"), BackendError::OutcomeUnknown { .. });
            assert_eq!(unknown, kind != FailureKind::Refused, "{kind:?}");
        }
    }
}

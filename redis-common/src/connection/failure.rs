//! Errors of an exchange with the server, and what each says about the command.

use std::error::Error;
use std::fmt;

use leasehold_api::{BackendError, InvalidInput};

use super::access::missing_access;
use crate::script::{ErrorClass, classify, without_arguments};

/// Why a backend could not be made.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A setting or a URL can't be used. Nothing was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// The server can't be reached, or doesn't accept this client.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl ConnectError {
    /// Says that the client library can't use a URL or a client.
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
    /// Whether arguments of a command were cut from the text.
    is_cut: bool,
    cause: Option<Cause>,
}

type Cause = Box<dyn Error + Send + Sync>;

/// How far a command got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The server answered with an error.
    Answered(ErrorClass),
    /// No connection was made. Nothing was sent.
    Refused,
    /// The client library refuses the command. Nothing was sent, and trying again doesn't help.
    Misconfigured,
    /// Anything else. A cut before the execution looks the same as one after it.
    Lost,
}

impl Failure {
    /// Makes a failure with this text. Cuts the arguments of a command, which some servers repeat:
    /// whoever knows them may release or renew.
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

    /// What answers isn't a server that can be used.
    pub fn misconfigured(text: impl Into<String>) -> Self {
        Self::new(FailureKind::Misconfigured, text)
    }

    /// The server answered with an error: its first word, and the rest.
    pub fn answered(code: &str, message: &str) -> Self {
        let kind = FailureKind::Answered(classify(code, message));
        Self::new(kind, format!("{code} {message}"))
    }

    /// An answer that no server sends to `command`.
    pub fn garbled(command: &str, answer: &impl fmt::Debug) -> Self {
        Self::lost(format!("{command} was answered with {answer:?}"))
    }

    /// Adds the library's own error as the source of this one.
    #[must_use]
    pub fn with_cause(mut self, cause: impl Error + Send + Sync + 'static) -> Self {
        // The library's error would show what was cut.
        if !self.is_cut {
            self.cause = Some(Box::new(cause));
        }
        self
    }

    /// How far the command got.
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// The error for a command that changes nothing, or that was sent before any that does.
    pub(crate) fn at_connect(self, prefix: &str) -> BackendError {
        match self.kind {
            FailureKind::Misconfigured | FailureKind::Answered(ErrorClass::Rejected) => {
                self.into_error(prefix, BackendError::rejected)
            }
            _ => self.into_error(prefix, BackendError::unavailable),
        }
    }

    /// The error for a command that the server may have executed.
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

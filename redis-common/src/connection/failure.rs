//! Failed exchanges with the server, and how far the command got.

use std::error::Error;
use std::fmt;

use leasehold_api::BackendError;

use super::access::missing_access;
use super::{cause, tls};
use crate::script::{ErrorClass, classify, without_arguments};

/// An exchange that failed.
#[derive(Debug)]
pub struct Failure {
    kind: FailureKind,
    text: String,
    /// Whether the arguments of a command were removed from the text.
    is_cut: bool,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// How far a command got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The server answered with an error.
    Answered(ErrorClass),
    /// No connection was made. Nothing was sent.
    Refused,
    /// The client library refuses the command. Nothing was sent, and a retry doesn't help.
    Misconfigured,
    /// Anything else. The command may or may not have been executed.
    Lost,
}

impl Failure {
    /// Creates a failure. Removes the arguments of a command from the text. Some servers repeat
    /// them, and they authorize releases and renewals.
    pub fn new(kind: FailureKind, text: impl Into<String>) -> Self {
        let text = text.into();
        let shown = without_arguments(&text);
        Self {
            kind,
            is_cut: shown != text,
            text: shown.to_owned(),
            source: None,
        }
    }

    /// The connection ended or was abandoned.
    pub fn lost(text: impl Into<String>) -> Self {
        Self::new(FailureKind::Lost, text)
    }

    /// The server or the client library can't be used as it is configured.
    pub fn misconfigured(text: impl Into<String>) -> Self {
        Self::new(FailureKind::Misconfigured, text)
    }

    /// The server answered with an error: its first word is `code`, the rest is `message`.
    pub fn answered(code: &str, message: &str) -> Self {
        let kind = FailureKind::Answered(classify(code, message));
        Self::new(kind, format!("{code} {message}"))
    }

    /// The server sent a malformed answer to `command`.
    pub fn garbled(command: &str, answer: &impl fmt::Debug) -> Self {
        Self::lost(format!("{command} was answered with {answer:?}"))
    }

    /// Adds the library's own error, which becomes the source of the backend's error.
    #[must_use]
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        // The library's error would show the removed arguments.
        if !self.is_cut {
            self.source = Some(Box::new(source));
        }
        self
    }

    /// Returns how far the command got.
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// The error for a command that changes nothing: the outcome of a call is never unknown.
    pub(crate) fn at_connect(self, prefix: &str) -> BackendError {
        match self.kind {
            FailureKind::Lost | FailureKind::Refused => match tls::explain(&self.text) {
                Some(check) => with_source(BackendError::rejected(check), self.source),
                // The message says all that the library's error does.
                None => BackendError::unavailable(cause::name(&self.text)),
            },
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
        let missing = missing_access(prefix, &self.text);
        // The source has the text, and a report prints both.
        let mut reason = match self.source {
            Some(_) => self.summary(),
            None => self.text,
        };
        if let Some(missing) = missing {
            reason = format!("{reason} ({missing})");
        }
        with_source(make(reason), self.source)
    }

    fn summary(&self) -> String {
        match self.kind {
            FailureKind::Answered(_) => {
                let code = self.text.split(' ').next().unwrap_or_default();
                format!("the server answered {code}")
            }
            FailureKind::Refused => "no connection".into(),
            FailureKind::Misconfigured => "the configuration can't be used".into(),
            FailureKind::Lost => "the connection failed".into(),
        }
    }
}

fn with_source(error: BackendError, source: Option<Box<dyn Error + Send + Sync>>) -> BackendError {
    match source {
        Some(source) => error.with_source(source),
        None => error,
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
    fn connect_failure_has_a_known_outcome() {
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

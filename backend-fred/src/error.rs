//! What went wrong on the way to the server, and what that says about the command.

use fred::error::{Error, ErrorKind};
use leasehold_api::{BackendError, InvalidInput};
use leasehold_redis_protocol::{ErrorClass, classify, missing_access, without_arguments};

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

/// An exchange that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    text: String,
    cause: Option<Error>,
}

/// How far the command came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
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
    /// The connection ended, or was given up.
    pub(crate) fn lost(text: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Lost,
            text: text.into(),
            cause: None,
        }
    }

    /// The server refuses for good, without saying why.
    pub(crate) fn misconfigured(text: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Misconfigured,
            text: text.into(),
            cause: None,
        }
    }

    /// The client has no connection at the moment.
    pub(crate) fn not_connected() -> Self {
        Self {
            kind: FailureKind::Refused,
            text: "the client is not connected".into(),
            cause: None,
        }
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

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = match (error.kind(), reply_code(error.details())) {
            (ErrorKind::IO | ErrorKind::Timeout | ErrorKind::Canceled, _) => FailureKind::Lost,
            (ErrorKind::Backpressure, _) => FailureKind::Refused,
            // The library has kinds for few of the server's errors, but keeps their words.
            (_, Some((code, message))) => FailureKind::Answered(classify(code, message)),
            (ErrorKind::Config | ErrorKind::Url, None) => FailureKind::Misconfigured,
            _ => FailureKind::Lost,
        };
        let text = match kind {
            FailureKind::Answered(_) => error.details().to_owned(),
            _ => error.to_string(),
        };
        let shown = without_arguments(&text);
        Self {
            kind,
            // The cause would show what was cut off.
            cause: (shown == text).then_some(error),
            text: shown.to_owned(),
        }
    }
}

/// The first word of an error reply, and the rest; `None` for the library's own sentences.
fn reply_code(details: &str) -> Option<(&str, &str)> {
    let (code, message) = details.split_once(' ').unwrap_or((details, ""));
    let is_code = code.len() > 2 && code.bytes().all(|byte| byte.is_ascii_uppercase());
    is_code.then_some((code, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kind: ErrorKind, details: &'static str) -> Error {
        Error::new(kind, details)
    }

    #[test]
    fn what_the_library_says_is_told_apart_by_what_it_means_for_the_command() {
        use ErrorClass::{NoScript, OutcomeUnknown, Rejected, Unavailable};
        use FailureKind::{Answered, Lost, Misconfigured, Refused};
        let server = |text| error(ErrorKind::Unknown, text);
        let table = [
            (server("NOSCRIPT No matching script."), Answered(NoScript)),
            (server("LOADING in memory"), Answered(Unavailable)),
            (server("OOM command not allowed"), Answered(Unavailable)),
            (server("BUSY running a script"), Answered(Unavailable)),
            (server("NOPERM no"), Answered(Rejected)),
            (server("ERR syntax error"), Answered(Rejected)),
            (server("WHAT is this"), Answered(OutcomeUnknown)),
            (error(ErrorKind::Auth, "WRONGPASS no"), Answered(Rejected)),
            (
                error(ErrorKind::Cluster, "MOVED 1 a:1"),
                Answered(Unavailable),
            ),
            (server("channel closed"), Lost),
            (error(ErrorKind::IO, "Connection closed."), Lost),
            (error(ErrorKind::Timeout, "Request timed out."), Lost),
            (error(ErrorKind::Canceled, "Canceled."), Lost),
            (error(ErrorKind::Protocol, "garbage"), Lost),
            (error(ErrorKind::Backpressure, ""), Refused),
            (error(ErrorKind::Config, "no"), Misconfigured),
        ];
        for (error, kind) in table {
            let failure = Failure::from(error);
            assert_eq!(failure.kind, kind, "{}", failure.text);
        }
    }

    #[test]
    fn before_a_command_is_sent_nothing_is_unknown() {
        for kind in [
            FailureKind::Lost,
            FailureKind::Refused,
            FailureKind::Answered(ErrorClass::OutcomeUnknown),
        ] {
            let failure = || Failure {
                kind,
                ..Failure::lost("gone")
            };
            let error = failure().at_connect("p:");
            assert!(matches!(error, BackendError::Unavailable { .. }), "{error}");
            let unknown = matches!(failure().in_call("p:"), BackendError::OutcomeUnknown { .. });
            assert_eq!(unknown, kind != FailureKind::Refused, "{kind:?}");
        }
    }
}

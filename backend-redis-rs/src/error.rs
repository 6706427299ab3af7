//! What went wrong on the way to the server, and what that says about the command.

use leasehold_api::{BackendError, InvalidInput};
use leasehold_redis_protocol::{ErrorClass, classify, missing_access, without_arguments};
use redis::{ErrorKind, RedisError};

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
    cause: Option<RedisError>,
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

    /// What answers is no server that can be used.
    pub(crate) fn misconfigured(text: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Misconfigured,
            text: text.into(),
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

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        let (kind, text) = match (error.code(), error.kind()) {
            (Some(code), _) => {
                let detail = error.detail().unwrap_or_default();
                let class = classify(code, detail);
                (FailureKind::Answered(class), format!("{code} {detail}"))
            }
            // The library keeps back what the server said to AUTH or HELLO.
            (None, ErrorKind::AuthenticationFailed) => (
                FailureKind::Misconfigured,
                format!("WRONGPASS or NOAUTH: {error}"),
            ),
            (None, ErrorKind::InvalidClientConfig | ErrorKind::RESP3NotSupported) => {
                (FailureKind::Misconfigured, error.to_string())
            }
            // Before "dropped", which a refusal counts as too.
            _ if error.is_connection_refusal() => (FailureKind::Refused, error.to_string()),
            _ => (FailureKind::Lost, error.to_string()),
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

#[cfg(test)]
mod tests {
    use std::io;

    use redis::ServerError;

    use super::*;

    fn server(text: &str) -> RedisError {
        let bytes = format!("-{text}\r\n").into_bytes();
        let value = redis::parse_redis_value(&bytes).expect("an error reply");
        match value {
            redis::Value::ServerError(error) => ServerError::into(error),
            other => panic!("{other:?}"),
        }
    }

    fn os(kind: io::ErrorKind) -> RedisError {
        io::Error::from(kind).into()
    }

    #[test]
    fn what_the_library_says_is_told_apart_by_what_it_means_for_the_command() {
        use ErrorClass::{NoScript, OutcomeUnknown, Rejected, Unavailable};
        use FailureKind::{Answered, Lost, Misconfigured, Refused};
        let table = [
            (server("NOSCRIPT No matching script."), Answered(NoScript)),
            (server("LOADING in memory"), Answered(Unavailable)),
            (server("OOM command not allowed"), Answered(Unavailable)),
            (server("BUSY running a script"), Answered(Unavailable)),
            (server("NOPERM no"), Answered(Rejected)),
            (server("ERR syntax error"), Answered(Rejected)),
            (server("WHAT is this"), Answered(OutcomeUnknown)),
            (os(io::ErrorKind::ConnectionRefused), Refused),
            (os(io::ErrorKind::NotFound), Refused),
            (os(io::ErrorKind::BrokenPipe), Lost),
            (os(io::ErrorKind::TimedOut), Lost),
            ((ErrorKind::Parse, "garbage").into(), Lost),
            ((ErrorKind::InvalidClientConfig, "no").into(), Misconfigured),
            (
                (ErrorKind::AuthenticationFailed, "no").into(),
                Misconfigured,
            ),
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

//! Classifies the library's errors by how far the command got.

use leasehold_redis_common::connection::{Failure, FailureKind};
use redis::{ErrorKind, RedisError};

pub(crate) fn failure(error: RedisError) -> Failure {
    let failure = match (error.code(), error.kind()) {
        (Some(code), _) => Failure::answered(code, error.detail().unwrap_or_default()),
        // The library hides the server's reply to AUTH.
        (None, ErrorKind::AuthenticationFailed) => {
            Failure::answered("WRONGPASS", &error.to_string())
        }
        (None, ErrorKind::InvalidClientConfig | ErrorKind::RESP3NotSupported) => {
            Failure::misconfigured(error.to_string())
        }
        // A refused connection: nothing was sent.
        _ if error.is_connection_refusal() => Failure::new(FailureKind::Refused, error.to_string()),
        _ => Failure::lost(error.to_string()),
    };
    failure.with_source(error)
}

#[cfg(test)]
mod tests {
    use std::io;

    use leasehold_redis_common::script::ErrorClass;
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
    fn library_errors_are_classified() {
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
                Answered(Rejected),
            ),
        ];
        for (error, kind) in table {
            let failure = failure(error);
            assert_eq!(failure.kind(), kind, "{failure}");
        }
    }
}

//! Classifies the library's errors by how far the command got.

use fred::error::{Error, ErrorKind};
use leasehold_redis_common::connection::{Failure, FailureKind};

pub(crate) fn failure(error: Error) -> Failure {
    let failure = match (error.kind(), reply_code(error.details())) {
        (ErrorKind::IO | ErrorKind::Timeout, _) => Failure::lost(error.to_string()),
        // The library's own text is "Canceled: Canceled."
        (ErrorKind::Canceled, _) => Failure::lost("the connection was lost"),
        (ErrorKind::Backpressure, _) => Failure::new(FailureKind::Refused, error.to_string()),
        // The library has few kinds for the server's errors, but keeps their text.
        (_, Some((code, message))) => Failure::answered(code, message),
        (ErrorKind::Config | ErrorKind::Url, None) => Failure::misconfigured(error.to_string()),
        _ => Failure::lost(error.to_string()),
    };
    failure.with_source(error)
}

/// The first word of an error reply, and the rest. `None` for the library's own messages.
fn reply_code(details: &str) -> Option<(&str, &str)> {
    let (code, message) = details.split_once(' ').unwrap_or((details, ""));
    let is_code = code.len() > 2 && code.bytes().all(|byte| byte.is_ascii_uppercase());
    is_code.then_some((code, message))
}

#[cfg(test)]
mod tests {
    use leasehold_redis_common::script::ErrorClass;

    use super::*;

    fn error(kind: ErrorKind, details: &'static str) -> Error {
        Error::new(kind, details)
    }

    #[test]
    fn library_errors_are_classified() {
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
            let failure = failure(error);
            assert_eq!(failure.kind(), kind, "{failure}");
        }
        let canceled = failure(error(ErrorKind::Canceled, "Canceled."));
        assert_eq!(canceled.to_string(), "the connection was lost");
    }
}

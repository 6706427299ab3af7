//! Classes of error replies.

use leasehold_api::BackendError;

/// The meaning of an error reply to a script call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// Not executed: the server doesn't know the script. Send its source with `EVAL`.
    NoScript,
    /// Not executed. A retry may succeed.
    Unavailable,
    /// Not executed: the server has become a replica. A new connection may reach the new primary,
    /// if the server's name or a proxy leads to it.
    Demoted,
    /// Not executed. A retry fails until somebody changes the configuration.
    Rejected,
    /// The command may or may not have been executed.
    OutcomeUnknown,
}

impl ErrorClass {
    /// Returns the error that a backend returns.
    pub fn into_error(self, reason: impl Into<String>) -> BackendError {
        match self {
            Self::NoScript | Self::Unavailable | Self::Demoted => BackendError::unavailable(reason),
            Self::Rejected => BackendError::rejected(reason),
            Self::OutcomeUnknown => BackendError::outcome_unknown(reason),
        }
    }
}

/// Classifies an error reply by its first word (`code`) and the text after it.
///
/// Only for replies to this crate's scripts. The general part raises errors before its first write only. A fast
/// path may write several times, and its later writes could in principle raise too; no command there is known
/// to fail after the first one has succeeded. An unknown word is [`ErrorClass::OutcomeUnknown`]: it may come
/// from a proxy that has forwarded the command.
pub fn classify(code: &str, message: &str) -> ErrorClass {
    match code {
        "NOSCRIPT" => ErrorClass::NoScript,
        "READONLY" | "MASTERDOWN" => ErrorClass::Demoted,
        "LOADING" | "TRYAGAIN" | "CLUSTERDOWN" | "MOVED" | "ASK" | "BUSY" | "OOM"
        | "NOREPLICAS" | "MISCONF" | "EXECABORT" => ErrorClass::Unavailable,
        "NOAUTH" | "WRONGPASS" | "NOPERM" | "CROSSSLOT" | "WRONGTYPE" | "NOPROTO" | "DENIED" => {
            ErrorClass::Rejected
        }
        "ERR" if is_transient(message) => ErrorClass::Unavailable,
        "ERR" => ErrorClass::Rejected,
        _ => ErrorClass::OutcomeUnknown,
    }
}

/// Whether an `ERR` reply isn't caused by the configuration. (A script can be killed only before
/// its first write.)
fn is_transient(message: &str) -> bool {
    const TRANSIENT: [&str; 2] = ["max number of clients reached", "Script killed by user"];
    TRANSIENT.iter().any(|text| message.contains(text))
}

/// Removes the arguments of a command from an error reply. A server repeats them if it doesn't know
/// the command, and the arguments of a script call authorize releases and renewals.
pub fn without_arguments(reply: &str) -> &str {
    match reply.find(", with args beginning with") {
        Some(end) => &reply[..end],
        None => reply,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_codes_are_classified() {
        let table = [
            ("NOSCRIPT", "No matching script.", ErrorClass::NoScript),
            ("READONLY", "You can't write", ErrorClass::Demoted),
            (
                "MASTERDOWN",
                "Link with MASTER is down",
                ErrorClass::Demoted,
            ),
            ("OOM", "command not allowed", ErrorClass::Unavailable),
            ("NOPERM", "no permission", ErrorClass::Rejected),
            ("ERR", "unknown command 'EVALSHA'", ErrorClass::Rejected),
            (
                "ERR",
                "max number of clients reached",
                ErrorClass::Unavailable,
            ),
            (
                "ERR",
                "Error running script: Script killed by user with SCRIPT KILL",
                ErrorClass::Unavailable,
            ),
            ("PROXYERR", "upstream timed out", ErrorClass::OutcomeUnknown),
            ("", "", ErrorClass::OutcomeUnknown),
        ];
        for (code, message, class) in table {
            assert_eq!(classify(code, message), class, "{code} {message}");
        }
    }

    #[test]
    fn arguments_are_removed() {
        let kept = "ERR unknown command 'EVALSHA'";
        let replies = [
            format!("{kept}, with args beginning with: '1' 'k' 'secret' "),
            kept.into(),
        ];
        for reply in replies {
            assert_eq!(without_arguments(&reply), kept);
        }
    }
}

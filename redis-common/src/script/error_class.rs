//! What an error reply of the server says about the command that caused it.

use leasehold_api::BackendError;

/// What the caller of a script may conclude from an error reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// Not executed: the server does not know the script. Send its source with `EVAL`.
    NoScript,
    /// Not executed; the same may be tried again later.
    Unavailable,
    /// Not executed: the server has become a replica. Whoever is the primary now is found by
    /// connecting anew, where the name or the proxy moves with it.
    Demoted,
    /// Not executed, and it will not be before somebody changes the configuration.
    Rejected,
    /// Nothing is known.
    OutcomeUnknown,
}

impl ErrorClass {
    /// The error that a backend answers with.
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
/// It speaks of replies to this crate's scripts, which raise errors only before their first
/// write. A word that is not known is taken for "nothing is known": a proxy may have made it up
/// after it had passed the command on.
pub fn classify(code: &str, message: &str) -> ErrorClass {
    match code {
        "NOSCRIPT" => ErrorClass::NoScript,
        "READONLY" => ErrorClass::Demoted,
        "LOADING" | "MASTERDOWN" | "TRYAGAIN" | "CLUSTERDOWN" | "MOVED" | "ASK" | "BUSY"
        | "OOM" | "NOREPLICAS" | "MISCONF" | "EXECABORT" => ErrorClass::Unavailable,
        "NOAUTH" | "WRONGPASS" | "NOPERM" | "CROSSSLOT" | "WRONGTYPE" | "NOPROTO" | "DENIED" => {
            ErrorClass::Rejected
        }
        "ERR" if passes_by_itself(message) => ErrorClass::Unavailable,
        "ERR" => ErrorClass::Rejected,
        _ => ErrorClass::OutcomeUnknown,
    }
}

/// The `ERR` replies that are no fault of the configuration. (A script can be killed only
/// before its first write.)
fn passes_by_itself(message: &str) -> bool {
    const PASSING: [&str; 2] = ["max number of clients reached", "Script killed by user"];
    PASSING.iter().any(|text| message.contains(text))
}

/// An error reply without the arguments of the command, which a server repeats if it does not know
/// the command: those of a script's call carry what authorises an end or a renewal.
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
    fn error_words_are_classified_as_documented() {
        let table = [
            ("NOSCRIPT", "No matching script.", ErrorClass::NoScript),
            ("READONLY", "You can't write", ErrorClass::Demoted),
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
    fn arguments_are_cut_off() {
        let told = "ERR unknown command 'EVALSHA'";
        let replies = [
            format!("{told}, with args beginning with: '1' 'k' 'secret' "),
            told.into(),
        ];
        for reply in replies {
            assert_eq!(without_arguments(&reply), told);
        }
    }
}

//! Why a connection failed, in a few words.

use std::borrow::Cow;

/// The causes, each with the words by which the libraries' errors show it, in lower case and without spaces.
/// The `redis` crate shows an error of the operating system as text, fred as debug output.
const CAUSES: [(&str, &[&str]); 8] = [
    ("connection refused", &["connectionrefused"]),
    (
        "the host name can't be resolved",
        &["failedtolookupaddress", "failedtoresolve"],
    ),
    (
        "there is no such socket",
        &[
            "nosuchfile",
            "entitynotfound",
            "kind(notfound)",
            "kind:notfound",
        ],
    ),
    ("permission denied", &["permissiondenied"]),
    ("no route to host", &["noroutetohost", "hostunreachable"]),
    (
        "the network is unreachable",
        &["networkisunreachable", "networkunreachable"],
    ),
    ("timed out", &["timedout"]),
    (
        "the server closed the connection",
        &[
            "connectionreset",
            "brokenpipe",
            "unexpectedendoffile",
            "unexpectedeof",
        ],
    ),
];

/// Names the cause of a failure by the text of the library's error. Returns the text if it is
/// unknown.
pub(crate) fn name(text: &str) -> Cow<'_, str> {
    let squeezed = text.to_ascii_lowercase().replace(' ', "");
    let shows = |words: &[&str]| words.iter().any(|words| squeezed.contains(words));
    match CAUSES.iter().find(|(_, words)| shows(words)) {
        Some((cause, _)) => Cow::Borrowed(cause),
        None => Cow::Borrowed(text),
    }
}

/// The causes that real servers can show are tested with real servers.
#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    /// The text of the `redis` crate, and that of fred.
    #[test]
    fn errors_of_the_operating_system_are_named() {
        for (code, cause) in [
            (111, "connection refused"),
            (2, "there is no such socket"),
            (13, "permission denied"),
            (113, "no route to host"),
            (101, "the network is unreachable"),
            (110, "timed out"),
            (104, "the server closed the connection"),
            (32, "the server closed the connection"),
        ] {
            let error = Error::from_raw_os_error(code);
            let plain = Error::from(error.kind());
            for text in [
                error.to_string(),
                format!("{error:?}"),
                plain.to_string(),
                format!("{plain:?}"),
            ] {
                assert_eq!(name(&text), cause, "{text}");
            }
        }
    }

    #[test]
    fn other_errors_are_named_or_shown() {
        let end = Error::from(ErrorKind::UnexpectedEof);
        for (text, cause) in [
            (
                "failed to lookup address information: Name or service not known",
                "the host name can't be resolved",
            ),
            (&end.to_string(), "the server closed the connection"),
            (&format!("{end:?}"), "the server closed the connection"),
            ("something new", "something new"),
        ] {
            assert_eq!(name(text), cause);
        }
    }
}

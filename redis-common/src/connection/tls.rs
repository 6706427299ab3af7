//! TLS: what a failed handshake means.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const WITHOUT_TLS: &str = "the server doesn't use TLS on this port; \
                           write redis instead of rediss, or use another port";

const WITH_TLS: &str =
    "the server uses TLS on this port; write rediss instead of redis, or use another port";

const NOTHING_IN_COMMON: &str =
    "the server and this client have no TLS version or cipher in common";

/// Says what to check after a failed handshake. `None` if the text is about something else.
///
/// The `redis` crate shows rustls's errors as text, fred as debug output.
pub(crate) fn explain(text: &str) -> Option<&'static str> {
    let has = |part: &str| text.contains(part);
    if has("received fatal alert") || has("AlertReceived") {
        return explain_alert(text);
    }
    if has("UnknownIssuer") || has("BadSignature") {
        Some(
            "the server's certificate was not issued by a known authority; \
             set the authority's certificate with Options::root_certificates",
        )
    } else if has("not valid for name") || has("NotValidForName") {
        Some(
            "the server's certificate is for another host; check the host in the URL, \
             or issue a certificate for it",
        )
    } else if has("certificate expired") || has("(Expired") {
        Some("the server's certificate has expired; renew it, or check this machine's clock")
    } else if has("invalid peer certificate") || has("InvalidCertificate") {
        Some("the server's certificate is invalid")
    } else if has("InvalidContentType") {
        Some(WITHOUT_TLS)
    } else if has("peer is incompatible") || has("PeerIncompatible") {
        Some(NOTHING_IN_COMMON)
    } else {
        None
    }
}

/// Says what an alert of the server means. `None` if it may be transient.
fn explain_alert(text: &str) -> Option<&'static str> {
    if text.contains("CertificateRequired") {
        Some("the server wants a client certificate; set it with Options::client_certificate")
    } else if text.contains("HandshakeFailure") {
        Some(
            "the server wants a client certificate, or has no cipher in common with this client; \
             check Options::client_certificate",
        )
    } else if text.contains("ProtocolVersion") {
        Some(NOTHING_IN_COMMON)
    } else if text.contains("UnknownCA") || text.contains("Certificate") {
        Some(
            "the server refused the client certificate; check that an authority that the server \
             knows has issued it",
        )
    } else {
        None
    }
}

/// After a failed attempt to connect, says whether the server expects the opposite of `tls` on this
/// port. Sends no secrets.
///
/// Neither kind of server says what is wrong: one with TLS closes a connection in plain text without
/// a reason, and one without it takes a handshake for the start of a long line.
pub(crate) async fn mismatch(host: &str, port: u16, tls: bool) -> Option<&'static str> {
    const ALERT: u8 = 0x15;
    const HANDSHAKE: u8 = 0x16;
    let question = if tls {
        b"PING\r\n".to_vec()
    } else {
        // A TLS server reads one record, of length 0x0d0a, with a malformed message, and answers
        // with an alert. A Redis server reads a command of three bytes and empty lines, and answers
        // with an error.
        let mut record = vec![HANDSHAKE, 3, 1, b'\r', b'\n'];
        record.extend(b"\r\n".repeat(0x0d0a / 2));
        record
    };
    let exchange = async {
        let mut stream = TcpStream::connect((host, port)).await?;
        stream.write_all(&question).await?;
        stream.read_u8().await
    };
    match exchange.await.ok()? {
        b'+' | b'-' if tls => Some(WITHOUT_TLS),
        ALERT | HANDSHAKE if !tls => Some(WITH_TLS),
        _ => None,
    }
}

/// The errors that real servers cause are tested with real servers.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_permanent_alerts_are_explained() {
        for (text, check) in [
            (
                "received fatal alert: ProtocolVersion",
                Some("no TLS version"),
            ),
            (
                "AlertReceived(CertificateExpired)",
                Some("refused the client"),
            ),
            ("received fatal alert: InternalError", None),
            ("AlertReceived(UserCanceled)", None),
            ("Connection reset by peer (os error 104)", None),
        ] {
            let explained = explain(text);
            assert_eq!(explained.is_some(), check.is_some(), "{text}");
            let explained = explained.unwrap_or_default();
            assert!(explained.contains(check.unwrap_or_default()), "{explained}");
        }
    }
}

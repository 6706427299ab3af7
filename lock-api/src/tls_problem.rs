//! What a failed handshake with TLS means.

use std::error::Error;
use std::io;

use rustls::{AlertDescription, CertificateError};

/// Says what to check after a failed handshake of rustls, which is among the causes of an error. `None` if there is none, or
/// a later attempt may succeed.
///
/// # Examples
/// ```
/// use std::io;
///
/// let lost = io::Error::from(io::ErrorKind::ConnectionReset);
/// assert_eq!(leasehold_api::tls_problem(&lost), None);
/// ```
pub fn tls_problem(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref() {
            return explain(error);
        }
        // What an `io::Error` is made from is not its source.
        let inner = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        cause = inner.map_or_else(|| error.source(), |inner| Some(inner));
    }
    None
}

fn explain(error: &rustls::Error) -> Option<&'static str> {
    use rustls::Error as E;
    match error {
        E::InvalidCertificate(problem) => Some(explain_certificate(problem)),
        E::AlertReceived(alert) => explain_alert(*alert),
        E::InvalidMessage(_) => Some("the server doesn't use TLS on this port"),
        E::PeerIncompatible(_) => Some(NOTHING_IN_COMMON),
        _ => None,
    }
}

const NOTHING_IN_COMMON: &str =
    "the server and this client have no TLS version or cipher in common";

fn explain_certificate(problem: &CertificateError) -> &'static str {
    use CertificateError as E;
    match problem {
        E::UnknownIssuer | E::BadSignature => {
            "the server's certificate was not issued by a known authority; set the authority's \
             certificate with Options::root_certificates"
        }
        E::NotValidForName | E::NotValidForNameContext { .. } => {
            "the server's certificate is for another host; check the host in the URL, or issue a \
             certificate for it"
        }
        E::Expired | E::ExpiredContext { .. } => {
            "the server's certificate has expired; renew it, or check this machine's clock"
        }
        _ => "the server's certificate is invalid",
    }
}

/// Says what an alert of the server means. `None` if it may be transient.
fn explain_alert(alert: AlertDescription) -> Option<&'static str> {
    use AlertDescription as A;
    match alert {
        A::CertificateRequired => {
            Some("the server wants a client certificate; set it with Options::client_certificate")
        }
        A::HandshakeFailure => Some(
            "the server wants a client certificate, or has no cipher in common with this client; \
             check Options::client_certificate",
        ),
        A::ProtocolVersion => Some(NOTHING_IN_COMMON),
        A::UnknownCA
        | A::BadCertificate
        | A::UnsupportedCertificate
        | A::CertificateRevoked
        | A::CertificateExpired
        | A::CertificateUnknown => Some(
            "the server refused the client certificate, or wants one; check Options::client_certificate, and \
             that an authority that the server knows has issued it",
        ),
        _ => None,
    }
}

/// The errors that real servers cause are tested with real servers.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_permanent_alerts_are_explained() {
        let alert = |alert| {
            let refused = io::Error::other(rustls::Error::AlertReceived(alert));
            tls_problem(&io::Error::other(refused))
        };
        assert_eq!(alert(AlertDescription::InternalError), None);
        assert_eq!(alert(AlertDescription::UserCanceled), None);
        let refused = alert(AlertDescription::CertificateExpired);
        assert!(refused.is_some_and(|text| text.contains("refused the client")));
        let version = alert(AlertDescription::ProtocolVersion);
        assert!(version.is_some_and(|text| text.contains("no TLS version")));
    }
}

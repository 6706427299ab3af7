//! TLS with rustls: the client's configuration, and the streams.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use leasehold_api::{Certificates, InvalidInput};
use sha2::{Digest, Sha256, Sha384, Sha512};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error};

/// The protocol's name in ALPN, which `sslnegotiation=direct` requires.
const ALPN: &[u8] = b"postgresql";

/// Makes TLS streams that verify the server's certificate and host name.
#[derive(Clone)]
pub(crate) struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Reads the certificates. `requires_tls` is that of [`Certificates::client_config`].
    pub(crate) fn new(
        certificates: &Certificates,
        requires_tls: bool,
    ) -> Result<Self, InvalidInput> {
        let mut config = certificates.client_config(requires_tls)?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self(Arc::new(config)))
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Stream;
    type TlsConnect = Handshake;
    type Error = Infallible;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, Infallible> {
        Ok(Handshake {
            connector: TlsConnector::from(Arc::clone(&self.0)),
            host: host.to_owned(),
        })
    }
}

/// A handshake with one host.
pub(crate) struct Handshake {
    connector: TlsConnector,
    host: String,
}

impl TlsConnect<Socket> for Handshake {
    type Stream = Stream;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Stream>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let name = ServerName::try_from(self.host);
            let name = name.map_err(|_| {
                let invalid = CertificateError::NotValidForName;
                io::Error::other(Error::InvalidCertificate(invalid))
            })?;
            Ok(Stream(self.connector.connect(name, socket).await?))
        })
    }
}

/// An encrypted connection.
pub(crate) struct Stream(TlsStream<Socket>);

impl tokio_postgres::tls::TlsStream for Stream {
    fn channel_binding(&self) -> ChannelBinding {
        let certificates = self.0.get_ref().1.peer_certificates();
        certificates
            .and_then(|all| end_point(all.first()?))
            .map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// The start of the object ids of signatures with RSA, and with ECDSA and SHA-2.
const RSA: [u8; 8] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01];
const ECDSA: [u8; 7] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03];

/// The hash of a certificate that binds a login to the TLS connection (`tls-server-end-point`, RFC
/// 5929). It uses the hash function of the certificate's signature, or SHA-256 instead of a weak one.
/// `None` if the signature has none that is known here.
fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    // Certificate ::= SEQUENCE { tbsCertificate, SEQUENCE { algorithm, … }, … }
    let (certificate_fields, _) = element(certificate)?;
    let (_, after) = element(certificate_fields)?;
    let (algorithm_fields, _) = element(after)?;
    let (algorithm, _) = element(algorithm_fields)?;
    let (&last, start) = algorithm.split_last()?;
    match (start, last) {
        (start, 4 | 5 | 11) if start == RSA => Some(Sha256::digest(certificate).to_vec()),
        (start, 12) if start == RSA => Some(Sha384::digest(certificate).to_vec()),
        (start, 13) if start == RSA => Some(Sha512::digest(certificate).to_vec()),
        (start, 2) if start == ECDSA => Some(Sha256::digest(certificate).to_vec()),
        (start, 3) if start == ECDSA => Some(Sha384::digest(certificate).to_vec()),
        (start, 4) if start == ECDSA => Some(Sha512::digest(certificate).to_vec()),
        _ => None,
    }
}

/// The contents of the first element of a DER text, and what follows it.
fn element(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&[_, length], rest) = der.split_first_chunk::<2>()?;
    if length < 0x80 {
        return rest.split_at_checked(length.into());
    }
    let (digits, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
    let length = digits.iter().try_fold(0_usize, |number, digit| {
        number.checked_mul(256)?.checked_add(usize::from(*digit))
    });
    rest.split_at_checked(length?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate whose parts are empty, except the name of its signature.
    fn signed_with(algorithm: &[u8]) -> Vec<u8> {
        let sequence = |content: &[u8]| {
            let mut der = vec![0x30, 0x81, u8::try_from(content.len()).expect("short")];
            der.extend_from_slice(content);
            der
        };
        let mut id = vec![6, u8::try_from(algorithm.len()).expect("short")];
        id.extend_from_slice(algorithm);
        sequence(&[sequence(b"\x02\x01\x01"), sequence(&id)].concat())
    }

    #[test]
    fn certificates_are_hashed_as_they_are_signed() {
        let with = |start: &[u8], last| end_point(&signed_with(&[start, &[last]].concat()));
        for (start, last, bytes) in [
            (&RSA[..], 5, 32),
            (&RSA[..], 11, 32),
            (&RSA[..], 12, 48),
            (&RSA[..], 13, 64),
            (&ECDSA[..], 2, 32),
            (&ECDSA[..], 3, 48),
            (&ECDSA[..], 4, 64),
        ] {
            assert_eq!(with(start, last).map(|hash| hash.len()), Some(bytes));
        }
        assert_eq!(with(&RSA, 10), None, "RSASSA-PSS names its hash elsewhere");
        assert_eq!(with(b"\x2b\x65", 0x70), None, "Ed25519");
        let whole = signed_with(&[&RSA[..], &[11]].concat());
        for length in 0..whole.len() {
            assert_eq!(end_point(&whole[..length]), None, "{length} bytes");
        }
        assert_eq!(end_point(&[0x30, 0xff, 1]), None);
    }
}

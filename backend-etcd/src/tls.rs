//! Connections with TLS. The library could make them, but not with the configuration of the other backends: it resumes
//! sessions, which may outlive the certificate.

use std::error::Error as _;
use std::io::{self, Error, ErrorKind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, select};
use http::Uri;
use hyper_util::rt::TokioIo;
use leasehold_api::{Certificates, InvalidInput, TokioRuntime, bounds};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, CertificateError, ClientConfig, InvalidMessage};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tower_service::Service;

/// After this long, a server may be one that doesn't use TLS.
const PATIENCE: Duration = Duration::from_millis(300);
/// The beginning of HTTP/2 and an empty frame of settings. A server answers with its own, whose length begins with 0.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[derive(Clone)]
pub(crate) struct Tls {
    config: Arc<ClientConfig>,
    refusal: Refusal,
}

/// Why the last connection has ended, if the server refused the client's certificate. In TLS 1.3 it says so after the
/// client's part of the handshake, and the library gives its calls no reason.
type Refusal = Arc<Mutex<Option<rustls::Error>>>;

impl Tls {
    pub(crate) fn new(certificates: &Certificates) -> Result<Self, InvalidInput> {
        let mut config = certificates.client_config(true)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        let (config, refusal) = (Arc::new(config), Refusal::default());
        Ok(Self { config, refusal })
    }

    pub(crate) fn connect(&self, server: &Endpoint) -> Channel {
        server.connect_with_connector_lazy(self.clone())
    }

    /// The error of a call whose connection has ended.
    pub(crate) fn explain(&self, status: Status) -> Status {
        let refusal = self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        match &*refusal {
            Some(refusal) if status.source().is_some() => {
                Status::from_error(Box::new(refusal.clone()))
            }
            _ => status,
        }
    }
}

impl Service<Uri> for Tls {
    type Response = TokioIo<Stream>;
    type Error = Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let Self { config, refusal } = self.clone();
        Box::pin(async move {
            note(&refusal, None);
            let connecting = connect(config.into(), server);
            let runtime = TokioRuntime::current();
            let stream = runtime.timeout(bounds::CONNECT_TIMEOUT, connecting).await;
            let stream = stream.unwrap_or_else(|| Err(ErrorKind::TimedOut.into()))?;
            Ok(TokioIo::new(Stream { stream, refusal }))
        })
    }
}

fn note(refusal: &Refusal, error: Option<rustls::Error>) {
    *refusal.lock().unwrap_or_else(PoisonError::into_inner) = error;
}

async fn connect(connector: TlsConnector, server: Uri) -> io::Result<TlsStream<TcpStream>> {
    let host = server.host().unwrap_or_default();
    let host = host.trim_matches(['[', ']']);
    let address = (host, server.port_u16().unwrap_or_default());
    let name = ServerName::try_from(host.to_owned());
    let unusable = rustls::Error::InvalidCertificate(CertificateError::NotValidForName);
    let name = name.map_err(|_| Error::other(unusable))?;
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut handshake = pin!(connector.connect(name, stream));
    let early = TokioRuntime::current().timeout(PATIENCE, handshake.as_mut());
    let early = early.await;
    let asking = pin!(speaks_plain_text(address));
    let without_tls = InvalidMessage::InvalidContentType;
    let without_tls = Error::other(rustls::Error::InvalidMessage(without_tls));
    // etcd waits for the end of a line, which a handshake has by chance. Then it ends the connection.
    match early {
        Some(Err(error)) if error.kind() == ErrorKind::UnexpectedEof => match asking.await {
            true => Err(without_tls),
            false => Err(error),
        },
        Some(done) => done,
        None => match select(handshake, asking).await {
            Either::Left((done, _)) => done,
            Either::Right((true, _)) => Err(without_tls),
            Either::Right((false, handshake)) => handshake.await,
        },
    }
}

/// Whether the server speaks HTTP/2 without TLS. Sends no secrets.
async fn speaks_plain_text(address: (&str, u16)) -> bool {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(HELLO).await?;
        stream.read_u8().await
    };
    matches!(exchange.await, Ok(0))
}

pub(crate) struct Stream {
    stream: TlsStream<TcpStream>,
    refusal: Refusal,
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if let Poll::Ready(Err(error)) = &polled {
            let error = error.get_ref().and_then(|error| error.downcast_ref());
            note(&self.refusal, error.cloned());
        }
        polled
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

//! Connections, at a pace. The library would make one for each waiting call, and with TLS not with the configuration of the
//! other backends: it resumes sessions, which may outlive the certificate.

use std::error::Error as _;
use std::io::{self, Error, ErrorKind};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, select};
use http::Uri;
use hyper_util::rt::TokioIo;
use leasehold_api::{
    BackendError, Certificates, ConnectPace, InvalidInput, Moment, Runtime, TokioRuntime, bounds,
    first_of,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
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

/// Connects to one server.
#[derive(Clone)]
pub(crate) struct Connector {
    server: Endpoint,
    tls: Option<Tls>,
    pace: Arc<Pace>,
}

/// When a server may be tried. The connections for commands and for renewals have one pace.
#[derive(Default)]
struct Pace {
    pace: ConnectPace,
    /// When the newest connection was made.
    made: Mutex<Moment>,
}

impl Connector {
    pub(crate) fn new(server: Endpoint, tls: Option<Tls>) -> Self {
        let pace = Arc::default();
        Self { server, tls, pace }
    }

    pub(crate) fn connect(&self) -> Channel {
        self.server.connect_with_connector_lazy(self.clone())
    }

    /// Tells that the connection was left, because a call on it has failed.
    pub(crate) fn left(&self, runtime: &TokioRuntime, error: &BackendError) {
        // With TLS, it may be the certificate that the server refuses, and not each connection hears why. So the next attempt
        // doesn't wait.
        if self.tls.is_none() {
            let made = *self.made();
            self.pace.pace.ended(runtime, made, error);
        }
    }

    fn made(&self) -> MutexGuard<'_, Moment> {
        self.pace
            .made
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn Stream>>;
    type Error = BackendError;
    type Future = BoxFuture<'static, Result<Self::Response, BackendError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BackendError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let own = self.clone();
        Box::pin(async move {
            let (runtime, limit) = (TokioRuntime::current(), bounds::CONNECT_TIMEOUT);
            let attempt = async {
                let connecting = connect(own.tls.clone(), server, &runtime);
                let connected = runtime.timeout(limit, connecting).await;
                connected.unwrap_or_else(|| Err(not_connected(ErrorKind::TimedOut.into())))
            };
            let stream = own.pace.pace.connect(&runtime, limit, attempt).await?;
            *own.made() = runtime.now();
            Ok(TokioIo::new(stream))
        })
    }
}

fn not_connected(error: Error) -> BackendError {
    BackendError::unavailable("no connection").with_source(error)
}

fn note(refusal: &Refusal, error: Option<rustls::Error>) {
    *refusal.lock().unwrap_or_else(PoisonError::into_inner) = error;
}

/// Connects to one of the addresses of the server's name.
async fn connect(
    tls: Option<Tls>,
    server: Uri,
    runtime: &TokioRuntime,
) -> Result<Box<dyn Stream>, BackendError> {
    let host = server.host().unwrap_or_default();
    let host = host.trim_matches(['[', ']']);
    let addresses = lookup_host((host, server.port_u16().unwrap_or_default()));
    let attempts = addresses.await.map_err(not_connected)?;
    let attempts = attempts.map(async |address| {
        let stream = TcpStream::connect(address).await;
        stream.map_err(not_connected)
    });
    let stream = first_of(runtime, bounds::CONNECT_TIMEOUT, attempts).await?;
    stream.set_nodelay(true).map_err(not_connected)?;
    let Some(Tls { config, refusal }) = tls else {
        return Ok(Box::new(stream));
    };
    note(&refusal, None);
    let stream = shake_hands(config.into(), host, stream).await;
    let stream = stream.map_err(not_connected)?;
    Ok(Box::new(TlsOf { stream, refusal }))
}

async fn shake_hands(
    connector: TlsConnector,
    host: &str,
    stream: TcpStream,
) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned());
    let unusable = rustls::Error::InvalidCertificate(CertificateError::NotValidForName);
    let name = name.map_err(|_| Error::other(unusable))?;
    let address = stream.peer_addr()?;
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
async fn speaks_plain_text(address: SocketAddr) -> bool {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(HELLO).await?;
        stream.read_u8().await
    };
    matches!(exchange.await, Ok(0))
}

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

struct TlsOf {
    stream: TlsStream<TcpStream>,
    refusal: Refusal,
}

impl AsyncRead for TlsOf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if let Poll::Ready(Err(error)) = &polled {
            let error = error.get_ref().and_then(|error| error.downcast_ref());
            if let Some(error) = error.cloned() {
                note(&self.refusal, Some(error));
            }
        }
        polled
    }
}

impl AsyncWrite for TlsOf {
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

//! Where connections come from: our own streams, or a client of the library.

use std::io;
use std::net::SocketAddr;

use leasehold_api::{ConnectError, InvalidInput};
use leasehold_redis_common::connection::{AbortOnDrop, Address, Failure, ServerUrl};
use leasehold_redis_common::{Options, RespVersion};
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, Client, ProtocolVersion, RedisConnectionInfo, RedisError};
use tokio::net::{TcpStream, ToSocketAddrs};

#[cfg(feature = "tls-rustls")]
use self::tls::Tls;
use crate::error::failure;
use crate::stream::{FirstLine, Stream};
/// Makes connections with TLS: there are none.
#[cfg(not(feature = "tls-rustls"))]
type Tls = std::convert::Infallible;

pub(crate) enum Source {
    /// Connects as the user's client does.
    Client(Box<Client>),
    Own(Box<OwnSource>),
}

/// Opens streams, as the library doesn't keep the reason with which a server refuses a client.
pub(crate) struct OwnSource {
    address: Address,
    tls: Option<Tls>,
    /// User, password, database and protocol.
    settings: RedisConnectionInfo,
}

impl Source {
    pub(crate) fn from_url(url: &ServerUrl, options: &Options) -> Result<Self, ConnectError> {
        #[cfg(feature = "tls-rustls")]
        if let Address::Tcp { host, .. } = &url.address
            && url.uses_tls()
        {
            let tls = Tls::new(host, &options.certificates)?;
            return Ok(Self::own(url, options.resp, Some(tls)));
        }
        Ok(Self::own(url, options.resp, None))
    }

    /// Creates a source for another server, with the certificates of this one.
    pub(crate) fn at(&self, url: &ServerUrl, resp: RespVersion) -> Result<Self, ConnectError> {
        let tls = match (self, &url.address) {
            #[cfg(feature = "tls-rustls")]
            (Self::Own(source), Address::Tcp { host, .. }) => {
                source.tls.as_ref().map(|tls| tls.at(host)).transpose()?
            }
            _ => None,
        };
        Ok(Self::own(url, resp, tls))
    }

    /// Creates a source. `tls` is there for a URL with TLS.
    fn own(url: &ServerUrl, resp: RespVersion, tls: Option<Tls>) -> Self {
        let mut settings = RedisConnectionInfo::default()
            .set_db(url.database.into())
            .set_protocol(protocol(resp));
        if let Some(user) = &url.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &url.password {
            settings = settings.set_password(password);
        }
        Self::Own(Box::new(OwnSource {
            address: url.address.clone(),
            tls,
            settings,
        }))
    }

    pub(crate) fn from_client(client: &Client, resp: RespVersion) -> Result<Self, ConnectError> {
        let info = client.get_connection_info().clone();
        let settings = info.redis_settings().clone().set_protocol(protocol(resp));
        let client = Client::open(info.set_redis_settings(settings))
            .map_err(|error| InvalidInput::setting("client", error))?;
        Ok(Self::Client(Box::new(client)))
    }

    pub(crate) fn address(&self) -> String {
        match self {
            Self::Client(client) => client.get_connection_info().addr().to_string(),
            Self::Own(source) => source.address.to_string(),
        }
    }

    /// The host and port, unless the user's client looks for the server in its own way.
    pub(crate) fn host(&self) -> Option<(String, u16)> {
        match self {
            Self::Own(source) => match &source.address {
                Address::Tcp { host, port, .. } => Some((host.clone(), *port)),
                Address::Unix(_) => None,
            },
            Self::Client(_) => None,
        }
    }

    /// Opens a connection for messages (RESP2).
    pub(crate) async fn subscriber(&self, to: Option<SocketAddr>) -> Result<PubSub, Failure> {
        match self {
            Self::Client(client) => client.get_async_pubsub().await.map_err(failure),
            Self::Own(source) => {
                let (stream, first) = source.stream(to).await?;
                let opened = PubSub::new(&source.settings, stream).await;
                opened.map_err(|error| first.reason(error))
            }
        }
    }

    /// Opens a connection for commands. If the library doesn't end the task that drives it, that comes along.
    pub(crate) async fn connection(
        &self,
        to: Option<SocketAddr>,
        config: AsyncConnectionConfig,
    ) -> Result<(MultiplexedConnection, Option<AbortOnDrop>), Failure> {
        match self {
            Self::Client(client) => {
                let opened = client.get_multiplexed_async_connection_with_config(&config);
                Ok((opened.await.map_err(failure)?, None))
            }
            Self::Own(source) => {
                let (stream, first) = source.stream(to).await?;
                let opened =
                    MultiplexedConnection::new_with_config(&source.settings, stream, config).await;
                let (connection, driver) = opened.map_err(|error| first.reason(error))?;
                let driver = AbortOnDrop(tokio::spawn(driver).abort_handle());
                Ok((connection, Some(driver)))
            }
        }
    }
}

impl OwnSource {
    async fn stream(&self, to: Option<SocketAddr>) -> Result<(Stream, FirstLine), Failure> {
        let connected = self.connect(to).await;
        connected.map_err(|error| failure(RedisError::from(error)))
    }

    async fn connect(&self, to: Option<SocketAddr>) -> io::Result<(Stream, FirstLine)> {
        let (host, port) = match &self.address {
            Address::Tcp { host, port, .. } => (&**host, *port),
            #[cfg(unix)]
            Address::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path).await?;
                return Ok(Stream::new(stream));
            }
            #[cfg(not(unix))]
            Address::Unix(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        let stream = match to {
            Some(to) => connect_tcp(to).await?,
            None => connect_tcp((host, port)).await?,
        };
        match &self.tls {
            #[cfg(feature = "tls-rustls")]
            Some(tls) => Ok(Stream::new(tls.connect(stream).await?)),
            _ => Ok(Stream::new(stream)),
        }
    }
}

async fn connect_tcp(to: impl ToSocketAddrs) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to).await?;
    // Without it, a small call may wait for the acknowledgement of the one before.
    stream.set_nodelay(true)?;
    Ok(stream)
}

const fn protocol(resp: RespVersion) -> ProtocolVersion {
    match resp {
        RespVersion::Resp2 => ProtocolVersion::RESP2,
        RespVersion::Resp3 => ProtocolVersion::RESP3,
    }
}

/// The library could open connections with TLS itself. But it reads the machine's certificates anew
/// for each connection, which takes longer than the rest, and panics if a program's dependencies
/// enable several cryptography providers of rustls.
#[cfg(feature = "tls-rustls")]
mod tls {
    use std::io;
    use std::sync::Arc;

    use leasehold_api::{Certificates, ConnectError, InvalidInput};
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::client::TlsStream;
    use tokio_rustls::rustls::pki_types::ServerName;

    pub(crate) struct Tls {
        connector: TlsConnector,
        name: ServerName<'static>,
    }

    impl Tls {
        pub(crate) fn new(host: &str, certificates: &Certificates) -> Result<Self, ConnectError> {
            let config = Arc::new(certificates.client_config(true)?);
            Self::with(TlsConnector::from(config), host)
        }

        /// The same for another host.
        pub(crate) fn at(&self, host: &str) -> Result<Self, ConnectError> {
            Self::with(self.connector.clone(), host)
        }

        fn with(connector: TlsConnector, host: &str) -> Result<Self, ConnectError> {
            let name = ServerName::try_from(host.to_owned())
                .map_err(|error| InvalidInput::setting("URL", error))?;
            Ok(Self { connector, name })
        }

        pub(crate) async fn connect(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
            self.connector.connect(self.name.clone(), stream).await
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[tokio::test]
    async fn small_calls_are_sent_at_once() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let stream = connect_tcp(("127.0.0.1", port)).await.expect("it listens");
        assert!(stream.nodelay().expect("a socket"));
    }
}

//! Where connections come from: a client of the library, or our own stream with TLS.

use leasehold_api::{ConnectError, InvalidInput};
use leasehold_redis_common::connection::{AbortOnDrop, Address, ServerUrl};
use leasehold_redis_common::{Options, RespVersion};
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisError, RedisResult,
};

#[cfg(feature = "tls-rustls")]
use self::tls::TlsConnector;
/// Makes connections with TLS: there are none.
#[cfg(not(feature = "tls-rustls"))]
type TlsConnector = std::convert::Infallible;

pub(crate) enum Source {
    /// Without TLS, or as the user's client does.
    Client(Box<Client>),
    #[cfg(feature = "tls-rustls")]
    Tls(Box<tls::TlsSource>),
}

impl Source {
    pub(crate) fn from_url(url: &ServerUrl, options: &Options) -> Result<Self, ConnectError> {
        #[cfg(feature = "tls-rustls")]
        if url.uses_tls() {
            let connector = tls::connector(&options.certificates)?;
            return Self::with(url, options.resp, Some(connector));
        }
        Self::with(url, options.resp, None)
    }

    /// Creates a source for another server, with the certificates of this one.
    pub(crate) fn at(&self, url: &ServerUrl, resp: RespVersion) -> Result<Self, ConnectError> {
        let connector = match self {
            Self::Client(_) => None,
            #[cfg(feature = "tls-rustls")]
            Self::Tls(source) => Some(source.connector.clone()),
        };
        Self::with(url, resp, connector)
    }

    /// Creates a source. `tls` makes the connections for a URL with TLS.
    fn with(
        url: &ServerUrl,
        resp: RespVersion,
        tls: Option<TlsConnector>,
    ) -> Result<Self, ConnectError> {
        let mut settings = RedisConnectionInfo::default()
            .set_db(url.database.into())
            .set_protocol(protocol(resp));
        if let Some(user) = &url.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &url.password {
            settings = settings.set_password(password);
        }
        let address = match (url.address.clone(), tls) {
            #[cfg(feature = "tls-rustls")]
            (Address::Tcp { host, port, .. }, Some(connector)) => {
                let source = tls::TlsSource::new(host, port, settings, connector)?;
                return Ok(Self::Tls(Box::new(source)));
            }
            (Address::Tcp { host, port, .. }, _) => ConnectionAddr::Tcp(host, port),
            (Address::Unix(path), _) => ConnectionAddr::Unix(path),
        };
        let client = address
            .into_connection_info()
            .and_then(|info| {
                // Without it, a small call may wait for the acknowledgement of the one before.
                let tcp = info.tcp_settings().clone().set_nodelay(true);
                Client::open(info.set_redis_settings(settings).set_tcp_settings(tcp))
            })
            .map_err(|error: RedisError| InvalidInput::setting("URL", error))?;
        Ok(Self::Client(Box::new(client)))
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
            #[cfg(feature = "tls-rustls")]
            Self::Tls(source) => source.address(),
        }
    }

    /// Opens a connection for messages (RESP2).
    pub(crate) async fn subscriber(&self) -> RedisResult<PubSub> {
        match self {
            Self::Client(client) => client.get_async_pubsub().await,
            #[cfg(feature = "tls-rustls")]
            Self::Tls(source) => PubSub::new(&source.settings, source.stream().await?).await,
        }
    }

    /// Opens a connection for commands. If the library doesn't end the task that drives it, that comes along.
    pub(crate) async fn connection(
        &self,
        config: AsyncConnectionConfig,
    ) -> RedisResult<(MultiplexedConnection, Option<AbortOnDrop>)> {
        match self {
            Self::Client(client) => {
                let opened = client.get_multiplexed_async_connection_with_config(&config);
                Ok((opened.await?, None))
            }
            #[cfg(feature = "tls-rustls")]
            Self::Tls(source) => {
                let stream = source.stream().await?;
                let opened =
                    MultiplexedConnection::new_with_config(&source.settings, stream, config);
                let (connection, driver) = opened.await?;
                let driver = AbortOnDrop(tokio::spawn(driver).abort_handle());
                Ok((connection, Some(driver)))
            }
        }
    }
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
    use redis::RedisConnectionInfo;
    use tokio::net::TcpStream;
    pub(crate) use tokio_rustls::TlsConnector;
    use tokio_rustls::client::TlsStream;
    use tokio_rustls::rustls::pki_types::ServerName;

    pub(crate) struct TlsSource {
        host: String,
        port: u16,
        name: ServerName<'static>,
        pub(crate) connector: TlsConnector,
        /// User, password, database and protocol.
        pub(crate) settings: RedisConnectionInfo,
    }

    pub(crate) fn connector(certificates: &Certificates) -> Result<TlsConnector, ConnectError> {
        let config = certificates.client_config(true)?;
        Ok(TlsConnector::from(Arc::new(config)))
    }

    impl TlsSource {
        pub(crate) fn new(
            host: String,
            port: u16,
            settings: RedisConnectionInfo,
            connector: TlsConnector,
        ) -> Result<Self, ConnectError> {
            let name = ServerName::try_from(host.clone())
                .map_err(|error| InvalidInput::setting("URL", error))?;
            Ok(Self {
                host,
                port,
                name,
                connector,
                settings,
            })
        }

        pub(crate) fn address(&self) -> String {
            format!("{}:{}", self.host, self.port)
        }

        pub(crate) async fn stream(&self) -> io::Result<TlsStream<TcpStream>> {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            stream.set_nodelay(true)?;
            self.connector.connect(self.name.clone(), stream).await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_calls_are_sent_at_once() {
        let url = ServerUrl::parse("redis://127.0.0.1", false).expect("a URL");
        let source = Source::from_url(&url, &Options::new()).expect("a source");
        let Source::Client(client) = source else {
            panic!("it uses TLS");
        };
        assert!(client.get_connection_info().tcp_settings().nodelay());
    }
}

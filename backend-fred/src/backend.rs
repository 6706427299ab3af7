//! The backend and its constructors.

use std::fmt;

use fred::clients::{Client, Pool};
use fred::types::Builder;
use leasehold_api::{BoxFuture, ConnectError, LockBackend, forward_lock_backend};
use leasehold_redis_common::connection::ServerUrl;
use leasehold_redis_common::{Backend, Options};

use crate::connection::FredConnector;

/// A [`LockBackend`] on a Redis server, through the [`fred`] crate.
///
/// Pass it to `LockClient::new`. To use one backend in several clients, share an
/// `Arc<FredBackend>`.
pub struct FredBackend(Backend);

#[deny(clippy::missing_trait_methods)]
impl LockBackend for FredBackend {
    forward_lock_backend!(|backend| backend.0; all);
}

impl fmt::Debug for FredBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_as("FredBackend", f)
    }
}

impl FredBackend {
    /// Connects to the server at `url`, with the default [`Options`].
    ///
    /// Tries for at most 5 s, the default of
    /// [`initial_connect_timeout`](Options::initial_connect_timeout), until the server
    /// answers. Fails at once if a retry can't help, for example with a wrong password.
    ///
    /// # Errors
    /// - [`ConnectError::Invalid`] if the URL can't be used. Nothing was sent.
    /// - [`ConnectError::Backend`] if the server can't be reached in time, is older than Redis 6.2,
    ///   or refuses this client.
    ///
    /// # Panics
    /// Panics if called outside a tokio runtime.
    ///
    /// # Cancel safety
    /// This method is cancel safe. Dropping the future abandons the connection.
    ///
    /// # Examples
    /// ```no_run
    /// use leasehold_api::LockClient;
    /// use leasehold_fred::FredBackend;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let backend = FredBackend::connect("redis://127.0.0.1:6379").await?;
    /// let locks = LockClient::new(backend);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::connect_with(url, Options::new()).await
    }

    /// Connects to the server at `url`.
    ///
    /// | URL | connects to |
    /// |---|---|
    /// | `redis://user:password@host:port/database` | a TCP port |
    /// | `rediss://…` | the same, with TLS |
    /// | `redis+unix:///path/to/socket?db=1&user=me&pass=secret` | a Unix socket |
    /// | `redis-sentinel://user:password@sentinel:port/database?sentinelServiceName=mymaster&node=sentinel2:port` | the primary that the sentinels name; one `node` for each further sentinel |
    /// | … `&sentinelUsername=me&sentinelPassword=secret` | the same, with the login of the sentinels |
    /// | `rediss-sentinel://…` | the same, with TLS to the sentinels and to the server |
    /// | `redis-cluster://user:password@host:port?node=host2:port2` | a cluster; one node is enough, others help if that one is down |
    /// | `rediss-cluster://…` | the same, with TLS to all nodes |
    ///
    /// [`initial_connect_timeout`](Options::initial_connect_timeout) limits the time that
    /// this takes.
    ///
    /// # Errors
    /// The errors of [`connect`](Self::connect), and [`ConnectError::Invalid`] for options out of
    /// range.
    ///
    /// # Panics
    /// Panics if called outside a tokio runtime.
    ///
    /// # Cancel safety
    /// This method is cancel safe. Dropping the future abandons the connection.
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use leasehold_fred::{FredBackend, Options};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let options = Options::new()
    ///     .key_prefix("billing:locks:")
    ///     .call_timeout(Duration::from_millis(500));
    /// let backend = FredBackend::connect_with("redis://127.0.0.1:6379", options).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect_with(url: &str, options: Options) -> Result<Self, ConnectError> {
        Self::connect_boxed(url, options).await
    }

    /// Boxed, so that its code is compiled once, here. Each crate that awaits an `async fn` compiles it again, with
    /// all that it awaits.
    #[inline(never)]
    fn connect_boxed(url: &str, options: Options) -> BoxFuture<'_, Result<Self, ConnectError>> {
        Box::pin(async move {
            let url = ServerUrl::parse(url, cfg!(feature = "tls-rustls"))?;
            let connector = FredConnector::from_url(&url, &options)?;
            Ok(Self(Backend::connect(connector, &url, options).await?))
        })
    }

    /// Creates a backend that opens its connections with your configuration. The first call opens
    /// the first connection.
    ///
    /// The backend has the same features as with a URL. The server, user, database and TLS settings
    /// of the builder apply. The protocol version comes from `options`. The backend
    /// sends each command once and replaces connections itself, so a reconnect policy has no effect.
    /// If you have a [`Config`], use [`Builder::from_config`].
    ///
    /// If fred is built without TLS, it reads `rediss://` as `redis://`, and its configuration no
    /// longer tells which one the URL had. Such a configuration is refused, unless it is for a Unix
    /// socket, because the backend would send the password in plain text. Enable the feature
    /// `tls-rustls`, or pass the URL to [`connect`](Self::connect), which reads it without fred.
    ///
    /// [`Config`]: fred::types::config::Config
    ///
    /// # Errors
    /// [`ConnectError::Invalid`] for options out of range, if the builder has no configuration or that
    /// of a cluster, or if fred is built without TLS. Nothing was sent.
    ///
    /// # Panics
    /// Panics if called outside a tokio runtime.
    ///
    /// # Examples
    /// ```no_run
    /// use fred::types::Builder;
    /// use fred::types::config::Config;
    /// use leasehold_fred::{FredBackend, Options};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = Config::from_url("redis://127.0.0.1:6379")?;
    /// let builder = Builder::from_config(config);
    /// let backend = FredBackend::from_builder(&builder, Options::new())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_builder(builder: &Builder, options: Options) -> Result<Self, ConnectError> {
        let connector = FredConnector::from_builder(builder, &options)?;
        Ok(Self(Backend::new(connector, options)?))
    }

    /// Creates a backend that opens its connections with the configuration of your client. The first
    /// call opens the first connection.
    ///
    /// The backend doesn't use the connection of your client. So it has the same features as with a
    /// URL, and your commands and its calls don't wait for each other. You need not call `init` on
    /// the client. Otherwise like [`from_builder`](Self::from_builder).
    ///
    /// # Errors
    /// [`ConnectError::Invalid`] for options out of range, for a client of a cluster, or if fred is
    /// built without TLS. Nothing was sent.
    ///
    /// # Panics
    /// Panics if called outside a tokio runtime.
    ///
    /// # Examples
    /// ```no_run
    /// use fred::types::Builder;
    /// use fred::types::config::Config;
    /// use leasehold_fred::{FredBackend, Options};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = Config::from_url("redis://127.0.0.1:6379")?;
    /// let client = Builder::from_config(config).build()?;
    /// let backend = FredBackend::from_client(&client, Options::new())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_client(client: &Client, options: Options) -> Result<Self, ConnectError> {
        let connector = FredConnector::from_client(client, &options)?;
        Ok(Self(Backend::new(connector, options)?))
    }

    /// Creates a backend that opens its connections with the configuration of your pool.
    ///
    /// Otherwise like [`from_client`](Self::from_client). The backend uses none of the pool's
    /// connections, and doesn't need a pool: one connection carries many calls at once.
    ///
    /// # Errors
    /// [`ConnectError::Invalid`] for options out of range, for a client of a cluster, or if fred is
    /// built without TLS. Nothing was sent.
    ///
    /// # Panics
    /// Panics if called outside a tokio runtime.
    ///
    /// # Examples
    /// ```no_run
    /// use fred::types::Builder;
    /// use fred::types::config::Config;
    /// use leasehold_fred::{FredBackend, Options};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = Config::from_url("redis://127.0.0.1:6379")?;
    /// let pool = Builder::from_config(config).build_pool(4)?;
    /// let backend = FredBackend::from_pool(&pool, Options::new())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_pool(pool: &Pool, options: Options) -> Result<Self, ConnectError> {
        Self::from_client(pool.next(), options)
    }
}

//! The backend and its constructors.

use std::fmt;
use std::sync::Arc;

use leasehold_api::{BoxFuture, ConnectError, LockBackend, forward_lock_backend};
use leasehold_redis_common::connection::ServerUrl;
use leasehold_redis_common::{Backend, Options};
use redis::aio::ConnectionLike;

use crate::connection::RedisConnector;
use crate::source::Source;

/// A [`LockBackend`] on a Redis server, through the [`redis`] crate.
///
/// Pass it to `LockClient::new`. To use one backend in several clients, share an
/// `Arc<RedisBackend>`.
pub struct RedisBackend(Backend);

#[deny(clippy::missing_trait_methods)]
impl LockBackend for RedisBackend {
    forward_lock_backend!(|backend| backend.0; all);
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_as("RedisBackend", f)
    }
}

impl RedisBackend {
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
    /// use leasehold_redis_rs::RedisBackend;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let backend = RedisBackend::connect("redis://127.0.0.1:6379").await?;
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
    /// use leasehold_redis_rs::{Options, RedisBackend};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let options = Options::new()
    ///     .key_prefix("billing:locks:")
    ///     .call_timeout(Duration::from_millis(500));
    /// let backend = RedisBackend::connect_with("redis://127.0.0.1:6379", options).await?;
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
            let source = Source::from_url(&url, &options)?;
            let connector = RedisConnector::Own(source, options.resp);
            Ok(Self(Backend::connect(connector, &url, options).await?))
        })
    }

    /// Creates a backend that opens its connections through your client. The first call opens the
    /// first connection.
    ///
    /// The backend has the same features as with a URL. The server, user, database, TLS and TCP
    /// settings of the client apply. The protocol version comes from `options`.
    ///
    /// With a URL, the backend sets `TCP_NODELAY`. A client of the `redis` crate does not by itself:
    /// set it with `redis::io::tcp::TcpSettings::set_nodelay`, or a small call may wait for the
    /// acknowledgement of the one before.
    ///
    /// # Errors
    /// [`ConnectError::Invalid`] for options out of range, or if the client can't be used.
    ///
    /// # Panics
    /// Panics if called outside a tokio runtime.
    ///
    /// # Examples
    /// ```no_run
    /// use leasehold_redis_rs::{Options, RedisBackend};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = redis::Client::open("redis://127.0.0.1:6379")?;
    /// let backend = RedisBackend::from_client(&client, Options::new())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_client(client: &redis::Client, options: Options) -> Result<Self, ConnectError> {
        let source = Source::from_client(client, options.resp)?;
        let connector = RedisConnector::Own(source, options.resp);
        Ok(Self(Backend::new(connector, options)?))
    }

    /// Creates a backend on your connection: a `ConnectionManager`, a `MultiplexedConnection`, or
    /// any type whose clones are handles of one connection.
    ///
    /// The backend can't open other connections, so it has no push and no independent renewal. See
    /// [Bringing your own client](crate#bringing-your-own-client) for the consequences, and for the
    /// requirements on your connection.
    ///
    /// # Errors
    /// [`ConnectError::Invalid`] for options out of range.
    ///
    /// # Panics
    /// Panics if called outside a tokio runtime.
    ///
    /// # Examples
    /// ```no_run
    /// use leasehold_redis_rs::{Options, RedisBackend};
    /// use redis::aio::ConnectionManagerConfig;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = redis::Client::open("redis://127.0.0.1:6379")?;
    /// let config = ConnectionManagerConfig::new().set_number_of_retries(0);
    /// let connection = client.get_connection_manager_with_config(config).await?;
    /// let backend = RedisBackend::from_connection(connection, Options::new())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_connection<C>(connection: C, options: Options) -> Result<Self, ConnectError>
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        let connector = RedisConnector::User(Arc::new(connection));
        Ok(Self(Backend::new(connector, options)?))
    }
}

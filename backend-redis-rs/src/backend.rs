//! The backend and its constructors.

use std::sync::Arc;

use leasehold_redis_common::connection::ConnectError;
use leasehold_redis_common::{Backend, Options, impl_lock_backend};
use redis::aio::ConnectionLike;

use crate::connection::RedisConnector;

/// A [`LockBackend`](leasehold_api::LockBackend) on a Redis server, through the [`redis`] crate.
///
/// A `LockClient` takes it as it is. To use one backend in several clients, share it as an
/// `Arc<RedisBackend>`.
pub struct RedisBackend(Backend<RedisConnector>);

impl_lock_backend!(RedisBackend);

impl RedisBackend {
    /// Connects to the server at `url`, with the default [`Options`].
    ///
    /// Takes 500 ms at most, the default of
    /// [`with_connect_timeout`](Options::with_connect_timeout).
    ///
    /// # Errors
    /// - [`ConnectError::Invalid`] if the URL can't be used. Nothing was sent.
    /// - [`ConnectError::Backend`] if the server can't be reached, is older than Redis 6.2, or
    ///   refuses this client.
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
    /// Takes as long as [`with_connect_timeout`](Options::with_connect_timeout) allows, at most.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and [`ConnectError::Invalid`] for options out of range.
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
    ///     .with_key_prefix("billing:locks:")
    ///     .with_call_timeout(Duration::from_millis(500));
    /// let backend = RedisBackend::connect_with("redis://127.0.0.1:6379", options).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect_with(url: &str, options: Options) -> Result<Self, ConnectError> {
        let connector = RedisConnector::from_url(url, options.resp)?;
        Ok(Self(Backend::connect(connector, options).await?))
    }

    /// Opens its connections through your client. The first call opens the first one.
    ///
    /// The backend has everything that it has with a URL. The server, user, database and TLS
    /// settings of the client apply; the protocol is that of `options`.
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
        let connector = RedisConnector::own(client, options.resp)?;
        Ok(Self(Backend::new(connector, options)?))
    }

    /// Uses your connection: a `ConnectionManager`, a `MultiplexedConnection`, or any type whose
    /// clones are handles of one connection.
    ///
    /// The backend can't open others, so it has no push and no independent renewal. See
    /// [the crate's documentation](crate#bringing-your-own-client) for what that means and for how
    /// to set up such a connection.
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

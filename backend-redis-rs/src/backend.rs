//! The backend, and how it is made.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Capabilities, Convert, ConvertReply, End, EndReply,
    ForceRelease, ForceReply, InspectReply, Key, LockBackend, Notices, Poll, PollReply, Renew,
    RenewReply, Runtime, SessionId, Stamp, Stamped,
};
use leasehold_redis_link::{ConnectError, Core};
use leasehold_redis_protocol::Options;
use redis::aio::ConnectionLike;

use crate::wire::Source;

/// A [`LockBackend`] on a Redis server, through the `redis` crate.
///
/// Share it as `Arc<dyn LockBackend>`, or hand it to a client, which does so.
pub struct RedisBackend(Core<Source>);

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither the URL, which may hold a password, nor the user's connection.
        f.debug_struct("RedisBackend")
            .field("options", self.0.options())
            .finish_non_exhaustive()
    }
}

impl RedisBackend {
    /// Connects to the server at `url`, with the default [`Options`].
    ///
    /// # Errors
    /// [`ConnectError::Invalid`] for a URL that cannot be used; [`ConnectError::Backend`] if the
    /// server cannot be reached or does not accept this client.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Cancel safety
    /// Dropping the future gives the connection up.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::connect_with(url, Options::new()).await
    }

    /// Connects to the server at `url`.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and [`ConnectError::Invalid`] for options out of range.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Cancel safety
    /// Dropping the future gives the connection up.
    pub async fn connect_with(url: &str, options: Options) -> Result<Self, ConnectError> {
        let source = Source::from_url(url, options.resp)?;
        let core = Core::new(source, options)?;
        core.warm_up().await?;
        Ok(Self(core))
    }

    /// Uses the user's client to open connections; the first call does so.
    ///
    /// Everything works as with a URL. The client's server, user, database and TLS settings
    /// hold; the protocol is that of the options.
    ///
    /// # Errors
    /// [`ConnectError::Invalid`] for options out of range, or a client that cannot be used.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn from_client(client: &redis::Client, options: Options) -> Result<Self, ConnectError> {
        Ok(Self(Core::new(
            Source::own(client, options.resp)?,
            options,
        )?))
    }

    /// Uses one connection of the user's: a `ConnectionManager`, a `MultiplexedConnection`, or
    /// anything that clones into handles of one connection.
    ///
    /// It cannot open others, so there is no push and no independent renewal: see the
    /// crate's documentation for that and for how to set such a connection up.
    ///
    /// # Errors
    /// [`ConnectError::Invalid`] for options out of range.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn from_connection<C>(connection: C, options: Options) -> Result<Self, ConnectError>
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        Ok(Self(Core::new(
            Source::User(Arc::new(connection)),
            options,
        )?))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockBackend for RedisBackend {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        self.0.runtime()
    }

    async fn hello(&self) -> Result<Stamp, BackendError> {
        self.0.hello().await
    }

    async fn listen(&self, session: SessionId) -> Result<Notices, BackendError> {
        self.0.listen(session).await
    }

    async fn acquire(&self, request: &Acquire) -> Result<Stamped<AcquireReply>, BackendError> {
        self.0.acquire(request).await
    }

    async fn acquire_all(
        &self,
        batch: &[Acquire],
    ) -> Vec<Result<Stamped<AcquireReply>, BackendError>> {
        self.0.acquire_all(batch).await
    }

    async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        self.0.poll(batch).await
    }

    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        self.0.renew(batch).await
    }

    async fn end(&self, batch: &[End]) -> Vec<Result<Stamped<EndReply>, BackendError>> {
        self.0.end(batch).await
    }

    async fn convert(&self, request: &Convert) -> Result<Stamped<ConvertReply>, BackendError> {
        self.0.convert(request).await
    }

    async fn inspect(&self, key: &Key) -> Result<Stamped<InspectReply>, BackendError> {
        self.0.inspect(key).await
    }

    async fn force_release(
        &self,
        request: &ForceRelease,
    ) -> Result<Stamped<ForceReply>, BackendError> {
        self.0.force_release(request).await
    }

    async fn close(&self) -> Result<(), BackendError> {
        self.0.close().await
    }
}

//! The backend: requests become script calls, and what comes back becomes replies.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use fred::clients::{Client, Pool};
use fred::types::Builder;
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Capabilities, Convert, ConvertReply, End, EndReply,
    ForceRelease, ForceReply, InspectReply, Key, LockBackend, Notices, Poll, PollReply, Renew,
    RenewReply, Runtime, SessionId, Stamp, Stamped, TokioRuntime,
};
use leasehold_redis_protocol::{Call, Options, Protocol, Settings, reply};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::error::ConnectError;
use crate::link::{Answer, Link, Shared};
use crate::notices;
use crate::wire::{Source, User};

/// A [`LockBackend`] on a Redis server, through the `fred` crate.
///
/// Share it as `Arc<dyn LockBackend>`, or hand it to a client, which does so.
pub struct FredBackend {
    protocol: Protocol,
    shared: Arc<Shared>,
    link: Arc<Link>,
    /// For renewals: a connection of their own, driven where a blocked program cannot starve it.
    /// The same as `link` where no other can be opened.
    renewals: Arc<Link>,
    /// Whether the connection for renewals has been made ready for the first of them.
    warmed: AtomicBool,
    closed: watch::Sender<bool>,
}

impl fmt::Debug for FredBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither the URL, which may hold a password, nor the user's connection.
        f.debug_struct("FredBackend")
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

impl FredBackend {
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
        let source = Source::from_url(url, &options)?;
        let backend = Self::new(source, options)?;
        backend.link.warm_up().await?;
        Ok(backend)
    }

    /// Uses the user's configuration to open connections; the first call does so.
    ///
    /// Everything works as with a URL. The builder's server, user, database and TLS settings
    /// hold; the protocol is that of the options, each command is sent once, and connections are
    /// replaced by the backend, not by a reconnect policy. For a [`Config`] use
    /// [`Builder::from_config`].
    ///
    /// [`Config`]: fred::types::config::Config
    ///
    /// # Errors
    /// [`ConnectError::Invalid`] for options out of range, or a builder without a configuration.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn from_builder(builder: &Builder, options: Options) -> Result<Self, ConnectError> {
        Self::new(Source::own(builder, &options)?, options)
    }

    /// Uses the connection of a client of the user's, which must have been initialised.
    ///
    /// It cannot open others, so there is no push and no independent renewal: see the
    /// crate's documentation for that and for how to set such a client up.
    ///
    /// # Errors
    /// [`ConnectError::Invalid`] for options out of range.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn from_client(client: Client, options: Options) -> Result<Self, ConnectError> {
        Self::new(Source::User(User::Client(client)), options)
    }

    /// Uses the connections of a pool of the user's, which must have been initialised; otherwise
    /// as [`from_client`](Self::from_client).
    ///
    /// # Errors
    /// [`ConnectError::Invalid`] for options out of range.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn from_pool(pool: Pool, options: Options) -> Result<Self, ConnectError> {
        Self::new(Source::User(User::Pool(pool)), options)
    }

    fn new(source: Source, options: Options) -> Result<Self, ConnectError> {
        options.check()?;
        // Scripts publish in any case: other clients may listen although this one cannot.
        let protocol = Protocol::new(&options.key_prefix, Settings::default())?;
        let shared = Shared {
            source: Arc::new(source),
            options,
            runtime: TokioRuntime::current(),
            handle: Handle::current(),
            moved: Arc::default(),
        };
        let link = Link::new(Arc::new(shared.clone()));
        let renewals = match TokioRuntime::guardian() {
            Some(guardian) if shared.source.is_own() => Link::new(Arc::new(Shared {
                handle: guardian,
                ..shared.clone()
            })),
            _ => Arc::clone(&link),
        };
        Ok(Self {
            protocol,
            shared: Arc::new(shared),
            link,
            renewals,
            warmed: AtomicBool::new(false),
            closed: watch::Sender::new(false),
        })
    }

    async fn run(&self, call: &Call) -> Result<Answer, BackendError> {
        self.link.script(call).await
    }

    /// Connects where renewals go, and has the server load their script: the first renewal of a
    /// short lease has little time, and is to need one round trip only.
    fn warm_renewals(&self) {
        if Arc::ptr_eq(&self.link, &self.renewals) || self.warmed.swap(true, Ordering::Relaxed) {
            return;
        }
        let (link, nothing) = (Arc::clone(&self.renewals), self.protocol.renew(&[]));
        let handle = self.renewals.handle().clone();
        // What fails here is done by the first renewal.
        handle.spawn(async move { link.script(&nothing).await.map(drop) });
    }

    /// A batch in one call; an error of the call is the error of each of its elements.
    async fn run_all<T>(
        link: &Arc<Link>,
        count: usize,
        call: impl FnOnce() -> Call,
        decode: impl FnOnce(&Answer) -> Vec<Result<Stamped<T>, BackendError>>,
    ) -> Vec<Result<Stamped<T>, BackendError>> {
        if count == 0 {
            return Vec::new();
        }
        match link.script(&call()).await {
            Ok(answer) => decode(&answer),
            Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockBackend for FredBackend {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full();
        capabilities.push = self.shared.source.is_own();
        capabilities.independent_renewal = !Arc::ptr_eq(&self.link, &self.renewals);
        capabilities
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(self.shared.runtime.clone())
    }

    async fn hello(&self) -> Result<Stamp, BackendError> {
        self.link.time().await
    }

    async fn listen(&self, session: SessionId) -> Result<Notices, BackendError> {
        if *self.closed.borrow() {
            return Err(BackendError::Closed);
        }
        if !self.shared.source.is_own() {
            return Err(BackendError::Unsupported { what: "listen" });
        }
        let channel = self.protocol.channel(&session);
        notices::listen(&self.shared, channel, self.closed.subscribe()).await
    }

    async fn acquire(&self, request: &Acquire) -> Result<Stamped<AcquireReply>, BackendError> {
        let answer = self.run(&self.protocol.acquire(request)).await?;
        let answer = reply::acquire(&answer.body, answer.clock)?;
        if let AcquireReply::Acquired(_) | AcquireReply::Queued(_) = answer.reply {
            self.warm_renewals();
        }
        Ok(answer)
    }

    async fn poll(&self, batch: &[Poll]) -> Vec<Result<Stamped<PollReply>, BackendError>> {
        let count = batch.len();
        Self::run_all(
            &self.link,
            count,
            || self.protocol.poll(batch),
            |answer| reply::polls(&answer.body, count, answer.clock),
        )
        .await
    }

    async fn renew(&self, batch: &[Renew]) -> Vec<Result<Stamped<RenewReply>, BackendError>> {
        let count = batch.len();
        Self::run_all(
            &self.renewals,
            count,
            || self.protocol.renew(batch),
            |answer| reply::renewals(&answer.body, count, answer.clock),
        )
        .await
    }

    async fn end(&self, batch: &[End]) -> Vec<Result<Stamped<EndReply>, BackendError>> {
        let count = batch.len();
        Self::run_all(
            &self.link,
            count,
            || self.protocol.end(batch),
            |answer| reply::ends(&answer.body, count, answer.clock),
        )
        .await
    }

    async fn convert(&self, request: &Convert) -> Result<Stamped<ConvertReply>, BackendError> {
        let answer = self.run(&self.protocol.convert(request)).await?;
        reply::convert(&answer.body, answer.clock)
    }

    async fn inspect(&self, key: &Key) -> Result<Stamped<InspectReply>, BackendError> {
        let answer = self.run(&self.protocol.inspect(key)).await?;
        reply::inspect(&answer.body, answer.clock)
    }

    async fn force_release(
        &self,
        request: &ForceRelease,
    ) -> Result<Stamped<ForceReply>, BackendError> {
        let answer = self.run(&self.protocol.force_release(request)).await?;
        reply::force_release(&answer.body, answer.clock)
    }

    async fn close(&self) -> Result<(), BackendError> {
        self.closed.send_replace(true);
        self.link.close();
        self.renewals.close();
        Ok(())
    }
}

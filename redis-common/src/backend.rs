//! A backend that turns requests into script calls.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures_util::future::select;
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Capabilities, ClockId, Convert, ConvertReply,
    ForceRelease, ForceReply, InspectReply, Key, LockBackend, Notifications, Poll, PollReply,
    Release, ReleaseReply, Renew, RenewReply, Runtime, SessionId, Stamp, Stamped, TokioRuntime,
};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::connection::{
    self, Address, ConnectError, Connector, FIRST_PAUSE, LONGEST_PAUSE, ManagedConnection,
    SentinelSource, ServerUrl, Shared,
};
use crate::options::Options;
use crate::script::reply::{self, Answer};
use crate::script::{Call, Protocol, ScriptSettings};

/// A [`LockBackend`] on the connections of a client library.
///
/// # Cancel safety
/// Dropping the future of a method abandons the call. The server may still execute the command.
pub struct Backend<C: Connector> {
    protocol: Protocol,
    shared: Arc<Shared<C>>,
    commands: Arc<ManagedConnection<C>>,
    /// A second connection, driven by the renewal thread, so that a program that blocks its runtime
    /// doesn't stop renewals. The same as `commands` if there is no renewal thread, or if the
    /// connection is the user's.
    renewals: Arc<ManagedConnection<C>>,
    /// Whether the connection for renewals has been opened ahead of the first renewal.
    warmed: AtomicBool,
    closed: watch::Sender<bool>,
}

impl<C: Connector> fmt::Debug for Backend<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as("Backend", f)
    }
}

impl<C: Connector> Backend<C> {
    /// Creates a backend on a user's client or connection. The first call opens the first
    /// connection.
    ///
    /// # Errors
    /// [`ConnectError::Invalid`] for options out of range, or with certificates: those of the
    /// client apply.
    ///
    /// # Panics
    /// Panics if called outside a tokio runtime.
    pub fn new(connector: C, options: Options) -> Result<Self, ConnectError> {
        let problem = "they have no effect here; set them in your client";
        options.tls.check_unused(problem)?;
        Self::with(connector, None, options)
    }

    fn with(
        connector: C,
        sentinels: Option<SentinelSource<C>>,
        options: Options,
    ) -> Result<Self, ConnectError> {
        options.check()?;
        // Scripts always publish: other clients may listen even if this one can't.
        let protocol = Protocol::new(&options.key_prefix, ScriptSettings::default())?;
        let shared = Arc::new(Shared {
            connector: Arc::new(connector),
            options,
            runtime: TokioRuntime::current(),
            handle: Handle::current(),
            sentinels: sentinels.map(Arc::new),
            moved: Arc::default(),
            clock: Arc::default(),
        });
        let commands = ManagedConnection::new(Arc::clone(&shared));
        let renewals = match TokioRuntime::renewal_thread() {
            Some(renewal_thread) if shared.connector.is_own() => {
                ManagedConnection::new(Arc::new(shared.driven_by(renewal_thread)))
            }
            _ => Arc::clone(&commands),
        };
        Ok(Self {
            protocol,
            shared,
            commands,
            renewals,
            warmed: AtomicBool::new(false),
            closed: watch::Sender::new(false),
        })
    }

    /// Creates a backend for a URL, and opens its first connection. Tries again after transient
    /// errors, for at most [`initial_connect_timeout`](Options::initial_connect_timeout).
    ///
    /// # Errors
    /// - [`ConnectError::Invalid`] for options out of range, or certificates for a URL without TLS.
    /// - [`ConnectError::Backend`] if the server can't be reached in time or doesn't accept this
    ///   client.
    ///
    /// # Panics
    /// Panics if called outside a tokio runtime.
    ///
    /// # Cancel safety
    /// This method is cancel safe. Dropping the future abandons the connection.
    pub async fn connect(
        connector: C,
        url: &ServerUrl,
        options: Options,
    ) -> Result<Self, ConnectError> {
        if !url.uses_tls() {
            options
                .tls
                .check_unused("the URL has no TLS; write rediss://")?;
        }
        let limit = options.initial_connect_timeout;
        let sentinels = url.sentinels.as_ref();
        let sentinels = sentinels.map(|it| SentinelSource::new(&connector, url, it));
        let backend = Self::with(connector, sentinels.transpose()?, options)?;
        let mut last = None;
        let connecting = backend.connect_first(url, &mut last);
        match backend.shared.within(limit, connecting).await {
            Some(connected) => connected?,
            None => {
                return Err(last
                    .unwrap_or_else(|| backend.shared.too_slow(limit))
                    .into());
            }
        }
        backend.watch_sentinels();
        Ok(backend)
    }

    /// Spawns the task that asks the sentinels whether the primary is still the same. It ends with
    /// the backend.
    fn watch_sentinels(&self) {
        let Some(sentinels) = self.shared.sentinels.clone() else {
            return;
        };
        let (shared, mut closed) = (Arc::clone(&self.shared), self.closed.subscribe());
        self.shared.handle.spawn(async move {
            let closing = pin!(closed.wait_for(|closed| *closed));
            // If the sender of `closed` is gone, so is the backend.
            select(closing, pin!(sentinels.watch(&shared))).await;
        });
    }

    /// Opens the first connection. Each transient error is stored in `last`.
    async fn connect_first(
        &self,
        url: &ServerUrl,
        last: &mut Option<BackendError>,
    ) -> Result<(), BackendError> {
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match self.commands.warm_up().await {
                Err(error) if error.is_transient() => error,
                result => return result,
            };
            let is_first = last.is_none();
            *last = Some(error);
            if is_first && let Some(error) = self.mismatch(url).await {
                return Err(error);
            }
            self.shared.runtime.sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// The error if the server expects TLS and the URL has none, or the other way round.
    async fn mismatch(&self, url: &ServerUrl) -> Option<BackendError> {
        let Address::Tcp { host, port, tls } = &url.address else {
            return None;
        };
        let asking = connection::mismatch(host, *port, *tls);
        let limit = self.shared.options.connect_timeout;
        let problem = self.shared.within(limit, asking).await??;
        let error = match url.sentinels {
            Some(_) => BackendError::rejected(format!("sentinel {}: {problem}", url.address)),
            None => BackendError::rejected(problem),
        };
        Some(self.shared.with_address(error))
    }

    /// Formats the backend under the name of a wrapper. Doesn't show the URL, because it may
    /// contain a password.
    ///
    /// # Errors
    /// The errors of the formatter.
    pub fn fmt_as(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }

    /// Whether renewals have a separate connection.
    fn renews_independently(&self) -> bool {
        !Arc::ptr_eq(&self.commands, &self.renewals)
    }

    /// Opens the connection for renewals and loads their script on the server. The first renewal of
    /// a short lease has time for one round trip only.
    fn warm_renewals(&self) {
        if !self.renews_independently() || self.warmed.swap(true, Ordering::Relaxed) {
            return;
        }
        let (connection, empty) = (Arc::clone(&self.renewals), self.protocol.renew(&[]));
        // If this fails, the first renewal connects and loads the script.
        let warm_up = async move { connection.script(&empty).await.map(drop) };
        self.renewals.handle().spawn(warm_up);
    }

    /// Runs a script for one element.
    async fn run<T>(
        &self,
        call: Call,
        decode: impl FnOnce(&[u8], ClockId) -> Answer<T>,
    ) -> Answer<T> {
        let answer = self.commands.script(&call).await?;
        decode(answer.body(), answer.clock)
    }

    /// Runs a script for a batch. If the call fails, every element gets the error.
    async fn run_batch<E, T>(
        &self,
        connection: &Arc<ManagedConnection<C>>,
        batch: &[E],
        encode: impl FnOnce(&Protocol, &[E]) -> Call,
        decode: impl FnOnce(&[u8], usize, ClockId) -> Vec<Answer<T>>,
    ) -> Vec<Answer<T>> {
        if batch.is_empty() {
            return Vec::new();
        }
        match connection.script(&encode(&self.protocol, batch)).await {
            Ok(answer) => decode(answer.body(), batch.len(), answer.clock),
            Err(error) => batch.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn renew_over(
        &self,
        connection: &Arc<ManagedConnection<C>>,
        batch: &[Renew],
    ) -> Vec<Answer<RenewReply>> {
        self.run_batch(connection, batch, Protocol::renew, reply::renewals)
            .await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<C: Connector> LockBackend for Backend<C> {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full();
        capabilities.push = self.shared.connector.is_own();
        capabilities.independent_renewal = self.renews_independently();
        capabilities
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(self.shared.runtime.clone())
    }

    async fn hello(&self) -> Result<Stamp, BackendError> {
        self.commands.time().await
    }

    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        if *self.closed.borrow() {
            return Err(BackendError::Closed);
        }
        if !self.shared.connector.is_own() {
            return Err(BackendError::unsupported("listen"));
        }
        let channel = self.protocol.channel(&session);
        connection::listen(&self.shared, channel, self.closed.subscribe()).await
    }

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Answer<AcquireReply>> {
        let answers = self
            .run_batch(&self.commands, batch, Protocol::acquire, reply::acquires)
            .await;
        let mut replies = answers.iter().flatten().map(|answer| &answer.reply);
        if replies.any(may_be_renewed) {
            self.warm_renewals();
        }
        answers
    }

    async fn poll(&self, batch: &[Poll]) -> Vec<Answer<PollReply>> {
        self.run_batch(&self.commands, batch, Protocol::poll, reply::polls)
            .await
    }

    /// Uses the connection for commands if the connection for renewals fails before it sends: a
    /// server or proxy may allow only one connection.
    async fn renew(&self, batch: &[Renew]) -> Vec<Answer<RenewReply>> {
        let began = self.shared.runtime.now();
        let replies = self.renew_over(&self.renewals, batch).await;
        if !self.renews_independently() || !replies.iter().all(not_executed) {
            return replies;
        }
        let took = self.shared.runtime.now().saturating_since(began);
        let rest = self.shared.options.call_timeout.saturating_sub(took);
        let again = self.renew_over(&self.commands, batch);
        let unknown = || Err(BackendError::outcome_unknown("no answer in time"));
        let answered = self.shared.within(rest, again).await;
        answered.unwrap_or_else(|| batch.iter().map(|_| unknown()).collect())
    }

    async fn release(&self, batch: &[Release]) -> Vec<Answer<ReleaseReply>> {
        self.run_batch(&self.commands, batch, Protocol::release, reply::releases)
            .await
    }

    async fn convert(&self, request: &Convert) -> Result<Stamped<ConvertReply>, BackendError> {
        let call = self.protocol.convert(request);
        self.run(call, reply::convert).await
    }

    async fn inspect(&self, key: &Key) -> Result<Stamped<InspectReply>, BackendError> {
        let call = self.protocol.inspect(key);
        self.run(call, reply::inspect).await
    }

    async fn force_release(
        &self,
        request: &ForceRelease,
    ) -> Result<Stamped<ForceReply>, BackendError> {
        let call = self.protocol.force_release(request);
        self.run(call, reply::force_release).await
    }

    async fn close(&self) -> Result<(), BackendError> {
        self.closed.send_replace(true);
        self.commands.close();
        self.renewals.close();
        Ok(())
    }
}

fn not_executed<T>(reply: &Result<T, BackendError>) -> bool {
    matches!(reply, Err(BackendError::Unavailable { .. }))
}

/// Whether a renewal may follow this reply.
const fn may_be_renewed(reply: &AcquireReply) -> bool {
    matches!(reply, AcquireReply::Acquired(_) | AcquireReply::Queued(_))
}

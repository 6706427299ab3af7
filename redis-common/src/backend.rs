//! A backend that turns requests into script calls.

mod listing;
mod waiters;

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join_all, select};
use leasehold_api::{
    Acquire, AcquireReply, BackendError, Capabilities, ClockId, ConnectError, ConnectPace, Convert,
    ConvertReply, ForceRelease, ForceReply, InspectReply, Key, List, Listed, LockBackend, Note,
    NoteReply, Notifications, Poll, PollReply, Release, ReleaseReply, Renew, RenewReply, Runtime,
    ServerTime, SessionId, Stamp, Stamped, TokioRuntime,
};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::connection::{
    self, Address, Checks, Cluster, Connector, Lane, Node, OnlyServer, SentinelSource, ServerMode,
    ServerUrl, Shared, WATCHED, no_answer,
};
use crate::options::{Options, RespVersion};
use crate::script::reply::{self, Answer};
use crate::script::{Call, Protocol, ScriptSettings};
use waiters::Keyed;

/// A [`LockBackend`] on the connections of a client library.
///
/// # Cancel safety
/// Dropping the future of a method abandons the call. The server may still execute the command.
pub struct Backend {
    protocol: Protocol,
    shared: Arc<Shared>,
    servers: Servers,
    closed: watch::Sender<bool>,
}

enum Servers {
    One(Node),
    /// Each call has one key, maybe more than once.
    Cluster(Arc<Cluster>),
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as("Backend", f)
    }
}

impl Backend {
    /// Creates a backend on a user's client or connection. The first call opens the first
    /// connection.
    ///
    /// # Errors
    /// [`ConnectError::Invalid`] for options out of range, or with certificates: those of the
    /// client apply.
    ///
    /// # Panics
    /// Panics if called outside a tokio runtime.
    pub fn new(connector: impl Connector, options: Options) -> Result<Self, ConnectError> {
        let problem = "they have no effect here; set them in your client";
        options.certificates.check_unused(problem)?;
        Self::with(Arc::new(connector), None, options)
    }

    /// Creates a backend for a URL, or on a user's client or connection.
    fn with(
        connector: Arc<dyn Connector>,
        url: Option<&ServerUrl>,
        options: Options,
    ) -> Result<Self, ConnectError> {
        let cluster = url.and_then(|url| Some((url, url.cluster.as_ref()?)));
        let sentinels = url.and_then(|url| Some((url, url.sentinels.as_ref()?)));
        let sentinels = sentinels.map(|(url, it)| SentinelSource::new(&*connector, url, it));
        let mode = match cluster {
            Some(_) => ServerMode::Cluster,
            None => ServerMode::Standalone,
        };
        let (protocol, shared) = new_shared(connector, sentinels.transpose()?, options, mode)?;
        let servers = match cluster {
            Some((url, nodes)) => Servers::Cluster(Cluster::new(url, nodes, Arc::clone(&shared))?),
            None => Servers::One(Node::new(&shared)),
        };
        Ok(Self {
            protocol,
            shared,
            servers,
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
        connector: impl Connector,
        url: &ServerUrl,
        options: Options,
    ) -> Result<Self, ConnectError> {
        if !url.uses_tls() {
            options
                .certificates
                .check_unused("the URL has no TLS; write rediss:// or rediss-cluster://")?;
        }
        let limit = options.initial_connect_timeout;
        let backend = Self::with(Arc::new(connector), Some(url), options)?;
        let mut last = None;
        let connecting = backend.connect_first(url, &mut last);
        match backend.shared.timeout(limit, connecting).await {
            Some(connected) => connected?,
            None => {
                let silent = || backend.shared.with_address(no_answer(limit));
                return Err(last.unwrap_or_else(silent).into());
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
        let handle = sentinels.handle.clone();
        handle.spawn(async move {
            let closing = pin!(closed.wait_for(|closed| *closed));
            // If the sender of `closed` is gone, so is the backend.
            select(closing, pin!(sentinels.watch(&shared))).await;
            sentinels.close().await;
        });
    }

    /// Opens the first connection. Each transient error is stored in `last`.
    async fn connect_first(
        &self,
        url: &ServerUrl,
        last: &mut Option<BackendError>,
    ) -> Result<(), BackendError> {
        let (runtime, pace) = (&self.shared.runtime, ConnectPace::default());
        loop {
            let connecting = async {
                match &self.servers {
                    Servers::One(node) => node.commands.warm_up().await,
                    Servers::Cluster(cluster) => cluster.connect().await,
                }
            };
            let connected = pace.connect(runtime, Duration::MAX, connecting).await;
            let error = match connected {
                Err(error) if error.is_transient() => error,
                result => return result,
            };
            let is_first = last.is_none();
            *last = Some(error);
            if is_first && let Some(error) = self.mismatch(url).await {
                return Err(error);
            }
            let of_server = match &self.servers {
                Servers::One(_) => self.shared.pace.pause_left(runtime.now()),
                Servers::Cluster(cluster) => cluster.pause_left(),
            };
            let pause = pace.pause_left(runtime.now());
            runtime.timer(pause.max(of_server)).await;
        }
    }

    /// The error if the server expects TLS and the URL has none, or the other way round.
    async fn mismatch(&self, url: &ServerUrl) -> Option<BackendError> {
        let Address::Tcp { host, port, tls } = &url.address else {
            return None;
        };
        let asking = connection::mismatch(host, *port, *tls);
        let limit = self.shared.options.connect_timeout;
        let problem = self.shared.timeout(limit, asking).await??;
        let error = match url.sentinels {
            Some(_) => BackendError::rejected(format!("sentinel {}: {problem}", url.address)),
            None => BackendError::rejected(problem),
        };
        Some(self.shared.with_address(error))
    }

    /// Runs a call that changes nothing, for at most the call timeout.
    async fn in_time<T>(
        &self,
        call: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let limit = self.shared.options.call_timeout;
        let late = || Err(BackendError::unavailable("no node answered in time"));
        self.shared.timeout(limit, call).await.unwrap_or_else(late)
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

    async fn run<T>(
        &self,
        call: Call,
        decode: impl FnOnce(&[u8], ClockId) -> Answer<T>,
    ) -> Answer<T> {
        let answer = match &self.servers {
            Servers::One(node) => node.commands.script(&call).await?,
            Servers::Cluster(cluster) => cluster.script(Lane::Commands, &call).await?,
        };
        decode(&answer.body, answer.clock)
    }

    /// Runs a script for a batch. If a call fails, every element of the call gets the error.
    async fn run_batch<E: Keyed, T>(
        &self,
        lane: Lane,
        batch: &[E],
        encode: impl Fn(&Protocol, &[E]) -> Call + Sync,
        decode: impl Fn(&[u8], usize, ClockId) -> Vec<Answer<T>> + Sync,
    ) -> Vec<Answer<T>> {
        if batch.is_empty() {
            return Vec::new();
        }
        let decoded =
            |batch: &[E], answer: Result<connection::ScriptReply, BackendError>| match answer {
                Ok(answer) => decode(&answer.body, batch.len(), answer.clock),
                Err(error) => batch.iter().map(|_| Err(error.clone())).collect(),
            };
        let cluster = match &self.servers {
            Servers::One(node) => {
                let call = encode(&self.protocol, batch);
                return decoded(batch, node.connection(lane).script(&call).await);
            }
            Servers::Cluster(cluster) => cluster,
        };
        // The elements of a key are one call. One after the other, they would share one time limit. Calls for
        // different keys run side by side.
        let mut by_key: BTreeMap<&Key, Vec<usize>> = BTreeMap::new();
        for (index, element) in batch.iter().enumerate() {
            by_key.entry(element.key()).or_default().push(index);
        }
        let (encode, decoded) = (&encode, &decoded);
        let calls = by_key.into_values().map(|indices| async move {
            let requests = indices.iter().map(|&index| &batch[index]);
            let elements = requests.map(|it| self.listening_if_subscribed(cluster, it));
            let elements: Vec<E> = elements.collect();
            let call = encode(&self.protocol, &elements);
            let answer = cluster.script(lane, &call).await;
            indices.into_iter().zip(decoded(&elements, answer))
        });
        let mut answers: Vec<_> = join_all(calls).await.into_iter().flatten().collect();
        answers.sort_unstable_by_key(|(index, _)| *index);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    async fn poll_once(&self, batch: &[Poll]) -> Vec<Answer<PollReply>> {
        self.run_batch(Lane::Commands, batch, Protocol::poll, reply::polls)
            .await
    }

    async fn renew_over(&self, lane: Lane, batch: &[Renew]) -> Vec<Answer<RenewReply>> {
        self.run_batch(lane, batch, Protocol::renew, reply::renewals)
            .await
    }

    /// Prepares the connections that will renew the holds of these keys.
    fn warm_renewals<'a>(&self, keys: impl Iterator<Item = &'a Key>) {
        let empty = || self.protocol.renew(&[]);
        match &self.servers {
            Servers::One(node) => {
                for _ in keys.take(1) {
                    node.warm_renewals(empty);
                }
            }
            Servers::Cluster(cluster) => {
                for key in keys {
                    if let Some(primary) = cluster.node_of_key(&self.protocol.key(key)) {
                        primary.node.warm_renewals(empty);
                    }
                }
            }
        }
    }
}

pub(crate) fn new_shared(
    connector: Arc<dyn Connector>,
    sentinels: Option<SentinelSource>,
    options: Options,
    mode: ServerMode,
) -> Result<(Protocol, Arc<Shared>), ConnectError> {
    options.check()?;
    TokioRuntime::check_clock()?;
    // Scripts always publish: other clients may listen even if this one can't.
    let is_cluster = mode == ServerMode::Cluster;
    let settings = ScriptSettings::default().with_shard_channels(is_cluster);
    let protocol = Protocol::new(&options.key_prefix, settings)?;
    let rights = protocol.rights(is_cluster && options.resp == RespVersion::Resp3);
    let shared = Arc::new(Shared {
        checks: Arc::new(Checks::new(options.server_checks, rights)),
        has_rights: Arc::default(),
        connector,
        options,
        runtime: TokioRuntime::current(),
        handle: Handle::current(),
        sentinels: sentinels.map(Arc::new),
        pace: Arc::default(),
        moved: Arc::default(),
        clock: Arc::default(),
        unnamed_clock: WATCHED,
        mode,
    });
    Ok((protocol, shared))
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockBackend for Backend {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full();
        match &self.servers {
            Servers::One(node) => {
                capabilities.push = self.shared.connector.is_own();
                capabilities.independent_renewal = node.renews_independently();
            }
            Servers::Cluster(cluster) => {
                let is_resp3 = self.shared.options.resp == RespVersion::Resp3;
                capabilities.push = is_resp3 && cluster.has_shard_channels();
                capabilities.reachability = capabilities.push;
                capabilities.batches = false;
                capabilities.independent_renewal = TokioRuntime::renewal_thread().is_some();
            }
        }
        capabilities
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(self.shared.runtime.clone())
    }

    async fn hello(&self) -> Result<Stamp, BackendError> {
        match &self.servers {
            Servers::One(node) => node.commands.time().await,
            Servers::Cluster(cluster) => self.in_time(cluster.time()).await,
        }
    }

    fn clock(&self, key: &Key) -> Option<ClockId> {
        match &self.servers {
            Servers::One(_) => None,
            Servers::Cluster(cluster) => Some(cluster.clock(&self.protocol.key(key))),
        }
    }

    fn clock_address(&self, clock: ClockId) -> Option<String> {
        self.shared.checks.address_of(clock)
    }

    fn time_of_day(&self, at: ServerTime) -> ServerTime {
        at
    }

    async fn read_clock(&self, key: &Key) -> Result<Stamp, BackendError> {
        match &self.servers {
            Servers::One(_) => self.hello().await,
            Servers::Cluster(cluster) => {
                let key = self.protocol.key(key);
                self.in_time(cluster.read_clock(&key)).await
            }
        }
    }

    /// Each command is one script, so there is nothing to check.
    async fn self_check(&self, _: &Key) -> Result<(), BackendError> {
        Ok(())
    }

    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        if *self.closed.borrow() {
            return Err(BackendError::Closed);
        }
        if !self.capabilities().push {
            return Err(BackendError::unsupported("listen"));
        }
        let channel = self.protocol.channel(&session);
        let closed = self.closed.subscribe();
        if let Servers::Cluster(cluster) = &self.servers {
            return cluster.listen(session, channel, closed).await;
        }
        let shared = Arc::clone(&self.shared);
        connection::listen(Arc::new(OnlyServer(shared)), channel, closed).await
    }

    async fn acquire(&self, batch: &[Acquire]) -> Vec<Answer<AcquireReply>> {
        let began = self.shared.now();
        let lane = Lane::Commands;
        let acquiring = self.run_batch(lane, batch, Protocol::acquire, reply::acquires);
        let mut answers = acquiring.await;
        if let Servers::Cluster(cluster) = &self.servers {
            let left = self.shared.left_of_call(began);
            let subscribing = self.subscribe_waiters(cluster, batch, &mut answers, left);
            subscribing.await;
        }
        let renewed = batch.iter().zip(&answers);
        let renewed = renewed.filter(|(_, answer)| may_be_renewed(answer));
        self.warm_renewals(renewed.map(|(request, _)| &request.key));
        answers
    }

    async fn poll(&self, batch: &[Poll]) -> Vec<Answer<PollReply>> {
        if let Servers::Cluster(cluster) = &self.servers {
            return self.poll_in_cluster(cluster, batch).await;
        }
        self.poll_once(batch).await
    }

    /// Uses the connection for commands if the connection for renewals fails before it sends: a
    /// server or proxy may allow only one connection.
    async fn renew(&self, batch: &[Renew]) -> Vec<Answer<RenewReply>> {
        let began = self.shared.now();
        let replies = self.renew_over(Lane::Renewals, batch).await;
        let Servers::One(node) = &self.servers else {
            // The cluster does this for each node.
            return replies;
        };
        if !node.renews_independently() || !replies.iter().all(not_executed) {
            return replies;
        }
        let left = self.shared.left_of_call(began);
        let again = self.renew_over(Lane::Commands, batch);
        let answered = self.shared.timeout(left, again).await;
        answered.unwrap_or_else(|| all_unknown(batch))
    }

    async fn release(&self, batch: &[Release]) -> Vec<Answer<ReleaseReply>> {
        self.run_batch(Lane::Commands, batch, Protocol::release, reply::releases)
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

    async fn list(&self, request: &List) -> Result<Listed, BackendError> {
        match &self.servers {
            Servers::One(node) => self.list_one(node, request).await,
            Servers::Cluster(cluster) => self.in_time(self.list_cluster(cluster, request)).await,
        }
    }

    async fn force_release(
        &self,
        request: &ForceRelease,
    ) -> Result<Stamped<ForceReply>, BackendError> {
        let call = self.protocol.force_release(request);
        self.run(call, reply::force_release).await
    }

    async fn write_note(&self, request: &Note) -> Result<Stamped<NoteReply>, BackendError> {
        let call = self.protocol.note(request);
        self.run(call, reply::note).await
    }

    async fn close(&self) -> Result<(), BackendError> {
        self.closed.send_replace(true);
        match &self.servers {
            Servers::One(node) => node.close(),
            Servers::Cluster(cluster) => cluster.close(),
        }
        Ok(())
    }
}

fn not_executed<T>(answer: &Answer<T>) -> bool {
    matches!(answer, Err(BackendError::Unavailable { .. }))
}

fn all_unknown<E, T>(batch: &[E]) -> Vec<Answer<T>> {
    let unknown = || Err(BackendError::outcome_unknown("no answer in time"));
    batch.iter().map(|_| unknown()).collect()
}

fn may_be_renewed(answer: &Answer<AcquireReply>) -> bool {
    let reply = answer.as_ref().map(|answer| &answer.reply);
    matches!(
        reply,
        Ok(AcquireReply::Acquired(_) | AcquireReply::Queued(_))
    )
}

#[cfg(test)]
mod tests;

//! What all connections of a backend share: where they lead, and which server they have reached.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::{Either, select};
use leasehold_api::{BackendError, ClockId, ConnectPace, TokioRuntime};
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio_postgres::{Client, Config, SimpleQueryMessage};

use crate::connector::{self, Connector};
use crate::error::{During, classify};
use crate::hosts;
use crate::options::Options;
use crate::statements::{SET_UP, Server};

/// The application name of the connections, unless the configuration has one.
const APPLICATION: &str = "leasehold";

/// Where connections lead, and how they are opened.
pub(crate) struct Endpoint {
    pub(crate) config: Config,
    pub(crate) connector: Connector,
    /// When this client may connect there: for commands, renewals and subscriptions.
    pub(crate) pace: ConnectPace,
}

impl Endpoint {
    pub(crate) fn new(mut config: Config, connector: Connector) -> Self {
        if config.get_application_name().is_none() {
            config.application_name(APPLICATION);
        }
        Self {
            config,
            connector,
            pace: ConnectPace::default(),
        }
    }

    /// Where the server is, for errors.
    pub(crate) fn address(&self) -> String {
        connector::address(&self.config)
    }
}

/// What all connections of a backend share.
pub(crate) struct Shared {
    pub(crate) endpoint: Endpoint,
    /// The server behind the pooler, for subscriptions. `None` without a pooler, or if only the pooler is known.
    pub(crate) direct: Option<Endpoint>,
    pub(crate) options: Options,
    pub(crate) runtime: TokioRuntime,
    pub(crate) closed: watch::Sender<bool>,
    pub(crate) newest: Newest,
}

/// Which server the newest connection has reached, or through a pooler, the newest transaction.
#[derive(Default)]
pub(crate) struct Newest {
    attempts: AtomicU64,
    /// The latest attempt that has reached a server, and its clock.
    reached: Mutex<(u64, Option<ClockId>)>,
    /// The clock of the server that an event has named last.
    told: AtomicU64,
}

impl Newest {
    /// The number of an attempt that begins now.
    pub(crate) fn begin(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Notes that an attempt has reached the server with this clock. Returns `false` if one that began later has
    /// reached another server: the address led there already.
    fn reach(&self, attempt: u64, clock: ClockId) -> bool {
        let mut reached = self.reached();
        let is_latest = attempt >= reached.0;
        if is_latest {
            *reached = (attempt, Some(clock));
        }
        is_latest || reached.1 == Some(clock)
    }

    fn reached(&self) -> MutexGuard<'_, (u64, Option<ClockId>)> {
        self.reached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Outside a tokio runtime, it panics.
    pub(crate) fn new(endpoint: Endpoint, direct: Option<Endpoint>, options: Options) -> Arc<Self> {
        Arc::new(Self {
            endpoint,
            direct,
            options,
            runtime: TokioRuntime::current(),
            closed: watch::Sender::new(false),
            newest: Newest::default(),
        })
    }

    /// Whether the endpoint is a pooler that may execute each transaction elsewhere.
    pub(crate) const fn is_pooled(&self) -> bool {
        self.options.is_pooled()
    }

    pub(crate) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Whether the newest connection has reached the server with this clock. If it hasn't, the address leads to
    /// another server now. The old one may be a former primary that is cut off from its standbys and still
    /// answers, so its connections are not used any more.
    pub(crate) fn is_newest(&self, clock: ClockId) -> bool {
        self.newest.reached().1 == Some(clock)
    }

    /// Where the server is, for errors.
    pub(crate) fn address(&self) -> String {
        self.endpoint.address()
    }

    /// Whether sessions can subscribe.
    pub(crate) const fn can_listen(&self) -> bool {
        !self.is_pooled() || self.direct.is_some()
    }

    /// Awaits an answer of a server within the connect timeout. `what` is its name in the error.
    pub(crate) async fn in_time<T>(
        &self,
        endpoint: &Endpoint,
        what: &str,
        answer: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let limit = self.options.connect_timeout;
        let answer = self.runtime.timeout(limit, answer).await;
        answer.unwrap_or_else(|| {
            let reason = format!("{}: no {what} in time", endpoint.address());
            Err(BackendError::unavailable(reason))
        })
    }

    /// Awaits an answer until the backend is closed.
    pub(crate) async fn until_closed<T>(
        &self,
        answer: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let mut closed = self.closed.subscribe();
        let closing = pin!(closed.wait_for(|closed| *closed));
        match select(closing, pin!(answer)).await {
            Either::Left(_) => Err(BackendError::Closed),
            Either::Right((answer, _)) => answer,
        }
    }

    /// Where subscriptions go.
    pub(crate) fn for_subscriptions(&self) -> &Endpoint {
        self.direct.as_ref().unwrap_or(&self.endpoint)
    }

    /// Makes a connection within the connect timeout, or says at once why that has just failed.
    pub(crate) async fn paced<T>(
        &self,
        endpoint: &Endpoint,
        making: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let (limit, making) = (
            self.options.connect_timeout,
            self.in_time(endpoint, "connection", making),
        );
        endpoint.pace.connect(&self.runtime, limit, making).await
    }

    /// Opens a session for a subscription and sets it up, within the connect timeout. Returns the clock of its server.
    pub(crate) async fn open_session(
        &self,
        handle: &Handle,
        payloads: UnboundedSender<String>,
    ) -> Result<(Client, ClockId), BackendError> {
        let endpoint = self.for_subscriptions();
        let opening = async {
            let (client, attempt) = self.connect(endpoint, handle, Some(payloads)).await?;
            let answers = set_up(&client, endpoint).await?;
            let clock = match self.is_pooled() {
                false => self.reached(attempt, &answers)?,
                true => primary(&answers)?.clock,
            };
            Ok((client, clock))
        };
        self.paced(endpoint, opening).await
    }

    /// Opens a connection without any settings. Returns the number of the attempt too, for
    /// [`reached`](Self::reached).
    pub(crate) async fn connect(
        &self,
        endpoint: &Endpoint,
        handle: &Handle,
        payloads: Option<UnboundedSender<String>>,
    ) -> Result<(Client, u64), BackendError> {
        if self.is_closed() {
            return Err(BackendError::Closed);
        }
        let attempt = self.newest.begin();
        let (connector, config) = (Arc::clone(&endpoint.connector), endpoint.config.clone());
        let (runtime, limit) = (self.runtime.clone(), self.options.connect_timeout);
        let driver = handle.clone();
        // A socket belongs to the runtime in which it is opened.
        let opening = handle.spawn(async move {
            let opening = hosts::connect(&connector, &config, payloads, &runtime, limit);
            let (client, driving) = opening.await?;
            driver.spawn(driving);
            Ok(client)
        });
        let _abort = Abort(opening.abort_handle());
        let client = opening.await.unwrap_or_else(|ended| Err(not_run(&ended)))?;
        Ok((client, attempt))
    }

    /// Notes which server an attempt has reached. Returns the id of its clock.
    ///
    /// # Errors
    /// A standby is refused, and so is a server that the address led to before it led to another one.
    pub(crate) fn reached(
        &self,
        attempt: u64,
        answers: &[SimpleQueryMessage],
    ) -> Result<ClockId, BackendError> {
        let server = primary(answers)?;
        if !self.newest.reach(attempt, server.clock) {
            let reason = "an attempt that began later has reached another server";
            return Err(BackendError::unavailable(reason));
        }
        self.report_connected(&server);
        Ok(server.clock)
    }

    /// Reports a server once, not each connection to it.
    fn report_connected(&self, server: &Server<'_>) {
        let clock = server.clock.get();
        if self.newest.told.swap(clock, Ordering::Relaxed) != clock {
            tracing::event!(
                name: "connected",
                target: "leasehold",
                tracing::Level::INFO,
                backend = "postgres",
                server = %format_args!("PostgreSQL {}", server.version),
                address = self.address(),
                "connected"
            );
        }
    }
}

/// Sets a session up. Returns what its server says of itself.
pub(crate) async fn set_up(
    client: &Client,
    endpoint: &Endpoint,
) -> Result<Vec<SimpleQueryMessage>, BackendError> {
    let answers = client.simple_query(SET_UP).await;
    answers.map_err(|error| classify(error, During::Connect(&endpoint.address())))
}

/// The server, unless it is a standby.
pub(crate) fn primary(answers: &[SimpleQueryMessage]) -> Result<Server<'_>, BackendError> {
    let unknown = || BackendError::unavailable("the server doesn't tell when it was started");
    let server = Server::of(answers).ok_or_else(unknown)?;
    match server.is_standby {
        true => Err(BackendError::unavailable("the server is a standby")),
        false => Ok(server),
    }
}

/// The error if a task has not finished. If it was cancelled, its runtime has ended.
pub(crate) fn not_run(ended: &JoinError) -> BackendError {
    match ended.is_cancelled() {
        true => BackendError::Closed,
        false => BackendError::unavailable("the task that connects panicked"),
    }
}

struct Abort(tokio::task::AbortHandle);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempt_that_began_earlier_leads_nowhere_else() {
        let (old, new) = (ClockId::new(1), ClockId::new(2));
        let newest = Newest::default();
        let [slow, fast, late] = [(); 3].map(|()| newest.begin());
        assert!(newest.reach(fast, new));
        assert!(!newest.reach(slow, old), "it began before the other");
        assert!(newest.reach(slow, new), "it has reached the same server");
        assert_eq!(newest.reached().1, Some(new));
        assert!(newest.reach(late, old), "the address leads there again");
        assert_eq!(newest.reached().1, Some(old));
    }
}

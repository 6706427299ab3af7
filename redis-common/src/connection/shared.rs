//! What the connections of a backend share, and how each of them is opened.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join3;
use leasehold_api::{
    BackendError, ClockId, ConnectPace, Moment, Rounded, Runtime, TokioRuntime, first_of,
};
use tokio::net::lookup_host;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::watch;
use tokio::task::JoinError;

use super::checks::{self, Checks};
use super::clock::ClockWatch;
use super::connector::{Connection, ConnectionEvent, Connector};
use super::failure::{Failure, FailureKind};
use super::sentinel::SentinelSource;
use super::server::{ServerInfo, ServerMode, UNKNOWN};
use crate::options::Options;

/// A connection is suspect after silence for the call timeout divided by this number.
const SILENCE_PARTS: u32 = 4;

#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) connector: Arc<dyn Connector>,
    pub(crate) options: Options,
    pub(crate) runtime: TokioRuntime,
    pub(crate) handle: Handle,
    pub(crate) sentinels: Option<Arc<SentinelSource>>,
    /// When this client may connect to the server: for commands, renewals and subscriptions.
    pub(crate) pace: Arc<ConnectPace>,
    /// Counts the moves to another server. A connection that was opened before the last move leads
    /// to a server that has become a replica, or is no longer named by the sentinels.
    pub(crate) moved: Arc<watch::Sender<u64>>,
    pub(crate) checks: Arc<Checks>,
    /// Whether the user has all rights on this server. Each node of a cluster has users of its own.
    pub(crate) has_rights: Arc<AtomicBool>,
    /// For a user's connection, or a server without a `run_id`: detects a change of the server's
    /// clock.
    pub(crate) clock: Arc<Mutex<Option<ClockWatch>>>,
    pub(crate) unnamed_clock: ClockId,
    pub(crate) mode: ServerMode,
}

impl Shared {
    pub(crate) fn for_node(&self, connector: Arc<dyn Connector>, unnamed_clock: ClockId) -> Self {
        Self {
            connector,
            sentinels: None,
            pace: Arc::default(),
            moved: Arc::default(),
            has_rights: Arc::default(),
            clock: Arc::default(),
            unnamed_clock,
            ..self.clone()
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.runtime.now()
    }

    pub(crate) fn timeout<F: Future>(
        &self,
        limit: Duration,
        future: F,
    ) -> impl Future<Output = Option<F::Output>> + use<F> {
        self.runtime.timeout(limit, future)
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.options.key_prefix
    }

    /// Opens a connection and checks the server, within the connect timeout, or says at once why that has
    /// just failed. If the connection `listens`, it reports its events.
    ///
    /// Runs in a task, so that the backend's runtime drives the connection, not the caller's.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        listens: bool,
    ) -> Result<Connected, BackendError> {
        let limit = self.options.connect_timeout;
        let shared = Arc::clone(self);
        let task = self.handle.spawn(async move {
            let opening = async {
                let opening = async {
                    match &shared.sentinels {
                        Some(sentinels) => sentinels.open(&shared, listens).await,
                        None => shared.open_with(&*shared.connector, listens).await,
                    }
                };
                let opened = shared.timeout(limit, opening).await;
                let opened = opened.unwrap_or_else(|| Err(no_answer(limit)));
                opened.map_err(|error| shared.with_address(error))
            };
            shared.pace.connect(&shared.runtime, limit, opening).await
        });
        let connected = task.await;
        connected.unwrap_or_else(|ended| Err(not_run(&ended)))
    }

    /// Opens a connection to the first address of the server that answers, and checks the server.
    pub(crate) async fn open_with(
        &self,
        connector: &dyn Connector,
        listens: bool,
    ) -> Result<Connected, BackendError> {
        let addresses = addresses(connector).await;
        let addresses = addresses.map_err(|it| it.at_connect(self.prefix()))?;
        let opening = |to| self.open_at(connector, to, listens);
        first_of(
            &self.runtime,
            self.options.connect_timeout,
            addresses.into_iter().map(opening),
        )
        .await
    }

    async fn open_at(
        &self,
        connector: &dyn Connector,
        to: Option<SocketAddr>,
        listens: bool,
    ) -> Result<Connected, BackendError> {
        let moves = self.moves();
        let (sender, events) = mpsc::unbounded_channel();
        let opening = async {
            let connection = connector.open(to, listens.then_some(sender)).await?;
            // All at once, to save round trips.
            let rights = self.checks.missing_rights(&*connection, &self.has_rights);
            let evalsha = self.checks.require_evalsha(&*connection);
            let (info, missing, has_evalsha) = join3(connection.info(None), rights, evalsha).await;
            Ok((connection, info?, missing?, has_evalsha))
        };
        let opened: Result<_, Failure> = opening.await;
        let (connection, info, missing, has_evalsha) =
            opened.map_err(|it| it.at_connect(self.prefix()))?;
        // What the server says of itself comes first: a sentinel has no EVALSHA either.
        let info = self.check_server(connector, &info, &missing)?;
        has_evalsha.map_err(|it| it.at_connect(self.prefix()))?;
        Ok(Connected {
            connection,
            info,
            events,
            moves,
        })
    }

    fn check_server(
        &self,
        connector: &dyn Connector,
        info: &str,
        missing: &str,
    ) -> Result<ServerInfo, BackendError> {
        let server = ServerInfo::parse(info, self.mode)?;
        // A node of a cluster redirects calls if it is a replica.
        if self.mode == ServerMode::Standalone && server.role.as_deref() == Some("slave") {
            return Err(BackendError::unavailable(
                "the server is a replica, which may be behind; locks need the primary",
            ));
        }
        // It can't serve locks yet, and reports some settings as they will not be.
        if server.is_loading {
            return Err(BackendError::unavailable("the server is loading its data"));
        }
        let address = connector.address();
        self.checks
            .report(address.as_deref(), checks::judge(info, missing))?;
        // No reply has the clock of a server that doesn't name its own.
        let clock = server.clock.unwrap_or(UNKNOWN);
        if self.checks.reached(clock, address.clone()) {
            self.report_connected(connector.library(), &server.version, address.as_deref());
        }
        Ok(server)
    }

    fn report_connected(&self, library: &str, version: &str, address: Option<&str>) {
        let topology = match self.mode {
            ServerMode::Cluster => "cluster",
            ServerMode::Standalone if self.sentinels.is_some() => "sentinel",
            ServerMode::Standalone => "standalone",
        };
        tracing::event!(
            name: "connected",
            target: "leasehold",
            tracing::Level::INFO,
            backend = library,
            topology,
            server = version,
            address,
            "connected"
        );
    }

    /// What is left of the time limit of a call that began then.
    pub(crate) fn left_of_call(&self, began: Moment) -> Duration {
        let took = self.now().saturating_since(began);
        self.options.call_timeout.saturating_sub(took)
    }

    /// How long an answer may take before its connection is suspect.
    pub(crate) fn silence(&self) -> Duration {
        self.options.call_timeout / SILENCE_PARTS
    }

    pub(crate) fn moves(&self) -> u64 {
        *self.moved.borrow()
    }

    pub(crate) fn move_on(&self) {
        self.moved.send_modify(|moves| *moves += 1);
    }

    /// Makes all connections leave a server that has become a replica: at once, or with Sentinel when a new
    /// connection reaches another server.
    pub(crate) fn leave_replica(&self) {
        if self.sentinels.is_none() {
            self.move_on();
        }
    }

    pub(crate) fn with_address(&self, error: BackendError) -> BackendError {
        let target = match &self.sentinels {
            Some(sentinels) => Some(sentinels.to_string()),
            None => self.connector.address(),
        };
        match target {
            Some(target) => error.with_context(format_args!("cannot connect to {target}")),
            None => error,
        }
    }
}

/// The addresses of the server, or `None` once if its library finds the server.
pub(super) async fn addresses(
    connector: &dyn Connector,
) -> Result<Vec<Option<SocketAddr>>, Failure> {
    let Some((host, port)) = connector.host() else {
        return Ok(vec![None]);
    };
    let found = lookup_host((host.as_str(), port)).await;
    let found = found.map_err(|error| Failure::new(FailureKind::Refused, error.to_string()))?;
    Ok(found.map(Some).collect())
}

/// A new connection to a server that was checked.
pub(crate) struct Connected {
    pub(crate) connection: Arc<dyn Connection>,
    pub(crate) info: ServerInfo,
    /// None come unless it listens.
    pub(crate) events: UnboundedReceiver<ConnectionEvent>,
    /// The number of moves to another server before it was opened.
    pub(crate) moves: u64,
}

/// The error if the task that connects did not finish. If it was cancelled, the backend's runtime
/// has shut down.
pub(super) fn not_run(ended: &JoinError) -> BackendError {
    if ended.is_cancelled() {
        BackendError::Closed
    } else {
        BackendError::unavailable("the task that connects panicked")
    }
}

pub(crate) fn no_answer(limit: Duration) -> BackendError {
    BackendError::unavailable(format!("no answer within {}", Rounded(limit)))
}

pub(super) fn no_connection(limit: Duration) -> BackendError {
    BackendError::unavailable(format!("no connection within {}", Rounded(limit)))
}

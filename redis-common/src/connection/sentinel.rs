//! Finds the primary through sentinels.
//!
//! Every new connection asks all sentinels at the same time. It connects to each address that one
//! of them names, and uses the first server that says that it is a primary. So a sentinel that is
//! down, silent or behind the others costs no time while another one answers. A replica is never
//! used.

use std::error::Error;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_api::{BackendError, BoxFuture};

use super::connector::{Connection, Connector};
use super::failure::{ConnectError, Failure};
use super::managed::{Connected, Shared};
use super::server::field;
use super::url::{Address, Sentinels, ServerUrl};

/// Asking the sentinels may take this part of the time for connecting. The rest is for the server.
const ASK_PARTS: u32 = 2;

/// The sentinels of a URL.
pub(crate) struct SentinelSource<C> {
    service: String,
    sentinels: Vec<Sentinel<C>>,
    /// How to connect to a server, except for its address.
    server: ServerUrl,
    /// The address of the primary that was reached last.
    primary: Mutex<Option<Address>>,
}

struct Sentinel<C> {
    address: Address,
    connector: C,
}

/// A step of opening a connection.
enum Step<C: Connector> {
    Named(Result<Address, BackendError>),
    Opened(Result<Connected<C::Connection>, BackendError>),
}

impl<C: Connector> SentinelSource<C> {
    /// Creates a source for the sentinels of `url`. `connector` is one for `url`.
    ///
    /// # Errors
    /// [`ConnectError::Invalid`] if the client library can't use an address.
    pub(crate) fn new(
        connector: &C,
        url: &ServerUrl,
        sentinels: &Sentinels,
    ) -> Result<Self, ConnectError> {
        let server = ServerUrl {
            sentinels: None,
            ..url.clone()
        };
        let sentinel = |address: &Address| {
            let url = ServerUrl {
                address: address.clone(),
                user: sentinels.user.clone(),
                password: sentinels.password.clone(),
                database: 0,
                sentinels: None,
            };
            Ok(Sentinel {
                address: address.clone(),
                connector: connector.at(&url)?,
            })
        };
        let all: Result<_, ConnectError> = sentinels.addresses.iter().map(sentinel).collect();
        Ok(Self {
            service: sentinels.service.clone(),
            sentinels: all?,
            server,
            primary: Mutex::default(),
        })
    }

    /// Opens a connection to the primary. `shared` limits its time.
    pub(crate) async fn open(
        &self,
        shared: &Shared<C>,
        listens: bool,
    ) -> Result<Connected<C::Connection>, BackendError> {
        let mut steps: FuturesUnordered<BoxFuture<'_, Step<C>>> = FuturesUnordered::new();
        for sentinel in &self.sentinels {
            steps.push(Box::pin(async {
                Step::Named(self.ask(shared, sentinel).await)
            }));
        }
        let (mut named, mut no_name, mut no_primary) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(step) = steps.next().await {
            match step {
                Step::Named(Ok(address)) if !named.contains(&address) => {
                    named.push(address.clone());
                    steps.push(Box::pin(async move {
                        Step::Opened(self.open_at(shared, &address, listens).await)
                    }));
                }
                Step::Named(Ok(_)) => {}
                Step::Named(Err(error)) => no_name.push(error),
                Step::Opened(Ok(connected)) => return Ok(connected),
                Step::Opened(Err(error)) => no_primary.push(error),
            }
        }
        Err(if no_primary.is_empty() {
            summary(no_name)
        } else {
            summary(no_primary)
        })
    }

    /// Asks a sentinel for the address of the primary.
    async fn ask(
        &self,
        shared: &Shared<C>,
        sentinel: &Sentinel<C>,
    ) -> Result<Address, BackendError> {
        let limit = shared.connect_limit() / ASK_PARTS;
        let asking = async {
            let connection = sentinel.connector.open(&shared.options, None).await?;
            connection.primary_of(&self.service).await
        };
        let answer = match shared.within(limit, asking).await {
            Some(Ok(Some(address))) => Ok(address),
            Some(Ok(None)) => Err(BackendError::rejected(format!(
                "it knows no service {:?}; check sentinelServiceName",
                self.service
            ))),
            Some(Err(failure)) => Err(refused(failure, &shared.options.key_prefix)),
            None => Err(BackendError::unavailable(format!(
                "no answer within {limit:.1?}"
            ))),
        };
        match answer {
            Ok((host, port)) => Ok(Address::Tcp {
                host,
                port,
                tls: self.server.uses_tls(),
            }),
            Err(error) => Err(error.with_context(format_args!("sentinel {}", sentinel.address))),
        }
    }

    /// Connects to a server and checks that it is a primary.
    async fn open_at(
        &self,
        shared: &Shared<C>,
        address: &Address,
        listens: bool,
    ) -> Result<Connected<C::Connection>, BackendError> {
        let url = ServerUrl {
            address: address.clone(),
            ..self.server.clone()
        };
        let prefix = &shared.options.key_prefix;
        let opening = async {
            let connector = self.connector_at(&url)?;
            let mut connected = shared.open_with(&connector, listens).await?;
            let replication = connected.connection.info("replication").await;
            let replication = replication.map_err(|failure| failure.at_connect(prefix))?;
            let role = field(&replication, "role").unwrap_or_default();
            if role != "master" {
                let reason = format!("it says that it is a {role}, not the primary");
                return Err(BackendError::unavailable(reason));
            }
            connected.moves = self.reached(shared, address);
            Ok(connected)
        };
        let opened: Result<_, BackendError> = opening.await;
        opened.map_err(|error| {
            error.with_context(format_args!("primary {address}, named by a sentinel"))
        })
    }

    fn connector_at(&self, url: &ServerUrl) -> Result<C, BackendError> {
        let connector = self.sentinels[0].connector.at(url);
        connector.map_err(|error| BackendError::rejected(error.to_string()))
    }

    /// Records that a connection has reached the primary at `address`. If the connections so far
    /// lead to another server, they are to follow. Returns the number of moves so far.
    fn reached(&self, shared: &Shared<C>, address: &Address) -> u64 {
        let mut primary = self.primary.lock().unwrap_or_else(PoisonError::into_inner);
        let before = primary.replace(address.clone());
        if let Some(before) = before.filter(|before| before != address) {
            tracing::event!(
                name: "primary changed",
                target: "leasehold",
                tracing::Level::WARN,
                from = %before,
                to = %address,
                "primary changed"
            );
            shared.move_on();
        }
        shared.moves()
    }
}

/// Shows the service and the sentinels.
impl<C> fmt::Display for SentinelSource<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self.sentinels.iter().map(|it| it.address.to_string());
        let addresses = addresses.collect::<Vec<_>>().join(", ");
        write!(f, "{:?} through the sentinels {addresses}", self.service)
    }
}

/// The error for a failed exchange with a sentinel.
fn refused(failure: Failure, prefix: &str) -> BackendError {
    let text = failure.to_string();
    if text.contains("unknown command") {
        return BackendError::rejected(
            "it is not a sentinel; write redis://, or the port of a sentinel",
        );
    }
    let error = failure.at_connect(prefix);
    if text.contains("NOAUTH") || text.contains("WRONGPASS") {
        return error.with_context("check sentinelUsername and sentinelPassword");
    }
    error
}

/// One error for several. It is permanent if all of them are: a sentinel that was just set up knows
/// no service yet, while the others are only out of reach.
fn summary(mut errors: Vec<BackendError>) -> BackendError {
    if errors.len() == 1 || errors.iter().all(|error| !error.is_transient()) {
        return errors.swap_remove(0);
    }
    let reasons: Vec<String> = errors.iter().map(reason).collect();
    BackendError::unavailable(reasons.join("; "))
}

fn reason(error: &BackendError) -> String {
    let reason = match error {
        BackendError::Unavailable { reason, .. }
        | BackendError::OutcomeUnknown { reason, .. }
        | BackendError::Rejected { reason, .. } => reason.clone(),
        other => other.to_string(),
    };
    match error.source() {
        Some(source) => format!("{reason}: {source}"),
        None => reason,
    }
}

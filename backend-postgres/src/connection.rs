//! Connections: made on one runtime, checked, and replaced.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{self, BoxFuture, Either, join, select, try_join, try_join5};
use leasehold_api::{BackendError, ClockId, ConnectPace, Moment, Runtime, TokioRuntime};
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinError;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Row, Statement, ToStatement};

use crate::connector::{self, Connector};
use crate::error::{During, classify, ends_connection};
use crate::hosts;
use crate::options::Options;

/// A call that was given up after this time casts doubt on its connection, if the server is near.
const DOUBT_AFTER: Duration = Duration::from_millis(100);

/// The settings of a connection that the statements rely on.
///
/// The statements of all tasks share the connection. The lock timeout keeps one that waits for a row, which
/// another program has locked, from holding up the others. A write that waits after it has compared the
/// deadline is given up soon enough, too. A commit that a crash of the server may lose is no lock, so
/// `synchronous_commit` is never off.
const SETTINGS: &str = "SET default_transaction_isolation = 'read committed';
    SET statement_timeout = '5s'; SET lock_timeout = '250ms';
    SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit')
        WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)";

const IDENTITY: &str = "SELECT pg_is_in_recovery(),
    (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, current_setting('server_version')";

/// Reads the clock after the snapshot of the statement was taken, and so not before the row.
const READ: &str =
    "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, version, state
    FROM (VALUES (1)) AS one LEFT JOIN leasehold.locks ON key = $1";

/// Creates a row if the time of the step has come and the deadline has not, and reads the clock.
const INSERT: &str =
    "INSERT INTO leasehold.locks (key, version, state, keep_until) SELECT $1, $2, $3, $4
    WHERE (extract(epoch FROM clock_timestamp()) * 1000000)::bigint >= $5
    AND (extract(epoch FROM clock_timestamp()) * 1000000)::bigint < $6
    ON CONFLICT (key) DO NOTHING
    RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// Replaces a row on the same conditions. Most writes have no messages, and this costs the server 0.6 of
/// `UPDATE_AND_NOTIFY`.
const UPDATE: &str = "UPDATE leasehold.locks SET version = $2, state = $3, keep_until = $4
        WHERE key = $1 AND version = $7
        AND (extract(epoch FROM clock_timestamp()) * 1000000)::bigint >= $5
        AND (extract(epoch FROM clock_timestamp()) * 1000000)::bigint < $6
        RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// Replaces a row if these listeners hold their advisory locks, as [`REACH`] tells, and sends the messages. Returns
/// the clock if it has written, and how many of them don't listen.
const UPDATE_AND_NOTIFY: &str = "WITH silent AS (
        SELECT count(*) AS number FROM unnest($10::bigint[]) AS lock
        WHERE pg_try_advisory_xact_lock(lock)),
    written AS (
        UPDATE leasehold.locks SET version = $2, state = $3, keep_until = $4
        WHERE key = $1 AND version = $7
        AND (extract(epoch FROM clock_timestamp()) * 1000000)::bigint >= $5
        AND (extract(epoch FROM clock_timestamp()) * 1000000)::bigint < $6
        AND (SELECT number FROM silent) = 0
        RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS at)
    SELECT at, number, (
        SELECT count(pg_notify(channel, payload)) FROM unnest($8::text[], $9::text[])
        AS message (channel, payload) WHERE at IS NOT NULL)
    FROM silent LEFT JOIN written ON true";

/// Tells which listeners hold their advisory locks. A lock that can be taken has no listener. To look for
/// them in `pg_locks` takes the server 0.2 ms, and copies the locks of all its sessions. Two clients that ask
/// at the same instant about a listener that is gone may keep each other from seeing it. A grant to it lasts until
/// its offer ends.
const REACH: &str = "SELECT coalesce(
        array_agg(NOT pg_try_advisory_xact_lock(number) ORDER BY place), ARRAY[]::boolean[])
    FROM unnest($1::bigint[]) WITH ORDINALITY AS lock (number, place)";

/// What all connections of a backend share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) connector: Connector,
    pub(crate) options: Options,
    pub(crate) runtime: TokioRuntime,
    pub(crate) closed: tokio::sync::watch::Sender<bool>,
    pub(crate) newest: Newest,
    /// When this client may connect: for commands, renewals and subscriptions.
    pub(crate) pace: Arc<ConnectPace>,
}

/// Which server the newest connection has reached.
#[derive(Default)]
pub(crate) struct Newest {
    attempts: AtomicU64,
    /// The latest attempt to connect that has reached a server, and its clock.
    reached: Mutex<(u64, Option<ClockId>)>,
    /// The clock of the server that an event has named last.
    told: AtomicU64,
}

impl Newest {
    /// The number of an attempt that begins now.
    fn begin(&self) -> u64 {
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
        connector::address(&self.config)
    }

    /// Awaits an answer of the server within the connect timeout. `what` is its name in the error.
    pub(crate) async fn in_time<T>(
        &self,
        what: &str,
        answer: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let limit = self.options.connect_timeout;
        let answer = self.runtime.timeout(limit, answer).await;
        answer.unwrap_or_else(|| {
            let reason = format!("{}: no {what} in time", self.address());
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

    /// Makes a connection within the connect timeout, or says at once why that has just failed.
    async fn paced<T>(
        &self,
        making: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let (limit, making) = (
            self.options.connect_timeout,
            self.in_time("connection", making),
        );
        self.pace.connect(&self.runtime, limit, making).await
    }

    /// Opens a connection, sets it up, and reads the id of the server's clock, within the connect timeout.
    pub(crate) async fn open(
        &self,
        handle: &Handle,
        payloads: Option<UnboundedSender<String>>,
    ) -> Result<(Client, ClockId), BackendError> {
        let opening = async {
            let (client, attempt) = self.connect(handle, payloads).await?;
            let clock = self.set_up(&client, attempt).await?;
            Ok((client, clock))
        };
        self.paced(opening).await
    }

    /// Opens a connection without any settings. Returns the number of the attempt too, for
    /// [`set_up`](Self::set_up).
    pub(crate) async fn connect(
        &self,
        handle: &Handle,
        payloads: Option<UnboundedSender<String>>,
    ) -> Result<(Client, u64), BackendError> {
        if self.is_closed() {
            return Err(BackendError::Closed);
        }
        let attempt = self.newest.begin();
        let (connector, config) = (Arc::clone(&self.connector), self.config.clone());
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

    /// Sets a new connection up. Returns the id of the server's clock.
    async fn set_up(&self, client: &Client, attempt: u64) -> Result<ClockId, BackendError> {
        // Both are sent at once, to save a round trip.
        let settings = client.batch_execute(SETTINGS);
        let identity = async {
            let identity = client.query_one(IDENTITY, &[]).await?;
            Ok((
                identity.try_get(0)?,
                identity.try_get(1)?,
                identity.try_get(2)?,
            ))
        };
        let ((), (standby, started, version)): ((), (bool, i64, String)) =
            try_join(settings, identity)
                .await
                .map_err(|error| classify(error, During::Connect(&self.address())))?;
        if standby {
            return Err(BackendError::unavailable("the server is a standby"));
        }
        let clock = ClockId::new(started.cast_unsigned());
        match self.newest.reach(attempt, clock) {
            true => {
                self.report_connected(clock, &version);
                Ok(clock)
            }
            false => Err(BackendError::unavailable(
                "a connection that began later has reached another server",
            )),
        }
    }
}

impl Shared {
    /// Reports a server once, not each connection to it.
    fn report_connected(&self, clock: ClockId, version: &str) {
        if self.newest.told.swap(clock.get(), Ordering::Relaxed) != clock.get() {
            tracing::event!(
                name: "connected",
                target: "leasehold",
                tracing::Level::INFO,
                backend = "postgres",
                server = %format_args!("PostgreSQL {version}"),
                address = self.address(),
                "connected"
            );
        }
    }
}

/// An open connection for commands. The server ends it when the value is dropped.
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) clock: ClockId,
    pub(crate) statements: Statements,
    runtime: TokioRuntime,
    pace: Arc<ConnectPace>,
    opened: Moment,
    /// A call that was given up after this time casts doubt on the connection.
    doubt_after: Duration,
    doubtful: AtomicBool,
}

pub(crate) struct Statements {
    pub(crate) read: Statement,
    pub(crate) insert: Statement,
    pub(crate) update: Statement,
    pub(crate) update_and_notify: Statement,
    pub(crate) reach: Statement,
}

impl Connection {
    /// Opens a connection within the connect timeout. Its task runs on `handle`.
    ///
    /// The future is boxed here, so that crates which await it through this one don't compile it again.
    #[inline(never)]
    pub(crate) fn open<'a>(
        shared: &'a Shared,
        handle: &'a Handle,
    ) -> BoxFuture<'a, Result<Self, BackendError>> {
        Box::pin(async move {
            let opening = async {
                let (client, attempt) = shared.connect(handle, None).await?;
                Self::prepare(client, attempt, shared).await
            };
            shared.paced(opening).await
        })
    }

    /// Makes a connection of a new client.
    pub(crate) async fn prepare(
        client: Client,
        attempt: u64,
        shared: &Shared,
    ) -> Result<Self, BackendError> {
        let (address, began) = (shared.address(), shared.runtime.now());
        let statements = async {
            let statements = try_join5(
                client.prepare(READ),
                client.prepare(INSERT),
                client.prepare(UPDATE),
                client.prepare(UPDATE_AND_NOTIFY),
                client.prepare(REACH),
            );
            let statements = statements.await;
            statements.map_err(|error| classify(error, During::Connect(&address)))
        };
        let (clock, statements) = join(shared.set_up(&client, attempt), statements).await;
        // Whether it is a standby comes first: one may not have the schema yet.
        let clock = clock?;
        let (read, insert, update, update_and_notify, reach) = statements?;
        // Two round trips. A call that got the new connection too late for one must not end it, or the next
        // call would begin where this one began. A call that had enough time must.
        let took = shared.runtime.now().saturating_since(began);
        let doubt_after = took.min(shared.options.call_timeout / 2).max(DOUBT_AFTER);
        Ok(Self {
            client,
            clock,
            runtime: shared.runtime.clone(),
            pace: Arc::clone(&shared.pace),
            opened: shared.runtime.now(),
            doubt_after,
            statements: Statements {
                read,
                insert,
                update,
                update_and_notify,
                reach,
            },
            doubtful: AtomicBool::new(false),
        })
    }

    pub(crate) fn is_usable(&self) -> bool {
        !self.client.is_closed() && !self.doubtful.load(Ordering::Relaxed)
    }

    /// Runs one call. If the caller gives it up late, the connection is not used again. If the server
    /// refuses the statement, it is: other calls share it.
    pub(crate) async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, BackendError> {
        let mut watched = Watched {
            connection: self,
            began: self.runtime.now(),
            answered: false,
        };
        let result = call.await;
        watched.answered = true;
        result.map_err(|error| {
            let ends = ends_connection(&error);
            let error = classify(error, During::Statement);
            if ends {
                self.doubtful.store(true, Ordering::Relaxed);
                self.pace.ended(&self.runtime, self.opened, &error);
            }
            error
        })
    }

    /// Runs a statement that has one row.
    pub(crate) async fn query_one(
        &self,
        statement: &(impl ToStatement + ?Sized + Sync),
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, BackendError> {
        self.call(self.client.query_one(statement, parameters))
            .await
    }
}

/// The error if a task has not finished. If it was cancelled, its runtime has ended.
fn not_run(ended: &JoinError) -> BackendError {
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

/// A call in progress.
struct Watched<'a> {
    connection: &'a Connection,
    began: Moment,
    answered: bool,
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        let connection = self.connection;
        let took = connection.runtime.now().saturating_since(self.began);
        if !self.answered && took >= connection.doubt_after {
            connection.doubtful.store(true, Ordering::Relaxed);
        }
    }
}

/// A connection that is opened when needed, and opened again when it is lost.
pub(crate) struct ManagedConnection {
    pub(crate) shared: Arc<Shared>,
    pub(crate) handle: Handle,
    current: Mutex<Current>,
}

enum Current {
    Open(Arc<Connection>),
    Opening(Opening),
    None,
}

/// One attempt to connect. All callers that need the connection wait for it.
type Opening = future::Shared<BoxFuture<'static, Result<Arc<Connection>, BackendError>>>;

impl ManagedConnection {
    /// `open` is its first connection. Without one, the first call opens it.
    pub(crate) fn new(shared: Arc<Shared>, handle: Handle, open: Option<Connection>) -> Arc<Self> {
        let current = open.map_or(Current::None, |it| Current::Open(Arc::new(it)));
        Arc::new(Self {
            shared,
            handle,
            current: Mutex::new(current),
        })
    }

    /// The open connection, or a new one.
    ///
    /// # Cancel safety
    /// If you drop the future, the attempt to connect goes on, and a later caller gets the connection.
    pub(crate) async fn get(self: &Arc<Self>) -> Result<Arc<Connection>, BackendError> {
        let opening = {
            let mut current = self.current();
            if self.shared.is_closed() {
                return Err(BackendError::Closed);
            }
            match &*current {
                Current::Open(connection)
                    if connection.is_usable() && self.shared.is_newest(connection.clock) =>
                {
                    return Ok(Arc::clone(connection));
                }
                // An attempt has no result yet, unless its task has panicked.
                Current::Opening(opening) if opening.peek().is_none() => opening.clone(),
                _ => {
                    if let Some(error) = self.shared.pace.pausing(self.shared.runtime.now()) {
                        return Err(error);
                    }
                    let opening = self.start_opening();
                    *current = Current::Opening(opening.clone());
                    opening
                }
            }
        };
        opening.await
    }

    /// Opens the connection in a task. A server may be so far away that no caller waits long enough. And
    /// a caller on a blocked runtime must not stop the attempt of the others.
    fn start_opening(self: &Arc<Self>) -> Opening {
        let this = Arc::clone(self);
        let task = self.handle.spawn(async move { this.open().await });
        let opened = task.map(|opened| opened.unwrap_or_else(|ended| Err(not_run(&ended))));
        opened.boxed().shared()
    }

    async fn open(&self) -> Result<Arc<Connection>, BackendError> {
        let opening = Connection::open(&self.shared, &self.handle);
        let opened = self.shared.until_closed(opening).await.map(Arc::new);
        let mut current = self.current();
        // `close` may have come first. Then nobody would close this connection.
        if self.shared.is_closed() {
            return Err(BackendError::Closed);
        }
        *current = match &opened {
            Ok(connection) => Current::Open(Arc::clone(connection)),
            Err(_) => Current::None,
        };
        opened
    }

    /// Drops the connection. The backend is closed already.
    pub(crate) fn close(&self) {
        *self.current() = Current::None;
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
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

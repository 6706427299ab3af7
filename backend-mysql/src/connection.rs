//! Connections, and what their errors mean.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_api::{
    BackendError, Certificates, ConnectPace, InvalidInput, Moment, Runtime, TokioRuntime, bounds,
    first_of,
};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts, OptsBuilder};
use tokio::net::lookup_host;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::tls;

/// The maximum number of connections for commands, and for renewals.
const CONNECTIONS: usize = 4;

/// What each connection begins with, whatever the administrator has set for all. With `NAMES binary`, keys and states are not
/// converted to another character set. The clock is read as a local time, and with summer time an hour comes twice. MySQL
/// counts the wait for another transaction's lock in seconds, so only MariaDB can end it before a call's default limit.
const SETUP: [&str; 2] = [
    "SET NAMES binary, sql_mode = 'STRICT_ALL_TABLES', time_zone = '+00:00', autocommit = 1, lock_wait_timeout = 1,
     innodb_lock_wait_timeout = 1 /*M! , max_statement_time = 0.5 */",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
];

/// What makes a server useless for locks. The clock is compared with the start of the statement, which is longer ago.
const PROBLEM: &str = "SELECT CASE
    WHEN NOW(6) = SYSDATE(6) THEN 'the clock stands still within a statement: start the server without --sysdate-is-now'
    WHEN @@innodb_flush_log_at_trx_commit <> 1 THEN 'a crash would lose locks: set innodb_flush_log_at_trx_commit = 1'
    WHEN @@log_bin AND @@sync_binlog <> 1 THEN 'a crash would lose locks: set sync_binlog = 1'
    WHEN @@log_bin AND @@binlog_format = 'STATEMENT' THEN 'statements can not be replicated: set binlog_format = ROW'
    END FROM (SELECT SLEEP(0.01) AS slept) AS waits WHERE slept = 0";

/// Errors of the server for a statement that it has rolled back, or has not begun. The connection goes on.
mod refusal {
    /// Another client has written the row first.
    pub(crate) const DUPLICATE: u16 = 1062;
    /// So has a node of Galera, if the row was certified there.
    pub(crate) const DEADLOCK: u16 = 1213;
    /// Access denied, to the server, the database, a table or a column; no such database, column or table; no TLS.
    pub(super) const REJECTED: [u16; 10] =
        [1044, 1045, 1049, 1054, 1142, 1143, 1146, 1227, 1698, 3159];
    /// The disk or the table is full, waits for locks, interrupted, out of time.
    pub(super) const TRANSIENT: [u16; 5] = [1021, 1114, 1205, 1317, 1969];
    /// Read-only, or a node of Galera without a quorum. Another server may have taken over.
    pub(super) const ELSEWHERE: [u16; 3] = [1290, 1047, 1836];
}
pub(crate) use refusal::{DEADLOCK, DUPLICATE};

/// Connections of one kind. A connection whose call was given up is closed.
pub(crate) struct Connections {
    opts: Opts,
    /// The tokio runtime that they work on.
    home: Handle,
    /// That of the client: for commands and for renewals.
    pace: Arc<ConnectPace>,
    idle: Mutex<Idle>,
    room: Semaphore,
}

#[derive(Default)]
struct Idle {
    /// The one that was used last is at the end.
    conns: Vec<Conn>,
    /// When the newest connection was opened.
    opened: Moment,
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The options contain a password.
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}

/// A connection that is in use.
pub(crate) struct Lent<'a> {
    pub(crate) conn: Conn,
    /// Whether the server may have closed it since its last answer.
    pub(crate) is_used: bool,
    of: &'a Connections,
    _room: SemaphorePermit<'a>,
}

impl Connections {
    pub(crate) fn new(opts: Opts, home: Handle, pace: Arc<ConnectPace>) -> Self {
        Self {
            opts,
            home,
            pace,
            idle: Mutex::default(),
            room: Semaphore::new(CONNECTIONS),
        }
    }

    /// Takes a connection, or opens one. Nothing has been sent if it fails.
    pub(crate) async fn lend(&self) -> Result<Lent<'_>, BackendError> {
        let room = self.room.acquire().await;
        let room = room.map_err(|_| BackendError::Closed)?;
        let idle = self.idle().conns.pop();
        let is_used = idle.is_some();
        let conn = match idle {
            Some(conn) => conn,
            None => self.open().await?,
        };
        Ok(Lent {
            conn,
            is_used,
            of: self,
            _room: room,
        })
    }

    /// Opens a connection to a server that keeps what it acknowledges: after a failover, it is another one.
    async fn open(&self) -> Result<Conn, BackendError> {
        // Other options keep the sessions of TLS: one that is resumed may outlive the certificate.
        let ssl = self.opts.ssl_opts().cloned();
        let opts = OptsBuilder::from_opts(self.opts.clone()).ssl_opts(ssl);
        let (opts, runtime, pace) = (opts.into(), self.runtime(), Arc::clone(&self.pace));
        let opening = async move {
            let limit = bounds::CONNECT_TIMEOUT;
            let late = || Err(BackendError::unavailable("no connection in time"));
            let opening = async {
                let opening = runtime.timeout(limit, reached(opts, &runtime));
                opening.await.unwrap_or_else(late)
            };
            pace.connect(&runtime, limit, opening).await
        };
        let opened = self.home.spawn(opening).await;
        let opened = opened.map_err(|_| BackendError::Closed)??;
        self.idle().opened = self.runtime().now();
        Ok(opened)
    }

    /// Checks the server and the table.
    pub(crate) async fn check(&self) -> Result<(), BackendError> {
        let mut lent = self.lend().await?;
        let table = "SELECT prefix, name, version, state, keep_until FROM leasehold_locks LIMIT 0";
        let checked = lent.conn.query_drop(table).await;
        lent.answered(checked).map_err(not_written)
    }

    /// Drops the idle connections: one was lost, and the others probably too, or the server is read-only, and the next
    /// connection may lead to the one that took over.
    pub(crate) fn leave(&self) {
        let mut idle = self.idle();
        idle.conns.clear();
        let error = BackendError::unavailable("the connection was lost");
        self.pace.ended(&self.runtime(), idle.opened, &error);
    }

    pub(crate) fn close(&self) {
        self.room.close();
        self.idle().conns.clear();
    }

    fn runtime(&self) -> TokioRuntime {
        TokioRuntime::new(self.home.clone())
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a connection to one of the addresses of the server's name.
async fn reached(opts: Opts, runtime: &TokioRuntime) -> Result<Conn, BackendError> {
    if opts.socket().is_some() {
        return checked(opts).await;
    }
    let unknown =
        |error| BackendError::unavailable("the server's name is unknown").with_source(error);
    let found = lookup_host((opts.ip_or_hostname(), opts.tcp_port())).await;
    let attempts = found.map_err(unknown)?.map(|address| {
        let opts = OptsBuilder::from_opts(opts.clone());
        checked(opts.resolved_ips(Some([address.ip()])).into())
    });
    first_of(runtime, bounds::CONNECT_TIMEOUT, attempts).await
}

/// Opens a connection, and checks the settings of its server.
async fn checked(opts: Opts) -> Result<Conn, BackendError> {
    let mut conn = Conn::new(opts).await.map_err(not_written)?;
    let problem = conn.query_first(PROBLEM).await.map_err(not_written)?;
    match problem.unwrap_or_else(|| Some("it is silent".to_owned())) {
        Some(problem) => Err(BackendError::rejected(problem)),
        None => Ok(conn),
    }
}

impl Lent<'_> {
    /// Keeps the connection after a complete answer. If it was lost, or leads to the wrong server, drops the idle ones: they
    /// probably do too.
    pub(crate) fn answered<T>(self, answer: Result<T, Error>) -> Result<T, Error> {
        let stays = |error: &Error| is_refusal(error) && !has_code(error, &refusal::ELSEWHERE);
        let goes_on = answer.as_ref().map_or_else(stays, |_| true);
        if goes_on {
            // Before or after `close` empties it.
            let mut idle = self.of.idle();
            if !self.of.room.is_closed() {
                idle.conns.push(self.conn);
            }
        } else {
            self.of.leave();
        }
        answer
    }
}

/// The options of a URL. `mariadb:` means the same as `mysql:`.
pub(crate) fn opts_of(url: &str, certificates: &Certificates) -> Result<Opts, InvalidInput> {
    // The library's error may quote the password.
    let form = "it is not mysql://user:password@host:port/database or …?require_ssl=true";
    let invalid = |()| InvalidInput::setting("URL", form);
    let rest = url.strip_prefix("mariadb:").or(url.strip_prefix("mysql:"));
    let url = format!("mysql:{}", rest.ok_or(()).map_err(invalid)?);
    let opts = Opts::from_url(&url).map_err(|_| ()).map_err(invalid)?;
    let ssl = tls::required(&url, &opts, certificates)?;
    if opts.db_name().is_none_or(str::is_empty) {
        return Err(InvalidInput::setting("URL", "it names no database"));
    }
    // The library keeps the brackets of an IPv6 address.
    let host = opts.ip_or_hostname().trim_matches(['[', ']']).to_owned();
    let builder = OptsBuilder::from_opts(opts).setup(SETUP.to_vec());
    let builder = builder.ip_or_hostname(host).prefer_socket(false);
    Ok(builder.ssl_opts(ssl).into())
}

/// Whether the server has refused a statement, and the connection goes on.
pub(crate) fn is_refusal(error: &Error) -> bool {
    let codes = [
        &[DUPLICATE, DEADLOCK][..],
        &refusal::REJECTED,
        &refusal::TRANSIENT,
        &refusal::ELSEWHERE,
    ];
    has_code(error, &codes.concat())
}

fn has_code(error: &Error, codes: &[u16]) -> bool {
    matches!(error, Error::Server(refused) if codes.contains(&refused.code))
}

/// An error of a call that wrote nothing.
pub(crate) fn not_written(error: Error) -> BackendError {
    if let Some(problem) = tls::problem(&error) {
        return BackendError::rejected(problem).with_source(error);
    }
    let problem = match &error {
        Error::Server(_) if has_code(&error, &refusal::REJECTED) => {
            let problem = "the server refuses this client, requires TLS (`require_ssl=true`) or its certificate, or lacks the \
                           schema (`leasehold schema mysql`, or `leasehold::mysql::SCHEMA`)";
            return BackendError::rejected(problem).with_source(error);
        }
        Error::Server(_) => "the server could not execute it",
        _ => "the server can't be reached",
    };
    BackendError::unavailable(problem).with_source(error)
}

/// An error of a write. After a loss of the connection, and an error that isn't known, perhaps it was applied.
pub(crate) fn perhaps_written(error: Error) -> BackendError {
    match is_refusal(&error) {
        true => not_written(error),
        false => BackendError::outcome_unknown("the connection failed").with_source(error),
    }
}

//! Connections: made on one runtime, checked, and replaced.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{
    self, BoxFuture, Either, OptionFuture, join, join4, select, try_join_all,
};
use leasehold_api::{BackendError, ClockId, Moment, Runtime};
use tokio::runtime::Handle;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, Row, SimpleQueryMessage, Statement};

use crate::error::{During, classify, ends_connection};
use crate::shared::{Shared, not_run, primary, set_up};
use crate::statements::{Arguments, BEGIN, PREPARED, Query};

/// No row has this key.
const NO_KEY: &[u8] = &[];

/// A call that was given up after this time casts doubt on its connection, if the server is near.
const DOUBT_AFTER: Duration = Duration::from_millis(100);

/// How long a pooler may lead to servers that don't write. Others behind it may, so one answer is not enough.
const READ_ONLY_FOR: Duration = Duration::from_secs(1);

/// An open connection for commands. The server ends it when the value is dropped.
pub(crate) struct Connection {
    client: Client,
    mode: Mode,
    pub(crate) shared: Arc<Shared>,
    opened: Moment,
    /// A call that was given up after this time casts doubt on the connection.
    doubt_after: Duration,
    doubtful: AtomicBool,
}

/// How a connection executes statements.
enum Mode {
    /// In a session of the server with this clock, which has [`PREPARED`] these statements.
    Session(ClockId, Vec<Statement>),
    /// Through a pooler, which may execute each transaction in another session, and on another server.
    Transactions {
        /// Keeps the statements of a transaction together while they are sent.
        turn: Mutex<()>,
        read_only: ReadOnly,
    },
}

/// When a standby or a read-only server has first answered since the last write.
#[derive(Default)]
struct ReadOnly(Mutex<Option<Moment>>);

impl ReadOnly {
    fn note(&self, now: Moment) {
        self.since().get_or_insert(now);
    }

    fn has_written(&self) {
        *self.since() = None;
    }

    fn is_usable(&self, now: Moment) -> bool {
        let since = *self.since();
        since.is_none_or(|since| now.saturating_since(since) < READ_ONLY_FOR)
    }

    fn since(&self) -> MutexGuard<'_, Option<Moment>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A statement and its arguments.
pub(crate) type Bound<'a> = (Query, &'a Arguments<'a>);

/// The answers of a transaction: of the server, and the rows of each statement.
type Transacted = (Vec<SimpleQueryMessage>, Vec<Row>, Option<Vec<Row>>);

/// Why a call has failed.
pub(crate) struct Failed {
    error: Error,
    during: During<'static>,
}

impl Failed {
    /// The code of the error of a statement, which was rolled back.
    pub(crate) fn code(&self) -> Option<&SqlState> {
        self.error
            .code()
            .filter(|_| self.during == During::Statement)
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        let during = During::Statement;
        Self { error, during }
    }
}

impl Connection {
    /// Opens a connection within the connect timeout. Its task runs on `handle`.
    ///
    /// The future is boxed here, so that crates which await it through this one don't compile it again.
    #[inline(never)]
    pub(crate) fn open<'a>(
        shared: &'a Arc<Shared>,
        handle: &'a Handle,
    ) -> BoxFuture<'a, Result<Self, BackendError>> {
        Box::pin(async move {
            let opening = async {
                let connecting = shared.connect(&shared.endpoint, handle, None);
                let (client, attempt) = connecting.await?;
                Self::prepare(client, attempt, shared).await
            };
            shared.paced(&shared.endpoint, opening).await
        })
    }

    /// Makes a connection of a new client.
    pub(crate) async fn prepare(
        client: Client,
        attempt: u64,
        shared: &Arc<Shared>,
    ) -> Result<Self, BackendError> {
        let began = shared.runtime.now();
        let mode = match shared.is_pooled() {
            true => Mode::Transactions {
                turn: Mutex::default(),
                read_only: ReadOnly::default(),
            },
            false => prepare_session(&client, attempt, shared).await?,
        };
        let mut connection = Self {
            client,
            mode,
            shared: Arc::clone(shared),
            opened: began,
            doubt_after: DOUBT_AFTER,
            doubtful: AtomicBool::new(false),
        };
        if shared.is_pooled() {
            // Without the schema or the rights, it fails here, as a session does.
            let reading = connection.execute((Query::Read, &[&NO_KEY])).await;
            let failed = |it: Failed| classify(it.error, During::Connect(&shared.address()));
            reading.map_err(failed)?.1?;
        }
        // It took a round trip or more. A call that got the new connection too late for one must not end it, or the
        // next call would begin where this one began. A call that had enough time must.
        let opened = shared.runtime.now();
        let took = opened.saturating_since(began);
        let doubt_after = took.min(shared.options.call_timeout / 2).max(DOUBT_AFTER);
        (connection.opened, connection.doubt_after) = (opened, doubt_after);
        Ok(connection)
    }

    fn is_usable(&self) -> bool {
        let leads_on = match &self.mode {
            Mode::Session(clock, _) => self.shared.is_newest(*clock),
            Mode::Transactions { read_only, .. } => read_only.is_usable(self.shared.runtime.now()),
        };
        leads_on && !self.client.is_closed() && !self.doubtful.load(Ordering::Relaxed)
    }

    /// Executes a statement that reads. Returns its rows, and the clock of the server that has executed it.
    pub(crate) async fn query(
        &self,
        bound: Bound<'_>,
    ) -> Result<(Vec<Row>, ClockId), BackendError> {
        let (rows, clock) = self.call(self.execute(bound)).await?;
        Ok((rows, clock?))
    }

    async fn execute(
        &self,
        bound: Bound<'_>,
    ) -> Result<(Vec<Row>, Result<ClockId, BackendError>), Failed> {
        match &self.mode {
            Mode::Session(clock, prepared) => {
                let rows = in_session(&self.client, prepared, bound).await?;
                Ok((rows, Ok(*clock)))
            }
            Mode::Transactions { turn, read_only } => {
                let attempt = self.shared.newest.begin();
                let transacted = in_transaction(&self.client, turn, bound, None).await?;
                let (server, rows, _) = transacted;
                let reached = self.shared.reached(attempt, &server);
                if reached.is_err() {
                    read_only.note(self.shared.runtime.now());
                }
                Ok((rows, reached))
            }
        }
    }

    /// Sends a write and, without waiting for its answer, a read. Returns both answers, that of the read with the clock of
    /// its server, and only if nothing was written and the read has succeeded.
    pub(crate) async fn write(
        &self,
        write: Bound<'_>,
        read: Option<Bound<'_>>,
    ) -> Result<(Option<Row>, Option<(Row, ClockId)>), Failed> {
        let first = |rows: Vec<Row>| rows.into_iter().next();
        let (clock, prepared) = match &self.mode {
            Mode::Session(clock, prepared) => (*clock, prepared),
            Mode::Transactions { turn, read_only } => {
                let transacted = in_transaction(&self.client, turn, write, read).await;
                match transacted.as_ref().map_err(Failed::code) {
                    Ok(_) => read_only.has_written(),
                    Err(Some(&SqlState::READ_ONLY_SQL_TRANSACTION)) => {
                        read_only.note(self.shared.runtime.now());
                    }
                    Err(_) => {}
                }
                let (server, written, found) = transacted?;
                let clock = primary(&server).ok().map(|server| server.clock);
                return Ok((first(written), found.and_then(first).zip(clock)));
            }
        };
        let sent = |bound| in_session(&self.client, prepared, bound);
        let Some(read) = read else {
            return Ok((first(sent(write).await?), None));
        };
        let of_read = |found: Result<_, _>| Some((found.ok().and_then(first)?, clock));
        // A statement is sent when it is polled for the first time, and the server executes them in this order.
        match select(pin!(sent(write)), pin!(sent(read))).await {
            Either::Left((written, read)) => match first(written?) {
                Some(row) if is_applied(&row) => Ok((Some(row), None)),
                refused => Ok((refused, of_read(read.await))),
            },
            Either::Right((found, write)) => Ok((first(write.await?), of_read(found))),
        }
    }

    /// Runs one call. If the caller gives it up late, the connection is not used again. If the server
    /// refuses the statement, it is: other calls share it.
    pub(crate) async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, Failed>>,
    ) -> Result<T, BackendError> {
        let runtime = &self.shared.runtime;
        let mut watched = Watched {
            connection: self,
            began: runtime.now(),
            answered: false,
        };
        let result = call.await;
        watched.answered = true;
        result.map_err(|Failed { error, during }| {
            let ends = during == During::Begin || ends_connection(&error, self.shared.is_pooled());
            let error = classify(error, during);
            if ends {
                self.doubtful.store(true, Ordering::Relaxed);
                self.shared
                    .endpoint
                    .pace
                    .ended(runtime, self.opened, &error);
            }
            error
        })
    }
}

/// Sets a session up, and prepares its statements.
async fn prepare_session(
    client: &Client,
    attempt: u64,
    shared: &Shared,
) -> Result<Mode, BackendError> {
    let preparing = PREPARED.map(|query| client.prepare(query.text()));
    let (answers, prepared) = join(set_up(client, &shared.endpoint), try_join_all(preparing)).await;
    // Whether it is a standby comes first: one may not have the schema yet.
    let clock = shared.reached(attempt, &answers?)?;
    let failed = |error| classify(error, During::Connect(&shared.address()));
    Ok(Mode::Session(clock, prepared.map_err(failed)?))
}

/// Executes a statement in a session.
async fn in_session(
    client: &Client,
    prepared: &[Statement],
    (query, arguments): Bound<'_>,
) -> Result<Vec<Row>, Error> {
    let place = PREPARED.iter().position(|it| *it == query);
    match place.and_then(|place| prepared.get(place)) {
        Some(statement) => client.query(statement, arguments).await,
        None => {
            client
                .query_typed(query.text(), &query.typed(arguments))
                .await
        }
    }
}

/// Executes statements in one transaction, all sent at once. They have no names, which another client of the pooler may
/// have given.
async fn in_transaction(
    client: &Client,
    turn: &Mutex<()>,
    (query, arguments): Bound<'_>,
    second: Option<Bound<'_>>,
) -> Result<Transacted, Failed> {
    let arguments = query.typed(arguments);
    let second = second.map(|(query, arguments)| (query.text(), query.typed(arguments)));
    let second = second
        .as_ref()
        .map(|(text, arguments)| client.query_typed(text, arguments));
    let mut all = pin!(join4(
        client.simple_query(BEGIN),
        client.query_typed(query.text(), &arguments),
        OptionFuture::from(second),
        client.batch_execute("COMMIT"),
    ));
    // Each is sent when it is polled for the first time.
    let (begun, rows, second, committed) = poll_fn(|cx| {
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        all.as_mut().poll(cx)
    })
    .await;
    let begun = match begun {
        Ok(begun) => begun,
        Err(error) => return Err(not_begun(error, rows)),
    };
    // The transaction is rolled back unless all of them have succeeded.
    let transacted = (begun, rows?, second.transpose()?);
    committed?;
    Ok(transacted)
}

/// The failure of a transaction whose `BEGIN` has failed. Outside a transaction, the server executes the statement
/// behind it all the same, and what it writes stays.
fn not_begun(begun: Error, statement: Result<Vec<Row>, Error>) -> Failed {
    let is_refused = |it: &Error| it.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION);
    let (error, during) = match statement {
        Ok(_) => (begun, During::Begin),
        // The first error is the reason for the second one.
        Err(error) if is_refused(&error) || ends_connection(&begun, true) => {
            (begun, During::Statement)
        }
        Err(error) => (error, During::Statement),
    };
    Failed { error, during }
}

/// Whether the answer to a write contains the clock.
fn is_applied(row: &Row) -> bool {
    matches!(row.try_get::<_, Option<i64>>(0), Ok(Some(_)))
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
        let took = connection.shared.runtime.now().saturating_since(self.began);
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
                Current::Open(connection) if connection.is_usable() => {
                    return Ok(Arc::clone(connection));
                }
                // An attempt has no result yet, unless its task has panicked.
                Current::Opening(opening) if opening.peek().is_none() => opening.clone(),
                _ => {
                    if let Some(error) =
                        self.shared.endpoint.pace.pausing(self.shared.runtime.now())
                    {
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

//! A store in one SQLite file: locks for the programs of one machine, without a server.
//!
//! # Limits
//! - All programs run on one machine. Don't put the file on a network file system: SQLite's own locks
//!   don't work there, and two machines have two clocks.
//! - The clock is that of the system. If somebody steps it, leases end too early or too late.
//! - Tasks of one program pass a lock on at once. Programs don't notify each other: their waiters poll every
//!   50 ms.
//! - One program writes at a time, for all keys. Expect some thousands of commands per second, not more.
//! - After a loss of power, the last commands may be missing. Their programs are gone then, too.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use leasehold_api::{BackendError, ClockId, Key, Runtime, ServerTime, Stamp, TokioRuntime};
use leasehold::store::{Read, Row, Store, Version, Write, Written};
use rusqlite::{Connection, ErrorCode, OptionalExtension, TransactionBehavior, params};

const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS locks (
    key BLOB PRIMARY KEY,
    version INTEGER NOT NULL,
    state BLOB NOT NULL,
    keep_until INTEGER NOT NULL
) WITHOUT ROWID";

/// How long a command waits for other programs that write.
const BUSY: Duration = Duration::from_millis(800);

/// A connection to the file. Each program opens its own.
#[derive(Debug)]
pub(crate) struct SqliteStore {
    connection: Arc<Mutex<Connection>>,
    runtime: TokioRuntime,
}

impl SqliteStore {
    /// Opens the file, or creates it.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(crate) fn open(path: &Path) -> rusqlite::Result<Self> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY)?;
        // Readers don't wait for a writer then.
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        connection.execute_batch(SCHEMA)?;
        Ok(Self {
            connection: Arc::new(Mutex::new(connection)),
            runtime: TokioRuntime::current(),
        })
    }

    /// Runs `work` on a thread that may block.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, BackendError> {
        let connection = Arc::clone(&self.connection);
        let task = tokio::task::spawn_blocking(move || {
            work(&mut connection.lock().unwrap_or_else(PoisonError::into_inner))
        });
        match task.await {
            Ok(result) => result.map_err(classified),
            Err(error) => Err(BackendError::outcome_unknown("the thread ended").with_source(error)),
        }
    }
}

/// A file that is busy was not changed. After other errors, perhaps it was.
fn classified(error: rusqlite::Error) -> BackendError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy) => {
            BackendError::unavailable("other programs are writing").with_source(error)
        }
        _ => BackendError::outcome_unknown("SQLite failed").with_source(error),
    }
}

/// The system's clock. It has the same id always: a file is used on one machine.
fn now() -> Stamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let micros = since.map_or(0, |since| since.as_micros());
    Stamp {
        clock: ClockId::new(1),
        at: ServerTime::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)),
    }
}

fn row_of(connection: &Connection, key: &[u8]) -> rusqlite::Result<Option<Row>> {
    let query = "SELECT version, state FROM locks WHERE key = ?1";
    let found = connection.query_row(query, [key], |row| {
        let version = Version::new(row.get::<_, i64>(0)?.cast_unsigned());
        let bytes = row.get(1)?;
        Ok(Row { version, bytes })
    });
    found.optional()
}

#[async_trait]
impl Store for SqliteStore {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(self.runtime.clone())
    }

    async fn time(&self) -> Result<Stamp, BackendError> {
        Ok(now())
    }

    async fn read(&self, key: &Key) -> Result<Read, BackendError> {
        let key = key.as_str().as_bytes().to_vec();
        self.run(move |connection| {
            let row = row_of(connection, &key)?;
            // The clock is read after the row.
            Ok(Read { stamp: now(), row })
        })
        .await
    }

    async fn write(&self, write: Write<'_>) -> Result<Written, BackendError> {
        let key = write.key.as_str().as_bytes().to_vec();
        let (version, state) = (write.version.get().cast_signed(), write.bytes.to_vec());
        let (expected, deadline) = (write.expected, write.deadline);
        let keep_until = write.keep_until.as_micros().cast_signed();
        self.run(move |connection| {
            // From here on, no other program writes.
            let step = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let found = row_of(&step, &key)?.map(|row| row.version);
            if found != expected || now().at >= deadline {
                return Ok(Written::NotApplied);
            }
            let replace = "INSERT OR REPLACE INTO locks VALUES (?1, ?2, ?3, ?4)";
            step.execute(replace, params![key, version, state, keep_until])?;
            step.commit()?;
            Ok(Written::Applied)
        })
        .await
    }

    fn first_waiters_poll(&self) -> Duration {
        Duration::from_millis(50)
    }

    async fn remove_expired(&self) -> Result<(), BackendError> {
        let now = now().at.as_micros().cast_signed();
        self.run(move |connection| {
            connection.execute("DELETE FROM locks WHERE keep_until <= ?1", [now])?;
            Ok(())
        })
        .await
    }
}

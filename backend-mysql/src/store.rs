//! The store: one row for each key, and one statement for each write.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{
    BackendError, ClockId, Cursor, Key, List, Listed, Runtime, ServerTime, Stamp, TokioRuntime,
};
use leasehold_store::{Read, Row, Store, Version, Write, Written, page_of};
use mysql_async::prelude::{FromRow, Queryable};
use mysql_async::{Error, Params, from_row_opt, params};

use crate::connection::{
    Connections, DEADLOCK, DUPLICATE, is_refusal, not_written, perhaps_written,
};

/// The clock, in µs. `NOW` would be the start of the statement, which may have waited for a row.
macro_rules! clock {
    () => {
        "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))"
    };
}
/// What names the server, and so the clock.
macro_rules! server {
    () => {
        "CRC32(CONCAT(@@hostname, ':', @@port, ':', @@server_id))"
    };
}
/// Whether the server is read-only. It is a number, and a word from MariaDB 12 on.
macro_rules! read_only {
    () => {
        "(CAST(@@read_only AS CHAR) NOT IN ('0', 'OFF'))"
    };
}
/// Whether a write is in time, by a clock that the server reads when it has the row. An `INSERT` may wait after that, for another
/// transaction that creates the row.
macro_rules! in_time {
    () => {
        concat!(
            clock!(),
            " < :deadline AND ",
            clock!(),
            " >= :step AND NOT ",
            read_only!(),
            " AND :server = ",
            server!()
        )
    };
}
/// The row is read before the clock.
const READ: &str = concat!(
    "SELECT ",
    clock!(),
    ", ",
    server!(),
    ", ",
    read_only!(),
    ", version, state FROM (SELECT 1) AS one
    LEFT JOIN leasehold_locks ON prefix = :prefix AND name = :name"
);
/// The time of the write comes back as its id.
const UPDATE: &str = concat!(
    "UPDATE leasehold_locks SET version = :version, state = :state,
    keep_until = :keep_until + 0 * LAST_INSERT_ID(",
    clock!(),
    ") WHERE prefix = :prefix AND name = :name AND version = :expected AND ",
    in_time!()
);
const INSERT: &str = concat!(
    "INSERT INTO leasehold_locks (prefix, name, version, state, keep_until)
    SELECT :prefix, :name, :version, :state, :keep_until + 0 * LAST_INSERT_ID(",
    clock!(),
    ") FROM DUAL WHERE ",
    in_time!()
);
const LIST: &str = "SELECT name FROM leasehold_locks
    WHERE prefix = :prefix AND name >= :beginning AND name > :after ORDER BY name LIMIT :limit";
/// The index is used only with a number.
const REMOVE: &str = "DELETE FROM leasehold_locks WHERE keep_until <= ? LIMIT 200";

/// The locks of one prefix.
#[derive(Debug)]
pub(crate) struct MysqlStore {
    pub(crate) connections: Connections,
    pub(crate) runtime: TokioRuntime,
    pub(crate) prefix: Arc<str>,
}

impl MysqlStore {
    /// Executes a statement that only reads: again if the server had closed the connection.
    async fn query<T: FromRow>(
        &self,
        statement: &str,
        values: Params,
    ) -> Result<Vec<T>, BackendError> {
        let rows: Vec<mysql_async::Row> = loop {
            let mut lent = self.connections.lend().await?;
            let is_used = lent.is_used;
            let answer = lent.conn.exec(statement, &values).await;
            match lent.answered(answer) {
                Err(error) if is_used && !is_refusal(&error) => {}
                answer => break answer.map_err(not_written)?,
            }
        };
        // `exec` panics if it can't convert a value.
        let rows: Result<_, _> = rows.into_iter().map(from_row_opt).collect();
        rows.map_err(|_| BackendError::foreign_value("a table with other columns"))
    }

    async fn read_name(&self, name: &str) -> Result<Read, BackendError> {
        type Columns = (u64, u64, bool, Option<i64>, Option<Vec<u8>>);
        let values = params! { "prefix" => &*self.prefix, name };
        let found: Option<Columns> = self.query(READ, values).await?.pop();
        let unavailable = BackendError::unavailable;
        let (at, server, is_replica, version, bytes) =
            found.ok_or_else(|| unavailable("no answer"))?;
        if is_replica {
            self.connections.leave();
            return Err(unavailable("the server is read-only, as a replica is"));
        }
        let row_of =
            |(version, bytes): (i64, _)| Row::new(Version::new(version.cast_unsigned()), bytes);
        Ok(Read::new(stamp(server, at), version.zip(bytes).map(row_of)))
    }
}

fn stamp(server: u64, at: u64) -> Stamp {
    Stamp {
        clock: ClockId::new(server),
        at: ServerTime::from_micros(at),
    }
}

#[async_trait]
impl Store for MysqlStore {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(self.runtime.clone())
    }

    /// No row has this name.
    async fn time(&self) -> Result<Stamp, BackendError> {
        Ok(self.read_name("").await?.stamp)
    }

    async fn read(&self, key: &Key) -> Result<Read, BackendError> {
        self.read_name(key.as_str()).await
    }

    async fn write(&self, write: Write<'_>) -> Result<Written, BackendError> {
        let server = write.stamp.clock.get();
        let expected = write.expected.map(|version| version.get().cast_signed());
        let values = params! {
            "prefix" => &*self.prefix,
            "name" => write.key.as_str(),
            "version" => write.version.get().cast_signed(),
            "state" => write.bytes,
            "keep_until" => write.keep_until.as_micros(),
            "deadline" => write.deadline.as_micros(),
            "step" => write.stamp.at.as_micros(),
            expected,
            server,
        };
        let statement = if expected.is_some() { UPDATE } else { INSERT };
        let mut lent = self.connections.lend().await?;
        let sent = lent.conn.exec_drop(statement, values).await;
        let written = match lent.conn.affected_rows() {
            0 => None,
            _ => lent.conn.last_insert_id(),
        };
        match lent.answered(sent) {
            Ok(()) => Ok(written.map_or(Written::NotApplied, |at| {
                Written::applied_at(stamp(server, at))
            })),
            Err(Error::Server(refused)) if [DUPLICATE, DEADLOCK].contains(&refused.code) => {
                Ok(Written::NotApplied)
            }
            Err(error) => Err(perhaps_written(error)),
        }
    }

    fn first_waiters_poll(&self) -> Duration {
        Duration::from_millis(100)
    }

    fn can_list(&self) -> bool {
        true
    }

    /// Reads the rows in the order of their names. The cursor is the last name.
    async fn list(&self, request: &List) -> Result<Listed, BackendError> {
        let values = params! {
            "prefix" => &*self.prefix,
            "beginning" => &request.prefix,
            "after" => request.cursor.as_ref().map_or("", Cursor::as_str),
            "limit" => request.limit,
        };
        let names: Vec<String> = self.query(LIST, values).await?;
        Ok(page_of(&names, &request.prefix, request.limit))
    }

    async fn remove_expired(&self) -> Result<(), BackendError> {
        let now = self.time().await?.at.as_micros();
        loop {
            let mut lent = self.connections.lend().await?;
            let removed = lent.conn.exec_drop(REMOVE, (now,)).await;
            let count = lent.conn.affected_rows();
            lent.answered(removed).map_err(perhaps_written)?;
            if count == 0 {
                return Ok(());
            }
        }
    }

    async fn close(&self) -> Result<(), BackendError> {
        self.connections.close();
        Ok(())
    }
}

//! The store: one row for each key.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{
    BackendError, Cursor, Key, List, Listed, Runtime, ServerTime, Stamp, TokioRuntime,
};
use leasehold_store::{Read, Row, Store, Version, Write, Written, page_of};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use crate::clock::{Clock, signed};
use crate::file::{LockFile, not_written, perhaps_written};
use crate::queue::Queue;

const READ: &str = "SELECT version, state FROM leasehold_locks WHERE prefix = ?1 AND key = ?2";
const WRITE: &str = "INSERT OR REPLACE INTO leasehold_locks VALUES (?1, ?2, ?3, ?4, ?5)";
const LIST: &str = "SELECT key FROM leasehold_locks
    WHERE prefix = ?1 AND key >= ?2 AND key > ?3 ORDER BY key LIMIT ?4";
const REMOVE: &str = "DELETE FROM leasehold_locks WHERE (prefix, key) IN
    (SELECT prefix, key FROM leasehold_locks WHERE keep_until <= ?1 LIMIT ?2)";
const REMOVED_AT_ONCE: u32 = 200;

/// The locks of one prefix.
#[derive(Clone, Debug)]
pub(crate) struct SqliteStore {
    pub(crate) queue: Arc<Queue>,
    pub(crate) clock: Clock,
    pub(crate) runtime: TokioRuntime,
    pub(crate) prefix: Arc<str>,
    /// Whether it renews locks.
    pub(crate) is_renewing: bool,
}

fn row_of(connection: &Connection, prefix: &str, key: &Key) -> rusqlite::Result<Option<Row>> {
    let mut reading = connection.prepare_cached(READ)?;
    let row = reading.query_row([prefix, key.as_str()], |row| {
        let version = Version::new(row.get::<_, i64>(0)?.cast_unsigned());
        Ok(Row::new(version, row.get(1)?))
    });
    row.optional()
}

/// Reads a page of the keys that begin with a text.
fn list(
    connection: &Connection,
    prefix: &str,
    beginning: &str,
    after: &str,
    limit: u32,
) -> rusqlite::Result<Listed> {
    let mut reading = connection.prepare_cached(LIST)?;
    let rows = reading.query_map(params![prefix, beginning, after, limit], |row| row.get(0))?;
    let names: Vec<String> = rows.collect::<Result<_, _>>()?;
    Ok(page_of(&names, beginning, limit))
}

/// Removes expired rows. Returns how many.
fn remove(file: &mut LockFile) -> rusqlite::Result<usize> {
    let immediate = TransactionBehavior::Immediate;
    let step = file.connection.transaction_with_behavior(immediate)?;
    let now = file.clock.now();
    let mut removed = 0;
    // The clock of the next boot begins behind the tokens of these rows.
    if file.clock.note(&step, now)? {
        removed = step.execute(REMOVE, params![signed(now.as_micros()), REMOVED_AT_ONCE])?;
    }
    step.commit()?;
    Ok(removed)
}

#[async_trait]
impl Store for SqliteStore {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(self.runtime.clone())
    }

    async fn time(&self) -> Result<Stamp, BackendError> {
        self.queue
            .run(self.is_renewing, |file| Ok(file.clock.stamp()))
            .await
    }

    fn time_of_day(&self, at: ServerTime) -> ServerTime {
        self.clock.time_of_day(at)
    }

    async fn read(&self, key: &Key) -> Result<Read, BackendError> {
        let (prefix, key) = (Arc::clone(&self.prefix), key.clone());
        let read = self.queue.run(self.is_renewing, move |file| {
            let row = row_of(&file.connection, &prefix, &key).map_err(not_written)?;
            // The clock is read after the row.
            let stamp = file.clock.stamp();
            Ok(Read::new(stamp, row))
        });
        read.await
    }

    async fn write(&self, write: Write<'_>) -> Result<Written, BackendError> {
        let (written, _) = self.write_or_read(write).await?;
        Ok(written)
    }

    async fn write_or_read(
        &self,
        write: Write<'_>,
    ) -> Result<(Written, Option<Read>), BackendError> {
        let (prefix, key) = (Arc::clone(&self.prefix), write.key.clone());
        let (version, state) = (write.version.get().cast_signed(), write.bytes.to_vec());
        let (expected, deadline, step) = (write.expected, write.deadline, write.stamp);
        let keep_until = signed(write.keep_until.as_micros());
        let written = self.queue.run(self.is_renewing, move |file| {
            let immediate = TransactionBehavior::Immediate;
            let transaction = file.connection.transaction_with_behavior(immediate);
            // From here on, no other program writes.
            let transaction = transaction.map_err(not_written)?;
            let row = row_of(&transaction, &prefix, &key).map_err(not_written)?;
            let stamp = file.clock.stamp();
            let is_expected = row.as_ref().map(|row| row.version) == expected;
            let in_time = stamp.at < deadline && step.clock == stamp.clock && step.at <= stamp.at;
            if !is_expected || !in_time {
                return Ok((Written::NotApplied, Some(Read::new(stamp, row))));
            }
            let replacing = || {
                let mut replacing = transaction.prepare_cached(WRITE)?;
                replacing.execute(params![&*prefix, key.as_str(), version, state, keep_until])?;
                file.clock.note(&transaction, stamp.at)
            };
            if !replacing().map_err(not_written)? {
                let reason = "another boot or machine has opened the file: open it again";
                return Err(BackendError::rejected(reason));
            }
            transaction.commit().map_err(perhaps_written)?;
            Ok((Written::applied_at(stamp), None))
        });
        written.await
    }

    fn first_waiters_poll(&self) -> Duration {
        Duration::from_millis(50)
    }

    fn can_list(&self) -> bool {
        true
    }

    /// Reads the rows in the order of their keys. The cursor is the last key.
    async fn list(&self, request: &List) -> Result<Listed, BackendError> {
        let (prefix, beginning) = (Arc::clone(&self.prefix), request.prefix.clone());
        let after = request
            .cursor
            .as_ref()
            .map_or("", Cursor::as_str)
            .to_owned();
        let limit = request.limit;
        let listing = self.queue.run(self.is_renewing, move |file| {
            list(&file.connection, &prefix, &beginning, &after, limit).map_err(not_written)
        });
        listing.await
    }

    /// Removes some rows at a time, until none is left. The commands of this process and of others come in between.
    async fn remove_expired(&self) -> Result<(), BackendError> {
        loop {
            let removing = self.queue.run(self.is_renewing, |file| {
                remove(file).map_err(perhaps_written)
            });
            if removing.await? == 0 {
                return Ok(());
            }
        }
    }

    async fn close(&self) -> Result<(), BackendError> {
        self.queue.close().await;
        Ok(())
    }
}

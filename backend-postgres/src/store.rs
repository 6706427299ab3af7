//! The store: one row for each key.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::machine::Reach;
use leasehold_api::{
    BackendError, ClockId, Cursor, Key, List, Listed, Notifications, Runtime, ServerTime,
    SessionId, Stamp, bounds,
};
use leasehold_store::{Read, Row, Store, Version, Write, Written};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

use crate::connection::{Connection, ManagedConnection};
use crate::listen;
use crate::message::{self, Channel, hex};
use crate::row_key::{beginning_of_rows, key_of, row_key};
use crate::statements::{Arguments, Query};

/// The maximum number of rows that one statement removes. They stay locked until it ends.
const REMOVED_AT_ONCE: i64 = 200;
/// No further rows are removed after this time. The caller gives a removal up after 10 s, and a statement
/// that is given up costs its connection.
const REMOVE_FOR: Duration = Duration::from_secs(5);

/// How often the first waiters of a key poll if this client can't subscribe.
const POLL_WITHOUT_PUSH: Duration = Duration::from_millis(100);

/// A connection to the table of locks.
pub(crate) struct PostgresStore {
    connection: Arc<ManagedConnection>,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The configuration contains a password.
        f.debug_struct("PostgresStore")
            .field("options", &self.connection.shared.options)
            .finish_non_exhaustive()
    }
}

impl PostgresStore {
    pub(crate) const fn new(connection: Arc<ManagedConnection>) -> Self {
        Self { connection }
    }

    fn key(&self, key: &Key) -> Vec<u8> {
        row_key(&self.connection.shared.options.key_prefix, key)
    }

    async fn query(
        &self,
        query: Query,
        arguments: &Arguments<'_>,
    ) -> Result<(Vec<tokio_postgres::Row>, ClockId), BackendError> {
        let connection = self.connection.get().await?;
        connection.query((query, arguments)).await
    }

    /// Removes expired rows, over a new connection: neither commands nor renewals wait for it. The new connection
    /// also shows whether the address still leads to the same server.
    async fn remove(&self) -> Result<(), BackendError> {
        let (shared, handle) = (&self.connection.shared, &self.connection.handle);
        let connection = Connection::open(shared, handle).await?;
        let began = shared.runtime.now();
        loop {
            let sent = shared.runtime.now();
            let removing = connection.query((Query::Remove, &[&REMOVED_AT_ONCE]));
            let removed: i64 = column(one(&removing.await?.0)?, 0)?;
            let now = shared.runtime.now();
            let is_last = removed < REMOVED_AT_ONCE;
            if is_last || now.saturating_since(began) >= REMOVE_FOR {
                return Ok(());
            }
            // Other programs get as much of the server's time.
            shared.runtime.timer(now.saturating_since(sent)).await;
        }
    }

    /// Sends a write. If asked to, sends a read right behind it, for the case that the write is refused.
    async fn send(
        &self,
        write: Write<'_>,
        reads: bool,
    ) -> Result<(Written, Option<Read>), BackendError> {
        let connection = self.connection.get().await.map_err(not_sent)?;
        let (key, version) = (self.key(write.key), write.version.get().cast_signed());
        let (keep_until, deadline) = (micros(write.keep_until), micros(write.deadline));
        let (channels, payloads) = message::encode(write.messages, write.stamp.at);
        let listening: Vec<i64> = write.listening.iter().map(lock_of).collect();
        // Another server, which may be behind a token that this one has granted, refuses the step.
        let (step, server) = (
            micros(write.stamp.at),
            write.stamp.clock.get().cast_signed(),
        );
        let expected = write.expected.map(|version| version.get().cast_signed());
        let mut arguments: Vec<&(dyn ToSql + Sync)> = vec![
            &key,
            &version,
            &write.bytes,
            &keep_until,
            &step,
            &deadline,
            &server,
        ];
        // A key without a row has no waiters. A turn that begins with it may grant one of its own, which then
        // hears of it by its next poll.
        if expected.is_none() && !listening.is_empty() {
            let reach = self.reach(write.listening).await.map_err(not_sent)?;
            if reach.contains(&Reach::Nobody) {
                return Ok((Written::NotListening, None));
            }
        }
        let mut query = Query::Insert;
        if let Some(expected) = &expected {
            arguments.push(expected);
            query = Query::Update;
        }
        let of_key: [&(dyn ToSql + Sync); 1] = [&key];
        let read = reads.then_some((Query::Read, &of_key[..]));
        let call = async {
            if expected.is_some() && !(channels.is_empty() && listening.is_empty()) {
                let mut notifying = arguments.clone();
                notifying.extend([&channels as &(dyn ToSql + Sync), &payloads, &listening]);
                let writing = connection.write((Query::UpdateAndNotify, &notifying), read);
                match writing.await {
                    // The queue of notifications is full, and the write was rolled back. Waiters poll, so it
                    // is repeated without messages. It compares version and deadline again.
                    Err(error) if error.code() == Some(&SqlState::PROGRAM_LIMIT_EXCEEDED) => {}
                    answers => return answers,
                }
            }
            connection.write((query, &arguments), read).await
        };
        let (row, found) = connection.call(call).await?;
        // The caller repeats a read that has failed.
        let found = found.and_then(|(row, clock)| read_of(clock, &row).ok());
        Ok((written_of(write.stamp.clock, row.as_ref())?, found))
    }
}

/// The number of the advisory lock of a listener.
fn lock_of(session: &SessionId) -> i64 {
    Channel::of(session).lock
}

fn stamp(clock: ClockId, micros: i64) -> Stamp {
    Stamp {
        clock,
        at: ServerTime::from_micros(u64::try_from(micros).unwrap_or(0)),
    }
}

/// A column that has the type of the schema, unless another program has changed it.
fn column<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a tokio_postgres::Row,
    index: usize,
) -> Result<T, BackendError> {
    let value = row.try_get(index);
    value.map_err(|_| BackendError::foreign_value("a table with other columns"))
}

/// The only row of an answer.
fn one(rows: &[tokio_postgres::Row]) -> Result<&tokio_postgres::Row, BackendError> {
    rows.first()
        .ok_or_else(|| BackendError::unavailable("an answer without a row"))
}

/// The answer to a write. It has the clock if the row was replaced, and else may have the number of those that don't
/// listen.
fn written_of(clock: ClockId, row: Option<&tokio_postgres::Row>) -> Result<Written, BackendError> {
    let unknown = |error| BackendError::outcome_unknown("no result").with_source(error);
    let Some(row) = row else {
        return Ok(Written::NotApplied);
    };
    if let Some(at) = row.try_get(0).map_err(unknown)? {
        return Ok(Written::applied_at(stamp(clock, at)));
    }
    match row.try_get::<_, i64>(1).map_err(unknown)? {
        0 => Ok(Written::NotApplied),
        _ => Ok(Written::NotListening),
    }
}

/// The answer to a read.
fn read_of(clock: ClockId, row: &tokio_postgres::Row) -> Result<Read, BackendError> {
    let version: Option<i64> = column(row, 1)?;
    let bytes: Option<Vec<u8>> = column(row, 2)?;
    let row_of =
        |(version, bytes): (i64, _)| Row::new(Version::new(version.cast_unsigned()), bytes);
    let found = version.zip(bytes).map(row_of);
    Ok(Read::new(stamp(clock, column(row, 0)?), found))
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let pairs = (0..text.len()).step_by(2).map(|at| text.get(at..at + 2));
    pairs
        .map(|pair| u8::from_str_radix(pair?, 16).ok())
        .collect()
}

fn micros(time: ServerTime) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

#[async_trait]
impl Store for PostgresStore {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(self.connection.shared.runtime.clone())
    }

    async fn time(&self) -> Result<Stamp, BackendError> {
        let (rows, clock) = self.query(Query::Time, &[]).await?;
        Ok(stamp(clock, column(one(&rows)?, 0)?))
    }

    async fn read(&self, key: &Key) -> Result<Read, BackendError> {
        let (rows, clock) = self.query(Query::Read, &[&self.key(key)]).await?;
        read_of(clock, one(&rows)?)
    }

    async fn write(&self, write: Write<'_>) -> Result<Written, BackendError> {
        let (written, _) = self.send(write, false).await?;
        Ok(written)
    }

    /// Sends the read right after the write, without waiting for the answer to the write.
    async fn write_or_read(
        &self,
        write: Write<'_>,
    ) -> Result<(Written, Option<Read>), BackendError> {
        self.send(write, true).await
    }

    fn can_listen(&self) -> bool {
        self.connection.shared.can_listen()
    }

    fn first_waiters_poll(&self) -> Duration {
        match self.can_listen() {
            true => bounds::MAX_POLL_INTERVAL,
            false => POLL_WITHOUT_PUSH,
        }
    }

    async fn listen(&self, session: SessionId) -> Result<Notifications, BackendError> {
        listen::listen(&self.connection, Channel::of(&session)).await
    }

    fn can_tell_reach(&self) -> bool {
        true
    }

    fn compares_reach(&self) -> bool {
        true
    }

    fn can_list(&self) -> bool {
        true
    }

    /// Reads the rows in the order of their keys. The cursor is the last key, in hexadecimal digits.
    async fn list(&self, request: &List) -> Result<Listed, BackendError> {
        let prefix = &self.connection.shared.options.key_prefix;
        let beginning = beginning_of_rows(prefix, &request.prefix);
        let after = match &request.cursor {
            Some(cursor) => from_hex(cursor.as_str())
                .ok_or_else(|| BackendError::rejected("not a cursor of this backend"))?,
            None => Vec::new(),
        };
        let limit = i64::from(request.limit);
        let arguments: [&(dyn ToSql + Sync); 3] = [&beginning, &after, &limit];
        let (rows, _) = self.query(Query::List, &arguments).await?;
        let names: Result<Vec<Vec<u8>>, _> = rows.iter().map(|row| column(row, 0)).collect();
        let names = names?;
        // The rows behind those that begin with the text.
        let is_listed = |name: &&Vec<u8>| name.starts_with(&beginning);
        let listed: Vec<_> = names.iter().filter(is_listed).collect();
        let is_last = rows.len() < usize::try_from(request.limit).unwrap_or(usize::MAX);
        let next = names
            .last()
            .filter(|_| !is_last && listed.len() == names.len());
        Ok(Listed {
            next: next.map(|last| Cursor::new(hex(last))),
            keys: listed
                .into_iter()
                .filter_map(|name| key_of(prefix, name))
                .collect(),
        })
    }

    async fn reach(&self, sessions: &[SessionId]) -> Result<Vec<Reach>, BackendError> {
        let locks: Vec<i64> = sessions.iter().map(lock_of).collect();
        let (rows, _) = self.query(Query::Reach, &[&locks]).await?;
        let listening: Vec<bool> = column(one(&rows)?, 0)?;
        let reach = |listening| match listening {
            true => Reach::Listening,
            false => Reach::Nobody,
        };
        Ok(listening.into_iter().map(reach).collect())
    }

    async fn remove_expired(&self) -> Result<(), BackendError> {
        let shared = &self.connection.shared;
        shared.until_closed(self.remove()).await
    }

    async fn close(&self) -> Result<(), BackendError> {
        self.connection.shared.closed.send_replace(true);
        self.connection.close();
        Ok(())
    }
}

/// The connection failed before the write was sent.
fn not_sent(error: BackendError) -> BackendError {
    match error {
        BackendError::OutcomeUnknown { .. } => {
            BackendError::unavailable("not sent").with_source(error)
        }
        other => other,
    }
}

//! The statements, and what a server is asked first.

use leasehold_api::ClockId;
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::types::{ToSql, Type};

/// What a server says of itself, and the settings that the statements rely on.
///
/// The statements of all tasks share the connection. The lock timeout keeps one that waits for a row, which
/// another program has locked, from holding up the others. A write that waits after it has compared the
/// deadline is given up soon enough, too. A commit that a crash of the server may lose is no lock, so
/// `synchronous_commit` is never off.
macro_rules! server {
    ($is_local:literal) => {
        concat!(
            "SELECT pg_is_in_recovery(), (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
            current_setting('server_version'),
            set_config('statement_timeout', '5s', ", $is_local, "),
            set_config('lock_timeout', '250ms', ", $is_local, "),
            set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, ", $is_local, ")"
        )
    };
}

/// Sets a session up.
pub(crate) const SET_UP: &str = concat!(
    "SET default_transaction_isolation = 'read committed'; ",
    server!("false")
);

/// Begins a transaction with these settings, which no other transaction sees. All its statements are sent at once. If
/// the rest is late, because the client is paused, the server doesn't keep a row locked for it.
pub(crate) const BEGIN: &str = concat!(
    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '1s'; ",
    server!("true")
);

/// Reads the clock after the snapshot of the statement was taken, and so not before the row.
const READ: &str =
    "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, version, state
    FROM (VALUES (1)) AS one LEFT JOIN leasehold.locks ON key = $1";

/// Creates a row if the time of the step has come and the deadline has not, on the server whose clock that is, and
/// reads the clock.
const INSERT: &str =
    "INSERT INTO leasehold.locks (key, version, state, keep_until) SELECT $1, $2, $3, $4
    WHERE (extract(epoch FROM clock_timestamp()) * 1000000)::bigint >= $5
    AND (extract(epoch FROM clock_timestamp()) * 1000000)::bigint < $6
    AND (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = $7
    ON CONFLICT (key) DO NOTHING
    RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// Replaces a row on the same conditions. Most writes have no messages, and this costs the server 0.6 of
/// `UPDATE_AND_NOTIFY`.
const UPDATE: &str = "UPDATE leasehold.locks SET version = $2, state = $3, keep_until = $4
        WHERE key = $1 AND version = $8
        AND (extract(epoch FROM clock_timestamp()) * 1000000)::bigint >= $5
        AND (extract(epoch FROM clock_timestamp()) * 1000000)::bigint < $6
        AND (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = $7
        RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// Replaces a row if these listeners hold their advisory locks, as [`REACH`] tells, and sends the messages. Returns
/// the clock if it has written, and how many of them don't listen.
const UPDATE_AND_NOTIFY: &str = "WITH silent AS (
        SELECT count(*) AS number FROM unnest($11::bigint[]) AS lock
        WHERE pg_try_advisory_xact_lock(lock)),
    written AS (
        UPDATE leasehold.locks SET version = $2, state = $3, keep_until = $4
        WHERE key = $1 AND version = $8
        AND (extract(epoch FROM clock_timestamp()) * 1000000)::bigint >= $5
        AND (extract(epoch FROM clock_timestamp()) * 1000000)::bigint < $6
        AND (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = $7
        AND (SELECT number FROM silent) = 0
        RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS at)
    SELECT at, number, (
        SELECT count(pg_notify(channel, payload)) FROM unnest($9::text[], $10::text[])
        AS message (channel, payload) WHERE at IS NOT NULL)
    FROM silent LEFT JOIN written ON true";

/// Tells which listeners hold their advisory locks. A lock that can be taken has no listener. To look for
/// them in `pg_locks` takes the server 0.2 ms, and copies the locks of all its sessions. Two clients that ask
/// at the same instant about a listener that is gone may keep each other from seeing it. A grant to it lasts until
/// its offer ends.
const REACH: &str = "SELECT coalesce(
        array_agg(NOT pg_try_advisory_xact_lock(number) ORDER BY place), ARRAY[]::boolean[])
    FROM unnest($1::bigint[]) WITH ORDINALITY AS lock (number, place)";

const TIME: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// Keys from a text on, behind another one. The comparison of `bytea` is that of their bytes.
const LIST: &str =
    "SELECT key FROM leasehold.locks WHERE key >= $1 AND key > $2 ORDER BY key LIMIT $3";

/// The time is read once, in a subquery: compared with a volatile function, the column can't be searched by index.
/// The rows are found by their place, because a small table would be read as a whole for a list of keys. They stay in
/// their place, because they are locked.
const REMOVE: &str = "WITH removed AS (DELETE FROM leasehold.locks WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM leasehold.locks
        WHERE keep_until <= (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
        ORDER BY keep_until LIMIT $1 FOR UPDATE SKIP LOCKED)) RETURNING 1)
    SELECT count(*) FROM removed";

const DATABASE: &str = "SELECT oid::bigint FROM pg_database WHERE datname = current_database()";

/// One row for each danger.
const DANGERS: &str = "
    SELECT 'fsync is off: a crash of the machine may lose locks, and damage the database'
        WHERE current_setting('fsync') = 'off'
    UNION ALL
    SELECT 'full_page_writes is off: a crash of the machine may damage the database'
        WHERE current_setting('full_page_writes') = 'off'
    UNION ALL
    SELECT 'autovacuum is off: each renewal leaves a dead row behind, and the table grows'
        WHERE current_setting('autovacuum') = 'off' OR EXISTS (
            SELECT FROM pg_class WHERE oid = to_regclass('leasehold.locks')
            AND reloptions && ARRAY['autovacuum_enabled=false', 'autovacuum_enabled=off'])
    UNION ALL
    SELECT 'the table leasehold.locks is unlogged: a crash empties it'
        WHERE EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('leasehold.locks') AND relpersistence = 'u')
    UNION ALL
    SELECT 'synchronous_commit is ' || current_setting('synchronous_commit')
        || ': a failover may lose locks; with on, synchronous_standby_names protects them'
        WHERE current_setting('synchronous_commit') IN ('local', 'remote_write')
        AND current_setting('synchronous_standby_names') <> ''
    UNION ALL
    SELECT 'there are standbys, and synchronous_standby_names is empty: a failover may lose locks'
        WHERE current_setting('synchronous_standby_names') = '' AND EXISTS (SELECT FROM pg_stat_replication)";

/// A statement. A session prepares those up to [`Reach`](Self::Reach).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Query {
    Read,
    Insert,
    Update,
    UpdateAndNotify,
    Reach,
    Time,
    List,
    Remove,
    Database,
    Dangers,
}

/// What a session prepares, in this order.
pub(crate) const PREPARED: [Query; 5] = [
    Query::Read,
    Query::Insert,
    Query::Update,
    Query::UpdateAndNotify,
    Query::Reach,
];

static KEY: [Type; 1] = [Type::BYTEA];
/// Those of `UPDATE_AND_NOTIFY`. The other writes have the first of them.
static WRITE: [Type; 11] = [
    Type::BYTEA,
    Type::INT8,
    Type::BYTEA,
    Type::INT8,
    Type::INT8,
    Type::INT8,
    Type::INT8,
    Type::INT8,
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
    Type::INT8_ARRAY,
];
static LOCKS: [Type; 1] = [Type::INT8_ARRAY];
static PAGE: [Type; 3] = [Type::BYTEA, Type::BYTEA, Type::INT8];
static LIMIT: [Type; 1] = [Type::INT8];

/// The arguments of a statement.
pub(crate) type Arguments<'a> = [&'a (dyn ToSql + Sync)];

impl Query {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Read => READ,
            Self::Insert => INSERT,
            Self::Update => UPDATE,
            Self::UpdateAndNotify => UPDATE_AND_NOTIFY,
            Self::Reach => REACH,
            Self::Time => TIME,
            Self::List => LIST,
            Self::Remove => REMOVE,
            Self::Database => DATABASE,
            Self::Dangers => DANGERS,
        }
    }

    fn types(self) -> &'static [Type] {
        match self {
            Self::Read => &KEY,
            Self::Insert | Self::Update | Self::UpdateAndNotify => &WRITE,
            Self::Reach => &LOCKS,
            Self::List => &PAGE,
            Self::Remove => &LIMIT,
            Self::Time | Self::Database | Self::Dangers => &[],
        }
    }

    /// The arguments with their types, for a server that has not prepared the statement.
    pub(crate) fn typed<'a>(
        self,
        arguments: &Arguments<'a>,
    ) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
        let types = self.types().iter().cloned();
        arguments.iter().copied().zip(types).collect()
    }
}

/// What a server says of itself, in the answer to [`SET_UP`] or [`BEGIN`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Server<'a> {
    pub(crate) is_standby: bool,
    /// Its start names its clock.
    pub(crate) clock: ClockId,
    pub(crate) version: &'a str,
}

impl<'a> Server<'a> {
    /// `None` if there is no such answer.
    pub(crate) fn of(answers: &'a [SimpleQueryMessage]) -> Option<Self> {
        let row = answers.iter().find_map(|answer| match answer {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        })?;
        let started: i64 = row.get(1)?.parse().ok()?;
        Some(Self {
            is_standby: row.get(0)? != "f",
            clock: ClockId::new(started.cast_unsigned()),
            version: row.get(2)?,
        })
    }
}

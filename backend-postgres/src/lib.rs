//! A lock backend on PostgreSQL.
//!
//! [`PostgresBackend`] keeps each lock in one row of a table. It has all capabilities: queues with
//! notifications, reader/writer locks, semaphores, fencing tokens. Use it if you have a database
//! and no Redis. [`fence`] makes a transaction fail if the lock was lost meanwhile.
//!
//! ```no_run
//! use leasehold_api::LockClient;
//! use leasehold_postgres::PostgresBackend;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = PostgresBackend::connect("postgres://locks:secret@localhost/shop").await?;
//! let locks = LockClient::new(backend);
//! let guard = locks.mutex("invoice:42")?.lock().await?;
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Schema
//! Run [`SCHEMA`] once for each database:
//!
//! ```sql
#![doc = include_str!("schema.sql")]
//! ```
//!
//! # Rights
//! The user of the backend needs these rights and no others:
//!
//! ```sql
#![doc = include_str!("privileges.sql")]
//! ```
//!
//! # Server
//! - PostgreSQL 14 or later. It is tested on 15.
//! - The server is the primary. A standby is refused. `clock_timestamp()` of the primary is the clock of
//!   all leases. After a failover, asynchronous replication may have lost the last writes, as with Redis:
//!   use fencing, or synchronous replication.
//! - `synchronous_commit` must not be `off`: a crash of the server could then lose locks.
//! - The connections need a session of their own. PgBouncer works in session mode. In transaction mode it
//!   doesn't: notifications would be lost.
//! - A client has up to three connections: for commands, for renewals, and for notifications.
//! - This version has no TLS. A URL with `sslmode=require` is refused. Without it, everything travels in
//!   plain text, and so may the password if the server asks for that. Use a Unix socket, or a network that
//!   nobody else reads.
//! - Every renewal updates a row, so autovacuum must be on, as it is by default.
//!
//! The clients remove the rows of keys that nobody uses any more, about once a minute. A row stays for
//! about ten minutes after its last use, because it keeps the last fencing token.
//!
//! # Cost
//! A command is two round trips, and a commit. Clients that compete for one key may have to repeat them. See
//! the crate `leasehold-store`, which executes the commands.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod connection;
mod error;
mod fence;
mod listen;
mod message;
mod options;
mod store;

pub use backend::PostgresBackend;
pub use fence::{FenceError, fence};
pub use options::{ConnectError, Options};
/// The client library, whose transactions [`fence`] takes.
pub use tokio_postgres;

/// The statements that create the tables.
pub const SCHEMA: &str = include_str!("schema.sql");

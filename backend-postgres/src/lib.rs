//! A lock backend on PostgreSQL.
//!
//! [`PostgresBackend`] keeps each lock in one row of a table. It has all capabilities: queues with
//! notifications, reader/writer locks, semaphores, fencing tokens. Use it if you have a database
//! and no Redis. [`Fence`] begins transactions that only the latest holder of a lock can begin.
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
//! Execute [`SCHEMA`] on each database, once or whenever a program starts:
//!
//! ```sql
#![doc = include_str!("schema.sql")]
#![doc = include_str!("fence.sql")]
//! ```
//!
//! [`FENCE_SCHEMA`] is the second part alone, for a database whose locks are elsewhere.
//!
//! # Rights
//! The user of the backend needs these rights and no others:
//!
//! ```sql
#![doc = include_str!("privileges.sql")]
//! ```
//!
//! # Server
//! - PostgreSQL 14 or later. It is tested on 14, 15 and 18.
//! - The server is the primary. A standby is refused. `clock_timestamp()` of the primary is the clock of
//!   all leases. After a failover, asynchronous replication may have lost the last writes, as with Redis:
//!   use fencing, or synchronous replication.
//! - `synchronous_commit` may be `off` for other programs. The backend sets it to `on` for its own sessions then,
//!   because a crash of the server could lose locks.
//! - If the server's queue of notifications is full, locks are released all the same, and waiters learn of
//!   their turn by polls.
//! - A client has up to three connections: for commands, for renewals, and for notifications. About once a
//!   minute it opens a fourth for a moment, to remove the rows of keys that nobody uses any more. A row stays for about
//!   ten minutes after its last use, because it keeps the last fencing token.
//! - If a new connection reaches another server than the ones before, because the address leads to a new primary,
//!   the others are replaced too. A primary that is cut off from its standbys can't be told from one that isn't: see
//!   `docs/postgres.md` in the repository.
//! - Every renewal updates a row, so autovacuum must be on, as it is by default.
//!
//! # TLS
//! Enable the feature `tls-rustls`. It uses rustls with ring.
//!
//! | `sslmode` | with the feature | without it |
//! |---|---|---|
//! | `disable` | plain text | plain text |
//! | `prefer`, the default | TLS if the server offers it, else plain text | plain text |
//! | `require` | TLS, or an error | an error before any I/O |
//!
//! With TLS, the server's certificate is always verified: it must be for the host in the URL, from an
//! authority that the machine knows or that [`Options::root_certificates`] names. So `require` is what
//! libpq calls `verify-full`, which the client library doesn't know as a word, and `prefer` fails if the
//! server offers TLS with a certificate that is not valid. On a machine without authorities, `require` is an error
//! before any I/O, unless you name some. `prefer` protects against nobody who can change
//! what the network carries: they can take the offer away.
//!
//! In plain text, so may the password be if the server asks for that. Use `require`, a Unix socket, or a
//! network that nobody else reads.
//!
//! `channel_binding=require` works with certificates that are signed with RSA (PKCS #1) or ECDSA.
//! `sslnegotiation=direct` needs PostgreSQL 17 and was not tested.
//!
//! To use another TLS library, see [`PostgresBackend::from_config`].
//!
//! # Connection poolers
//! A backend opens its own connections, so it needs no pool. PgBouncer works in session mode, and its pool
//! must have up to four connections for each client.
//!
//! In the mode `transaction`, clients share connections. If the URL has `pgbouncer=true`, or with [`Options::pooled`], each
//! command is one transaction with its own settings, and no prepared statement. Waiters poll each 100 ms, unless
//! [`Options::direct_url`] says where to subscribe: connecting takes two sessions there, and a client that waits has one. The
//! pooler may lead to another server at any time: a standby is refused, and a write is refused by a server that was not
//! started when the one was on which its step was read. If nothing was written for a second after a standby or a read-only
//! server has answered, the client connects again, perhaps to another host of the URL.
//!
//! Without that, notifications and advisory locks would be lost, and settings would reach other programs.
//! [`PostgresBackend::connect`] finds that out before it changes anything: it asks on two connections which process of the
//! server answers. The error is permanent and names the server's own port. If the pooler is told to share connections
//! later, commands fail with the same error as soon as a prepared statement is missing. The mode `statement` can't be used.
//!
//! # Cost
//! To acquire a lock takes two round trips and a commit, and so does to release it. On a key that only this client
//! uses, it is one round trip and a commit each: the client remembers the row. An advisory lock takes one round
//! trip each and no commit. Clients that compete for one key may have to repeat them: see the crate
//! `leasehold-store`, which executes the commands. Choose Redis, where each is one script without conflicts,
//! if tens of clients want one key at the same time, or if the commits are too much for your database.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod checks;
mod connection;
mod connector;
mod error;
mod fence;
mod hosts;
mod listen;
mod message;
mod options;
mod pooler;
mod row_key;
mod shared;
mod statements;
mod store;
#[cfg(feature = "tls-rustls")]
mod tls;

pub use backend::PostgresBackend;
pub use fence::{Claim, Fence, FenceError};
pub use leasehold_api::{Certificates, ConnectError};
pub use options::Options;
pub use row_key::row_key;
/// The client library, whose transactions [`Fence`] begins.
pub use tokio_postgres;

/// The statements that create the tables. They can be executed again at any time, by several programs at once, and
/// within a transaction of yours.
pub const SCHEMA: &str = concat!(include_str!("schema.sql"), include_str!("fence.sql"));

/// The statements that create what fenced transactions need: a table and its functions. They are part of
/// [`SCHEMA`]. Execute them alone on a database whose locks are elsewhere, or again to upgrade.
pub const FENCE_SCHEMA: &str = include_str!("fence.sql");

//! A lock backend on MariaDB 10.6 or later, and MySQL 8.
//!
//! [`MysqlBackend`] keeps each lock in one row of a table. It has all kinds of locks, queues, fencing tokens and jobs. A
//! waiter in another process polls every 100 ms.
//!
//! ```no_run
//! use leasehold_api::LockClient;
//! use leasehold_mysql::MysqlBackend;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = MysqlBackend::connect("mysql://locks:secret@db.example/shop").await?;
//! let locks = LockClient::new(backend);
//! let guard = locks.mutex("invoice:42")?.lock().await?;
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Schema
//! Execute [`SCHEMA`] on each database, once or whenever a program starts. The user of the backend needs `SELECT`, `INSERT`,
//! `UPDATE` and `DELETE` on this table, and no more.
//!
//! ```sql
#![doc = include_str!("schema.sql")]
//! ```
//!
//! # Server
//! - MariaDB 10.11 is tested. MySQL 8 was not tried: no package of it could be had.
//! - The server is the primary. One that is `read_only` is not used. After a failover, asynchronous replication may have lost
//!   the last writes: use fencing.
//! - `innodb_flush_log_at_trx_commit` is 1, the default. With a binary log, `sync_binlog` is 1, which is not MariaDB's default,
//!   and `binlog_format` is not `STATEMENT`. Otherwise a crash loses locks, and the server is refused. So is one with
//!   `--sysdate-is-now`: its clock stands still while a statement waits for a lock.
//! - Galera was not tried. A write whose certification fails is a deadlock there, and the command is executed again. A read on another node
//!   may be behind: send all clients to one node.
//! - A client has up to eight connections: four for commands, and four for renewals.
//!
//! # TLS
//! `?require_ssl=true` at the end of the URL requires TLS, with rustls and ring. The server's certificate and
//! host name are always verified, for each connection: the authority is one that the machine knows or that
//! [`Options::root_certificates`] names. `verify_ca=false` and `verify_identity=false` are refused. Without `require_ssl=true`, nothing
//! is encrypted: use a Unix socket (`?socket=/run/mysqld/mysqld.sock`), or a network that nobody else reads.
//!
//! The library takes its cryptography from the default `rustls::crypto::CryptoProvider` of the process. If there is none, connecting
//! makes ring's the default.

mod backend;
mod connection;
mod store;
mod tls;

pub use backend::{MysqlBackend, Options};
pub use leasehold_api::{Certificates, ConnectError};

/// The statement that creates the table. It can be executed again at any time.
pub const SCHEMA: &str = include_str!("schema.sql");

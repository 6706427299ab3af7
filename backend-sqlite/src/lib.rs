//! A lock backend on one SQLite file, for the processes of one machine. It needs no server.
//!
//! [`SqliteBackend`] keeps each lock in one row of the file. It has all kinds of locks, queues, fencing tokens and
//! jobs. A waiter in another process polls every 50 ms.
//!
//! ```no_run
//! use leasehold_api::LockClient;
//! use leasehold_sqlite::SqliteBackend;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let locks = LockClient::new(SqliteBackend::open("/var/lib/shop/locks.db").await?);
//! let guard = locks.mutex("invoice:42")?.lock().await?;
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # The file
//! - It is created if it doesn't exist, with its tables. It may also be a database of yours: the tables are
//!   `leasehold_locks` and `leasehold_clock`. It is switched to write-ahead logging.
//! - It is on a local file system. NFS, SMB, 9p and FUSE are refused.
//! - It has one name, because SQLite has a log beside each. One with hard links is refused, and one that is mounted alone: mount
//!   its folder into a container.
//! - Don't delete, move or replace it, its `-wal` or its `-shm` while a program uses it. Calls fail then, until it is opened
//!   again.
//! - A program that opens it with another copy of SQLite in the same process breaks SQLite's own locks.
//!
//! # Durability
//! A lock is on the disk before the call returns (`synchronous=FULL`), so a loss of power loses none.
//!
//! # The clock
//! It is `CLOCK_BOOTTIME`, which counts suspend, and isn't stepped. The file keeps the offset that makes a time of day of
//! it, from the first program that opens the file after a boot. So the clock never goes back, also if the time of day
//! was wrong at a boot. Jobs are due by the time of day of the machine.
//!
//! Programs in containers share a file if their `CLOCK_BOOTTIME` is the same, as in Docker. If another boot, or another
//! machine, opens the file, the clients from before are refused.
//!
//! # Cost
//! To acquire a lock takes a commit, and so does to release it: two syncs of the disk. The processes write one after the
//! other, for all keys together.
//!
//! # Systems
//! Linux. Elsewhere, [`SqliteBackend::open`] fails.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod clock;
mod file;
mod host;
mod queue;
mod store;

pub use backend::{Options, SqliteBackend};
pub use leasehold_api::ConnectError;

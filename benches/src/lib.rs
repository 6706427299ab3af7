//! Measurements of leasehold, next to the minimum cost of a lock on the same client library.
//!
//! That minimum is called the **floor**: a pair of commands, `SET key value NX PX lease` and a
//! compare-and-delete script. The floor has no queue, no fencing token, no reentrancy and no
//! renewal, and it forgets a lock whose reply was lost. The difference between leasehold and its
//! floor is the price of those features. The floor of a hand-over is one message from one
//! connection to another. A lock on `BLPOP` shows what a queue costs elsewhere.
//!
//! [`figures`] has the measurements. [`report`] turns them into a page and plots.

mod blpop;
mod connection;
mod contend;
mod drain;
pub mod figures;
pub mod floor;
pub mod instructions;
pub mod library;
pub mod load;
pub mod lock;
mod memory;
pub mod open_files;
mod processor;
pub mod report;
mod samples;
mod server_stats;
#[cfg(feature = "postgres")]
mod sql_locks;

/// The error that ends a measurement early.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The result of a measurement.
pub type Result<T> = std::result::Result<T, Failure>;

/// The other libraries that [`figures`] measures on free locks, as they name them.
const PEERS: [&str; 3] = ["rslock", "redis-lock", "distributed-lock-redis"];

/// The lease of every lock here except leasehold's.
const LEASE_MS: i64 = 30_000;

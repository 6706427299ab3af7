//! Distributed locks on Redis, Valkey, Postgres, MySQL, NATS, SQLite, etcd or S3: leased, fenced, fair, and testable without a server.
//!
//! A [`LockClient`] creates mutexes, reader/writer locks and semaphores for keys that several
//! processes share. Acquiring a lock returns a [`Guard`]. The client renews it in the background
//! until you release or drop it. If the lock is lost, the guard reports the loss.
//!
//! ```
//! use std::time::Duration;
//!
//! use leasehold::{Error, LockClient, Outcome};
//!
//! async fn example(locks: LockClient) -> Result<(), Error> {
//!     let worked = work(&locks).await;
//!     locks.shutdown().await?; // at the end of the process, also after an error
//!     worked
//! }
//!
//! async fn work(locks: &LockClient) -> Result<(), Error> {
//!     // Wait for the lock. Claim the row with its token before you read.
//!     let guard = locks.mutex("invoice:42")?.lock().await?;
//!     let token = guard.fencing_token();
//!     println!("UPDATE … SET fence = {token} WHERE … AND fence <= {token} RETURNING …");
//!     guard.release().await?; // or drop it
//!
//!     // Try once. Contention is a value, not an error.
//!     match locks.mutex("thumbnails")?.lease(Duration::from_secs(60)).try_lock().await? {
//!         Outcome::Acquired(guard) => drop(guard),
//!         Outcome::Contended(contention) => println!("{contention}"),
//!     }
//!
//!     // Hold the lock around a body. If the lock is lost, the body is stopped.
//!     locks.mutex("job")?.with(async |_guard| println!("working")).await?;
//!
//!     // Several readers hold the lock together. Wait for at most 5 s.
//!     let catalog = locks.rw_lock("catalog")?;
//!     if let Some(reading) = catalog.try_read_for(Duration::from_secs(5)).await?.into_guard() {
//!         reading.release().await?;
//!     }
//!
//!     // At most three permits are held across all processes.
//!     let permit = locks.semaphore("downloads", 3)?.acquire().await?;
//!     drop(permit);
//!     Ok(())
//! }
//! # #[cfg(feature = "sim")]
//! # fn main() -> Result<(), Error> {
//! #     let mut builder = tokio::runtime::Builder::new_current_thread();
//! #     let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
//! #     runtime.block_on(async {
//! #         let server = leasehold::sim::SimServer::new(1);
//! #         example(LockClient::new(server.client("a"))).await?;
//! #         server.assert_idle();
//! #         Ok(())
//! #     })
//! # }
//! # #[cfg(not(feature = "sim"))]
//! # fn main() {}
//! ```
//!
//! # Before you rely on it
//! A lock is a lease. Two processes can believe that they hold the same lock if the server loses
//! writes in a failover, or if a process is paused for longer than its lease. So claim the protected
//! resource with [`Guard::fencing_token`] before you read it, send the token with every write, and let the
//! resource refuse a claim with a lower token than the highest that it has seen, and a write with any other
//! token than that of the last claim. Then nobody writes between your read and your write. The repository's `docs/guarantees.md` says what is promised and what is not.
//!
//! # Backends
//! A backend is a connection to a lock service. [`LockClient::new`] takes any [`LockBackend`](backend::LockBackend). To
//! choose a backend at run time, use `Arc<dyn LockBackend>`.
//!
//! | feature | backend | for |
//! |---|---|---|
//! | `redis-rs` | `redis_rs::RedisBackend` | Redis 6.2 or later, or Valkey, with the `redis` crate |
//! | `fred` | `fred_rs::FredBackend` | Redis 6.2 or later, or Valkey, with the `fred` crate |
//! | `postgres` | `postgres::PostgresBackend` | PostgreSQL 14 or later, with the `tokio-postgres` crate |
//! | `mysql` | `mysql::MysqlBackend` | MariaDB 10.6 or later, or MySQL 8, with the `mysql_async` crate |
//! | `etcd` | `etcd::EtcdBackend` | etcd 3.4 or later: mutexes and elections, which no clock can break |
//! | `nats` | `nats::NatsBackend` | NATS 2.10 or later, with the `async-nats` crate; needs Rust 1.89 |
//! | `sqlite` | `sqlite::SqliteBackend` | one file, for the processes of one machine, with the `rusqlite` crate |
//! | `object-store` | `object_store::ObjectStoreBackend` | a bucket of S3 or another object store, with the `object_store` crate: mutexes and elections |
//! | `quorum` | `quorum::Quorum` | several independent servers, a majority of which grants a lock |
//! | `sim` | `sim::SimServer` | tests: a server in memory, with virtual time and faults |
//! | `store` | `store::StoreBackend` | your own store, with a read and a compare-and-set of one row |
//!
//! The feature `tls-rustls` adds TLS: to both Redis backends, with URLs of `rediss://`, and to the Postgres
//! backend, with `sslmode=require`. The feature
//! `metrics` adds counters and histograms through the `metrics` facade. `tracing`
//! events need no feature. The repository's `docs/observability.md` describes both.
//!
//! No feature is on by default. You can combine all of them. To write a backend, depend on
//! `leasehold-api`, which has the requests and replies of a [`LockBackend`](backend::LockBackend) and the state machine of a lock.
//!
//! The feature `blocking` adds the module `blocking`, for programs without an async runtime, and `tokio-util` adds
//! `Guard::cancellation`, a `CancellationToken` that ends with a guard.
//!
//! # Cancel safety
//! You can drop every future at any time. If the dropped call may have left a lock or a waiter on
//! the server, the client releases it in the background.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "blocking")]
pub mod blocking;
mod connect;

pub use connect::{ConnectOptions, RedisLibrary, connect};
#[doc(inline)]
pub use leasehold_api::{
    Cause, ConnectError, Contention, Election, Error, Every, FencingToken, FireTime, ForceMode,
    ForceReply, Guard, InvalidInput, Job, JobFailure, JobOutcome, JobReset, JobState, JobStatus,
    Key, Label, Leader, Limits, LockClient, LockClientBuilder, Loss, LossEvent, MultiGuard,
    MultiLock, MultiReleaseError, Mutex, MutexGuard, Observation, Occurrence, Once, Outcome,
    PermitGuard, ReadGuard, Refused, RwLock, Semaphore, Term, Upgrade, WriteGuard, guard_kind,
};

/// What [`LockClient::inspect`], [`LockClient::list`] and [`LockClient::ping`] show to tools and operators.
pub mod inspect {
    #[doc(inline)]
    pub use leasehold_api::{
        HolderView, Inspection, Kind, Listing, Mode, NoteView, Ping, Role, WaiterView,
    };
}

/// What connects a client to a lock service: the trait of a backend, and what its methods take and return. To write a
/// backend, depend on `leasehold-api`, which also has the state machine of a lock.
pub mod backend {
    #[doc(no_inline)]
    pub use leasehold_api::{
        Acquire, AcquireReply, Acquired, BackendError, Capabilities, ClockId, Contended, Convert,
        ConvertReply, Cursor, EndReason, ForceRelease, HolderStatus, InspectReply, List, Listed,
        LockBackend, LockSpec, Note, NoteReply, Notification, Notifications, Operation, OwnerId,
        Poll, PollReply, Queued, Release, ReleaseReply, Renew, RenewReply, Runtime, ServerTime,
        SessionId, Stamp, Stamped, Task, Wait,
    };
}

/// The backend on etcd.
#[cfg(feature = "etcd")]
pub use leasehold_etcd as etcd;
/// The Redis backend that uses the `fred` crate.
#[cfg(feature = "fred")]
pub use leasehold_fred as fred_rs;
/// The backend on MariaDB and MySQL.
#[cfg(feature = "mysql")]
pub use leasehold_mysql as mysql;
/// The backend on NATS JetStream.
#[cfg(feature = "nats")]
pub use leasehold_nats as nats;
/// The backend on S3 and other object stores.
#[cfg(feature = "object-store")]
pub use leasehold_object_store as object_store;
/// The PostgreSQL backend.
#[cfg(feature = "postgres")]
pub use leasehold_postgres as postgres;
/// A backend over several independent servers.
#[cfg(feature = "quorum")]
pub use leasehold_quorum as quorum;
/// The Redis backend that uses the `redis` crate.
#[cfg(feature = "redis-rs")]
pub use leasehold_redis_rs as redis_rs;
/// A simulated server, for tests in virtual time.
#[cfg(feature = "sim")]
pub use leasehold_sim as sim;
/// A backend on one SQLite file.
#[cfg(feature = "sqlite")]
pub use leasehold_sqlite as sqlite;
/// A backend on any store with a compare-and-set.
#[cfg(feature = "store")]
pub use leasehold_store as store;

/// The pages of the repository. Their code blocks are doc tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/guide.md")]
    mod guide {}
    #[doc = include_str!("../docs/mutex.md")]
    mod mutex {}
    #[doc = include_str!("../docs/rw-lock.md")]
    mod rw_lock {}
    #[doc = include_str!("../docs/semaphore.md")]
    mod semaphore {}
    #[doc = include_str!("../docs/several-locks.md")]
    mod several_locks {}
    #[doc = include_str!("../docs/fencing.md")]
    mod fencing {}
    #[doc = include_str!("../docs/inspecting.md")]
    mod inspecting {}
    #[doc = include_str!("../docs/redis.md")]
    mod redis {}
    #[doc = include_str!("../docs/postgres.md")]
    mod postgres {}
    #[doc = include_str!("../docs/etcd.md")]
    mod etcd {}
    #[doc = include_str!("../docs/mysql.md")]
    mod mysql {}
    #[doc = include_str!("../docs/nats.md")]
    mod nats {}
    #[doc = include_str!("../docs/sqlite.md")]
    mod sqlite {}
    #[doc = include_str!("../docs/object-stores.md")]
    mod object_stores {}
    #[doc = include_str!("../docs/blocking.md")]
    mod blocking {}
    #[doc = include_str!("../docs/jobs.md")]
    mod jobs {}
    #[doc = include_str!("../docs/migration.md")]
    mod migration {}
    #[doc = include_str!("../docs/observability.md")]
    mod observability {}
    #[doc = include_str!("../docs/testing.md")]
    mod testing {}
    #[doc = include_str!("../docs/simulation.md")]
    mod simulation {}
    #[doc = include_str!("../docs/backend-author.md")]
    mod backend_author {}
}

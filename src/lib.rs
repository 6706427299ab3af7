//! Distributed locks over Redis: leased, fenced, fair, and testable without a server.
//!
//! A [`LockClient`] makes handles (mutexes, reader/writer locks, semaphores) for keys that many
//! processes share. Taking a lock gives a [`Guard`]. It is renewed in the background until it is
//! released or dropped, and it knows when it is lost.
//!
//! ```
//! use std::time::Duration;
//!
//! use leasehold::{Error, LockClient, Outcome};
//!
//! async fn work(locks: LockClient) -> Result<(), Error> {
//!     // Wait for as long as it takes; then write under the lock, with its fencing token.
//!     let guard = locks.mutex("invoice:42")?.lock().await?;
//!     println!("UPDATE … WHERE fence <= {}", guard.fencing_token()?);
//!     guard.release().await?; // or drop it
//!
//!     // Now or never. Contention is a value, not an error.
//!     match locks.mutex("thumbnails")?.lease(Duration::from_secs(60)).try_lock().await? {
//!         Outcome::Acquired(guard) => drop(guard),
//!         Outcome::Held(held) => println!("free in {:?} at the earliest", held.retry_after),
//!         Outcome::TimedOut(_) => {}
//!     }
//!
//!     // Around a body, which is stopped if the lock is lost.
//!     locks.mutex("job")?.with(async |_guard| println!("working")).await?;
//!
//!     // Readers beside each other, for at most 5 s of waiting.
//!     let catalog = locks.rw_lock("catalog")?;
//!     if let Some(reading) = catalog.read_within(Duration::from_secs(5)).await?.acquired() {
//!         reading.release().await?;
//!     }
//!
//!     // At most three at a time.
//!     let permit = locks.semaphore("downloads", 3)?.acquire(1).await?;
//!     drop(permit);
//!
//!     locks.shutdown().await
//! }
//! # #[cfg(feature = "sim")]
//! # fn main() -> Result<(), Error> {
//! #     let mut builder = tokio::runtime::Builder::new_current_thread();
//! #     let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
//! #     runtime.block_on(async {
//! #         let server = leasehold::sim::SimServer::new(1);
//! #         work(LockClient::new(server.client("a"))).await?;
//! #         server.assert_idle();
//! #         Ok(())
//! #     })
//! # }
//! # #[cfg(not(feature = "sim"))]
//! # fn main() {}
//! ```
//!
//! # Before you rely on it
//! A lock is a lease. Under a fail-over of the server that lost writes, or in a process that was
//! paused for longer than its lease, two holders can be at work. Send
//! [`Guard::fencing_token`] with every write to what the lock protects, and let that refuse any
//! token lower than the greatest it has accepted: then a late write is refused, whatever else
//! went wrong. The repository's `docs/guarantees.md` says what is promised and what is not.
//!
//! # Where the client comes from
//! From a backend, that is, one connection to a lock service. `LockClient::new` takes any
//! [`LockBackend`]; hold one as `Arc<dyn LockBackend>` to choose at run time.
//!
//! | feature | backend | for |
//! |---|---|---|
//! | `redis-rs` | `redis_rs::RedisBackend` | Redis 6.2 or later, by the `redis` crate |
//! | `fred` | `fred::FredBackend` | the same, by the `fred` crate |
//! | `sim` | `sim::SimServer` | tests: a server in memory and in virtual time, with faults |
//!
//! The feature `metrics` adds counters and histograms through the `metrics` facade. `tracing`
//! events are always there; both are described in the repository's `docs/observability.md`.
//!
//! No feature is on by default, and all can be combined. To write a backend, depend on
//! `leasehold-api` (here: [`api`]) and start at [`LockBackend`].
//!
//! # Cancel safety
//! Every future here may be dropped at any time. What it may have left on the server is ended in
//! the background.

#[doc(inline)]
pub use leasehold_api::{
    BackendError, Contention, EndReason, Error, FencingToken, ForceHow, Guard, Handoff,
    HandoffFailed, Inspection, InvalidInput, Key, Label, Limits, LockBackend, LockClient,
    LockClientBuilder, Loss, LossEvent, Many, ManyGuard, ManyOutcome, Mutex, MutexGuard, Outcome,
    PermitGuard, Policy, ReadGuard, Refused, ReleaseOutcome, RwLock, Semaphore, TimedOut, Upgrade,
    WriteGuard,
};

/// Everything of `leasehold-api`: what a backend is made of, the state machine, the bounds.
pub use leasehold_api as api;

/// The backend on the `fred` crate.
#[cfg(feature = "fred")]
pub use leasehold_fred as fred;
/// The backend on the `redis` crate.
#[cfg(feature = "redis-rs")]
pub use leasehold_redis_rs as redis_rs;
/// The simulated server, for tests in virtual time.
#[cfg(feature = "sim")]
pub use leasehold_sim as sim;

/// The pages of the repository: their code blocks are compiled as doc tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/guide.md")]
    mod guide {}
    #[doc = include_str!("../docs/observability.md")]
    mod observability {}
    #[doc = include_str!("../docs/testing.md")]
    mod testing {}
    #[doc = include_str!("../docs/simulation.md")]
    mod simulation {}
    #[doc = include_str!("../docs/backend-author.md")]
    mod backend_author {}
}

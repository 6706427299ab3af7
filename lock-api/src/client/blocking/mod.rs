//! Locks for programs without an async runtime.
//!
//! The types have the names of the async ones, and their calls block the thread until they have an answer. They use the
//! renewal thread, which each process has once: it drives the connections, renews the leases, and sends the releases of dropped
//! guards. So the client needs no runtime of the caller, and a body that computes for minutes keeps its lock.
//!
//! [`block_on`] runs the rest of the async API: several keys, elections, inspection, conversions.
//!
//! # Where to call it
//! On threads of your own, and in `tokio::task::spawn_blocking` or `block_in_place`. A call in an async task would stop
//! the other tasks of its thread, so it fails with [`Error::InvalidInput`](crate::Error::InvalidInput) in an async task, and sends nothing. Dropping a guard never blocks,
//! and is fine everywhere.
//!
//! # The end of the process
//! When `main` returns, or at [`std::process::exit`], the renewal thread ends at once. A guard that was dropped just before may be
//! unreleased then, and its lock is free when the lease expires. So [`release`](Guard::release) guards, or
//! call [`LockClient::shutdown`] last.
//!
//! # Fork
//! A fork copies no threads. In the child, connect again. The child's copies of guards are not valid, and dropping
//! them releases nothing: the parent still holds the locks.

mod client;
mod executor;
mod guard;
mod handles;
mod once;

pub use client::LockClient;
pub use executor::block_on;
pub use guard::{Guard, MutexGuard, PermitGuard, ReadGuard, WriteGuard};
pub use handles::{Mutex, RwLock, Semaphore};
pub use once::{Occurrence, Once};

//! Connections that open on demand, have time limits and are replaced when they break.
//!
//! The adapter of a client library is a [`Connector`], which opens [`Connection`]s. It turns each
//! error of the library into a [`Failure`].

mod access;
mod cause;
mod checks;
mod clock;
mod cluster;
mod connector;
mod failure;
#[cfg(test)]
pub(crate) mod fake;
mod managed;
mod node;
mod sentinel;
mod server;
mod shard;
mod shared;
mod slots;
mod subscription;
mod tls;
mod url;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a script has answered.
pub use bytes::Bytes;
pub(crate) use checks::Checks;
pub use clock::time_of;
pub(crate) use cluster::Cluster;
pub use connector::{AbortOnDrop, Connection, ConnectionEvent, Connector};
pub use failure::{Failure, FailureKind};
pub(crate) use managed::ScriptReply;
pub(crate) use node::{Lane, Node};
pub(crate) use sentinel::SentinelSource;
pub(crate) use server::{ServerMode, WATCHED};
pub(crate) use shared::{Shared, no_answer};
pub use slots::SlotRange;
pub(crate) use subscription::{OnlyServer, listen};
pub(crate) use tls::mismatch;
/// The sender of [`ConnectionEvent`]s.
pub use tokio::sync::mpsc::UnboundedSender;
pub use url::{Address, Sentinels, ServerUrl};

/// Ignores poisoning: the data behind these locks is always valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! A full lock backend on any store with a compare-and-set and a clock.
//!
//! Implement [`Store`] for your database: read a row together with the database's clock, and replace a
//! row if it is still the one that was read. [`StoreBackend`] makes a
//! [`LockBackend`](leasehold_api::LockBackend) of it. It executes the commands on the
//! [state machine](leasehold_api::machine) and stores the state of each key as one row.
//!
//! # How a command is executed
//! 1. Read the row and the store's clock.
//! 2. Execute the command on the state machine, at the time that was read.
//! 3. Replace the row if its version is still the one that was read, and deliver the messages.
//! 4. If another client was faster, start again.
//!
//! If the write is applied, nothing has changed since the read. So the command counts as executed at the
//! time of the read, and the reply is true at that time. The client counts a lease from before its call,
//! and a notification carries the time of the read. So no guard outlasts its lease in the store, even if
//! the write takes long.
//!
//! # Without a read
//! A client remembers the rows that it has written. If nobody else uses the key, the next acquire or release
//! begins with step 2, at an estimate of the store's clock, and the reply has the store's clock at the write.
//! This needs a store that compares that time too: see [`Written::applied_at`]. A write that is refused is
//! followed by a read.
//!
//! # Late and repeated writes
//! A write may reach the store late or twice. Two rules make this harmless:
//!
//! - A version is 64 random bits that the backend draws for each write. So a version never comes back,
//!   not even after a row was removed and created again. A late write that replaces a row is refused.
//! - A write has a [deadline](Write::deadline) on the store's clock. It ends with the call that sent it,
//!   and is at most 5 s away. A row is kept for at least 20 s after it was created. So a late write that
//!   creates a row never finds that the row has come and gone since its read.
//!
//! # Example
//! The smallest store is a map in memory. It has no push: see [`Store::listen`] and [`messages`].
//! `TokioRuntime` needs the feature `tokio` of `leasehold-api`.
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::sync::{Arc, Mutex};
//!
//! use async_trait::async_trait;
//! use leasehold_api::{
//!     BackendError, ClockId, Key, LockBackend, Runtime, ServerTime, Stamp, TokioRuntime,
//! };
//! use leasehold_store::{Read, Row, Store, StoreBackend, Write, Written};
//!
//! #[derive(Debug)]
//! struct MapStore {
//!     rows: Mutex<BTreeMap<Key, Row>>,
//!     runtime: TokioRuntime,
//! }
//!
//! impl MapStore {
//!     /// The clock of the *store*. Here that is this process.
//!     fn stamp(&self) -> Stamp {
//!         let micros = self.runtime.now().since_origin().as_micros() as u64;
//!         Stamp { clock: ClockId::new(1), at: ServerTime::from_micros(micros) }
//!     }
//! }
//!
//! #[async_trait]
//! impl Store for MapStore {
//!     fn runtime(&self) -> Arc<dyn Runtime> {
//!         Arc::new(self.runtime.clone())
//!     }
//!
//!     async fn time(&self) -> Result<Stamp, BackendError> {
//!         Ok(self.stamp())
//!     }
//!
//!     async fn read(&self, key: &Key) -> Result<Read, BackendError> {
//!         let row = self.rows.lock().expect("no panic").get(key).cloned();
//!         Ok(Read::new(self.stamp(), row))
//!     }
//!
//!     async fn write(&self, write: Write<'_>) -> Result<Written, BackendError> {
//!         let mut rows = self.rows.lock().expect("no panic");
//!         let found = rows.get(write.key).map(|row| row.version);
//!         if found != write.expected || self.stamp().at >= write.deadline {
//!             return Ok(Written::NotApplied);
//!         }
//!         rows.insert(write.key.clone(), write.row());
//!         Ok(Written::applied())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), leasehold_api::Error> {
//! let runtime = TokioRuntime::current();
//! let backend = StoreBackend::new(MapStore { rows: Mutex::default(), runtime });
//! let locks = leasehold_api::LockClient::new(backend);
//! let guard = locks.mutex("invoice:42")?.lock().await?;
//! assert!(guard.is_valid());
//! guard.release().await?;
//! # locks.shutdown().await
//! # }
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod call;
mod check;
mod execute;
mod local;
mod memory;
pub mod messages;
mod observed;
mod promises;
mod store;
mod tag_store;
mod times;
mod turns;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use backend::StoreBackend;
pub use observed::Observed;
pub use store::{Applied, Read, Row, Store, Tag, Version, Write, Written, page_of};
pub use tag_store::{Object, Pushed, Put, TagStore};

/// Locks a mutex. Of what runs while it is locked, only the waker of a task can panic: where a message is delivered, or
/// a task learns of a release. What the mutex guards is whole then.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! A lock backend on S3, Google Cloud Storage, Azure Blob Storage, and other stores of the crate [`object_store`].
//!
//! [`ObjectStoreBackend`] keeps each lock in one object. It has mutexes and elections, queues and fencing tokens. There is no
//! server to run, and each request has its price: see the guide.
//!
//! ```
//! use std::sync::Arc;
//!
//! use leasehold_api::LockClient;
//! use leasehold_object_store::{ObjectStoreBackend, Options};
//! use object_store::memory::InMemory;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // For S3: ObjectStoreBackend::connect("s3://bucket/locks").await?
//! let store = Arc::new(InMemory::new());
//! let locks = LockClient::new(ObjectStoreBackend::from_store(store, Options::new()).await?);
//! let guard = locks.mutex("invoice:42")?.lock().await?;
//! guard.release().await?;
//! # locks.shutdown().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # The store
//! - It replaces an object only if the object still has the ETag that was read. A store that doesn't is refused.
//! - Nothing else writes or deletes the objects, also no lifecycle rule: a lock whose object is deleted begins with a low
//!   fencing token again.
//!
//! # Time
//! The store's clock isn't used. A lease ends when another client has seen the object unchanged for that long: see
//! [`Observed`](leasehold_store::Observed).

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
#[cfg(feature = "s3")]
mod s3;
mod store;

pub use backend::{ObjectStoreBackend, Options};
pub use leasehold_api::ConnectError;

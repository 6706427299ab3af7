//! Shared parts of leasehold's Redis backends. If you only use locks, you don't need this crate.
//!
//! - [`script`]: the Lua scripts, and the encoding of their arguments and replies. It does no I/O.
//! - `connection` (feature `connection`): connections that open on demand, have time limits and
//!   are replaced when they break; subscriptions; errors.
//! - `Backend` (feature `connection`): a `LockBackend` on top of both.
//!
//! To support a client library, implement `Connector` and `Connection`, and wrap a `Backend` in a
//! type with constructors. `leasehold-redis-rs` and `leasehold-fred` are such crates.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "connection")]
mod backend;
#[cfg(feature = "connection")]
pub mod connection;
mod options;
pub mod script;

#[cfg(feature = "connection")]
pub use backend::Backend;
pub use options::{Options, RespVersion, ServerChecks};

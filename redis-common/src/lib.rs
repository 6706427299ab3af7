//! What leasehold's Redis backends share. Users of locks need neither this crate nor its types.
//!
//! - [`script`]: the Lua scripts, and the encoding of their arguments and replies. It does no I/O.
//! - `connection` (feature `connection`): connections that are opened when they are needed,
//!   bounded in time and replaced when they break; subscriptions; errors.
//! - `Backend` (feature `connection`): a `LockBackend` on both.
//!
//! A backend for a client library implements `Connector` and `Connection`, and wraps a `Backend`
//! in a type with constructors. `leasehold-redis-rs` and `leasehold-fred` do so.

#[cfg(feature = "connection")]
mod backend;
#[cfg(feature = "connection")]
pub mod connection;
mod options;
pub mod script;

#[cfg(feature = "connection")]
pub use backend::Backend;
pub use options::{Options, RespVersion, check_url};

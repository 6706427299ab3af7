//! Lua scripts, key encoding and reply decoding shared by leasehold's Redis backends.
//!
//! A backend built on any Redis client library does three things with this crate: it asks
//! [`Protocol`] for a [`Call`], sends it (`EVALSHA`, and `EVAL` with the source if the server
//! answers `NOSCRIPT`), and hands the one bulk string that comes back to a decoder in [`reply`].
//! Error replies of the server go through [`classify`]. Nothing about locks is decided here: the
//! scripts are the port of [`leasehold_api::machine`], and the rest is translation.
//!
//! # On the wire
//! - One Redis key for each lock: `PREFIX{ENCODED}`, see [`Protocol::key`].
//! - A call carries as many keys as elements, and for each key one packed argument.
//! - A script answers with one bulk string: for each element a status byte, the backend's time,
//!   and the packed reply.
//! - Notices are published on one channel for each session, see [`Protocol::channel`]; a message
//!   carries one or more of them, see [`decode_notice`].
//!
//! Every number is little-endian. Times, tokens and sequences travel as IEEE doubles, because
//! that is what Lua computes with; all of them are integers below 2^53.

mod call;
mod encoding;
mod error_class;
#[cfg(leasehold_mutants)]
pub mod mutants;
mod names;
pub mod reply;
mod source;

pub use call::{Call, Protocol, ScriptSettings};
pub use encoding::Malformed;
pub use error_class::{ErrorClass, classify, without_arguments};
pub use reply::{NO_NOTICES, decode_notice};
pub use source::Script;

//! The Lua scripts, and the encoding of their keys, arguments and replies.
//!
//! A backend asks [`Protocol`] for a [`Call`] and sends it with `EVALSHA`, or with `EVAL` and the
//! source if the server answers `NOSCRIPT`. It hands the bulk string that comes back to a decoder
//! in [`reply`], and an error reply to [`classify`]. The scripts are the port of
//! [`leasehold_api::machine`]; this module only translates.
//!
//! # Encoding
//! - Each lock is one Redis key, `PREFIX{ENCODED}`; see [`Protocol::key`].
//! - A call carries one key and one packed argument for each element of a batch.
//! - A script answers with one bulk string: for each element a status byte, the server's time and
//!   the packed reply.
//! - Notifications are published on one channel for each session; see [`Protocol::channel`]. A
//!   message carries one or more of them; see [`decode_notification`].
//!
//! Numbers are little-endian. Times, tokens and sequences are encoded as IEEE doubles, the numbers
//! of Lua; all of them are integers below 2^53.

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
pub use reply::{NO_NOTIFICATIONS, decode_notification};
pub use source::Script;

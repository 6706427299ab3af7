//! The Lua scripts, and the encoding of their keys, arguments and replies.
//!
//! A backend gets a [`Call`] from [`Protocol`], addresses it to a server, and sends it with `EVALSHA`. If the
//! server answers `NOSCRIPT`, it sends `EVAL` with the source. A decoder in [`reply`] reads the answer, which
//! is a bulk string. [`classify`] reads an error reply. The scripts are a port of [`leasehold_api::machine`].
//!
//! # Encoding
//! - Each lock is one Redis key, `PREFIX{ENCODED}`; see [`Protocol::key`].
//! - A call carries one key and one packed argument for each element of a batch, then the id of the
//!   server's clock.
//! - A script answers with one bulk string. For each element it has a status byte, the server's
//!   time and the packed reply.
//! - Each session has a channel for its notifications; see [`Protocol::channel`]. A message carries
//!   the server's time, the id of its clock, and one or more notifications; see [`decode_notification`].
//!
//! Numbers are little-endian. The id of a clock is an integer of 64 bits. Times, tokens and sequences are IEEE
//! doubles, like all numbers in Lua. They are integers below 2^53.

mod call;
mod encoding;
mod error_class;
mod names;
pub mod reply;
mod settings;
mod source;

pub use call::{AddressedCall, Call, Protocol};
pub use encoding::Malformed;
pub use error_class::{ErrorClass, classify, without_arguments};
pub use reply::decode_notification;
pub use settings::ScriptSettings;
pub use source::Script;

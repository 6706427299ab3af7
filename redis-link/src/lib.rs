//! What leasehold's Redis backends share besides the scripts: connections that are kept, bounded
//! and replaced, subscriptions, and what an error says about the command that it answers.
//!
//! A backend on a client library is a [`Source`] with its [`Wire`], which open a connection and
//! send a few commands over it, and a type with constructors around a [`Core`]. `leasehold-redis-rs`
//! and `leasehold-fred` are made so. Those who use locks need neither this crate nor its types.

mod core;
mod failure;
mod link;
mod notices;
mod source;

pub use core::Core;
pub use failure::{ConnectError, Failure, FailureKind};
pub use source::{Event, Source, Wire};
/// Where [`Event`]s go.
pub use tokio::sync::mpsc::UnboundedSender;

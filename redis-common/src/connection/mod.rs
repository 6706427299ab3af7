//! Connections that are opened when they are needed, bounded in time and replaced when they break.
//!
//! A client library takes part with a [`Connector`], which opens a [`Connection`], and with a
//! [`Failure`] for each of its errors.

mod access;
mod clock;
mod connector;
mod failure;
mod managed;
mod server;
mod subscription;

pub use connector::{Connection, ConnectionEvent, Connector};
pub use failure::{ConnectError, Failure, FailureKind};
pub(crate) use managed::{ManagedConnection, Shared};
pub(crate) use subscription::listen;
/// Where [`ConnectionEvent`]s go.
pub use tokio::sync::mpsc::UnboundedSender;

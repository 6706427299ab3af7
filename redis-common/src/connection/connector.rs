//! The traits that a client library's adapter implements.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use leasehold_api::{ConnectError, ServerTime};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;

use super::failure::{Failure, FailureKind};
use super::slots::SlotRange;
use super::url::ServerUrl;
use crate::script::{AddressedCall, ErrorClass};

/// An event that a connection reports.
#[derive(Debug)]
pub enum ConnectionEvent {
    /// A message on a channel that the connection subscribes to.
    Message(Vec<u8>),
    /// A message on a shard channel.
    ShardMessage {
        /// The channel.
        channel: String,
        /// The message.
        payload: Vec<u8>,
    },
    /// The subscription to this shard channel has ended.
    Unsubscribed(String),
    /// Messages may have been lost.
    Missed,
    /// The connection ended.
    Closed,
}

/// Opens connections through a client library.
#[async_trait]
pub trait Connector: Send + Sync + 'static {
    /// Whether [`open`](Self::open) opens a new connection. If not, it returns a handle of the
    /// user's connection, which can't be replaced.
    fn is_own(&self) -> bool;

    /// The client library, for events.
    fn library(&self) -> &'static str;

    /// The address of the server, without user and password. `None` for the user's connection.
    fn address(&self) -> Option<String>;

    /// The name and the port of the server, if [`open`](Self::open) can connect to one of their addresses. `None` if
    /// the library looks for the server itself.
    fn host(&self) -> Option<(String, u16)>;

    /// A connector for the server at `url`, with the options and certificates of this one.
    ///
    /// # Errors
    /// [`ConnectError::Invalid`] if the client library can't use the URL, or if this connector
    /// opens no connections.
    fn at(&self, url: &ServerUrl) -> Result<Arc<dyn Connector>, ConnectError>;

    /// Opens a connection to an address of [`host`](Self::host), or returns a handle of the user's. The future has
    /// no time limit. It runs on the runtime that drives the connection. The connection sends its events to `events`.
    async fn open(
        &self,
        to: Option<SocketAddr>,
        events: Option<UnboundedSender<ConnectionEvent>>,
    ) -> Result<Arc<dyn Connection>, Failure>;
}

/// A connection, with the few commands that a backend sends. Dropping it closes the connection,
/// unless the connection is the user's.
///
/// The futures have no time limit. The caller drops them at its own.
#[async_trait]
pub trait Connection: Send + Sync {
    /// Whether the connection is known to have ended. If so, the backend sends nothing over it.
    fn is_closed(&self) -> bool;

    /// Sends a script call once. `name` is `EVALSHA` with the script's hash, or `EVAL` with its
    /// source. With `asking`, sends `ASKING` right before it: no other command may come between the
    /// two.
    async fn eval(
        &self,
        name: &'static str,
        script: &str,
        call: &AddressedCall<'_>,
        asking: bool,
    ) -> Result<Bytes, Failure>;

    /// Sends `INFO` for a section, or for the default ones.
    async fn info(&self, section: Option<&'static str>) -> Result<String, Failure>;

    /// Asks a sentinel for the host and port of a service's primary. `None` if it doesn't know the
    /// service.
    async fn primary_of(&self, service: &str) -> Result<Option<(String, u16)>, Failure>;

    /// Sends `CLUSTER SLOTS`.
    async fn slots(&self) -> Result<Vec<SlotRange>, Failure>;

    /// Reads the server's clock.
    async fn time(&self) -> Result<ServerTime, Failure>;

    /// Checks that the connection for messages is alive, and that it is still subscribed to these shard
    /// channels. A library that reports each `SUNSUBSCRIBE` of the server doesn't need to ask for the
    /// latter.
    ///
    /// # Errors
    /// [`FailureKind::Lost`] if a subscription is gone.
    async fn check_subscriptions(&self, shard_channels: &[String]) -> Result<(), Failure>;

    /// Subscribes to a channel. Returns once the server has confirmed it.
    async fn subscribe(&self, channel: &str) -> Result<(), Failure>;

    /// Subscribes to a shard channel with `SSUBSCRIBE`, over RESP3. Returns once the server has
    /// confirmed it.
    async fn subscribe_shard(&self, channel: &str) -> Result<(), Failure>;

    /// Unsubscribes from a shard channel.
    async fn unsubscribe_shard(&self, channel: &str) -> Result<(), Failure>;
}

/// Aborts a task when it is dropped, such as the one that drives a connection. The connection is closed then.
pub struct AbortOnDrop(pub AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs a script by its hash, or by its source if the server doesn't know the hash.
pub(crate) async fn script(
    connection: &dyn Connection,
    call: &AddressedCall<'_>,
    asking: bool,
) -> Result<Bytes, Failure> {
    const UNKNOWN: FailureKind = FailureKind::Answered(ErrorClass::NoScript);
    let (hash, source) = (call.script().sha1(), call.script().source());
    match connection.eval("EVALSHA", hash, call, asking).await {
        Err(failure) if failure.kind() == UNKNOWN => {
            connection.eval("EVAL", source, call, asking).await
        }
        answer => answer,
    }
}

//! What a backend asks of a client library.

use std::future::Future;

use leasehold_api::ServerTime;
use tokio::sync::mpsc::UnboundedSender;

use super::failure::{Failure, FailureKind};
use crate::options::Options;
use crate::script::{Call, ErrorClass};

/// What a connection reports by itself.
#[derive(Debug)]
pub enum ConnectionEvent {
    /// A message on a channel that the connection subscribes to.
    Message(Vec<u8>),
    /// Messages may have been lost.
    Missed,
    /// The connection ended.
    Closed,
}

/// Opens connections through a client library.
pub trait Connector: Send + Sync + 'static {
    /// What it opens.
    type Connection: Connection;

    /// Whether [`open`](Self::open) opens a new connection, which is known to be open or not.
    /// Otherwise it returns a handle of the user's connection, which can't be replaced.
    fn is_own(&self) -> bool;

    /// The address of the server, without user and password; `None` for the user's connection.
    fn address(&self) -> Option<String>;

    /// Opens a connection, without a time limit, or returns a handle of the user's. Runs on the
    /// runtime that drives the connection. What the connection reports goes to `events`.
    fn open(
        &self,
        options: &Options,
        events: Option<UnboundedSender<ConnectionEvent>>,
    ) -> impl Future<Output = Result<Self::Connection, Failure>> + Send;
}

/// A connection and the few commands that a backend sends over it. Dropping it closes the
/// connection, unless it is the user's.
///
/// The futures have no time limit: the caller has one, and drops them.
pub trait Connection: Send + Sync + 'static {
    /// The answer of a script, as the library returns it.
    type Reply: AsRef<[u8]> + Send + Sync;

    /// Whether the connection is known to have ended. Then nothing is sent over it.
    fn is_closed(&self) -> bool;

    /// Runs a script once, with the command `name`, which takes its hash or its source.
    fn eval(
        &self,
        name: &'static str,
        script: &str,
        call: &Call,
    ) -> impl Future<Output = Result<Self::Reply, Failure>> + Send;

    /// Sends `INFO server`.
    fn info(&self) -> impl Future<Output = Result<String, Failure>> + Send;

    /// Reads the server's clock.
    fn time(&self) -> impl Future<Output = Result<ServerTime, Failure>> + Send;

    /// Checks that the connection on which messages arrive is alive.
    fn ping(&self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Subscribes, and returns once the server has confirmed it.
    fn subscribe(&self, channel: &str) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Runs a script: by its hash, and by its source if the server does not know that.
pub(crate) async fn script<T: Connection>(
    connection: &T,
    call: &Call,
) -> Result<T::Reply, Failure> {
    const UNKNOWN: FailureKind = FailureKind::Answered(ErrorClass::NoScript);
    match connection.eval("EVALSHA", call.script.sha1(), call).await {
        Err(failure) if failure.kind() == UNKNOWN => {
            connection.eval("EVAL", call.script.source(), call).await
        }
        answer => answer,
    }
}

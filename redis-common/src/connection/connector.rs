//! What a backend asks of a client library.

use std::future::Future;

use leasehold_api::ServerTime;
use tokio::sync::mpsc::UnboundedSender;

use super::failure::{Failure, FailureKind};
use crate::options::Options;
use crate::script::{Call, ErrorClass};

/// What a connection tells unasked.
#[derive(Debug)]
pub enum ConnectionEvent {
    /// A message on a channel that it subscribed to.
    Message(Vec<u8>),
    /// Messages may have been lost.
    Missed,
    /// The connection ended.
    Closed,
}

/// Where connections come from.
pub trait Connector: Send + Sync + 'static {
    /// One of them.
    type Connection: Connection;

    /// Whether connections are opened here: then each is new, and known to be open or not.
    /// Otherwise there is one, the user's, which cannot be replaced.
    fn is_own(&self) -> bool;

    /// Where the connections lead, if they are opened here: no user and no password.
    fn address(&self) -> Option<String>;

    /// Opens a connection, with no time limit of its own, or gives a handle of the user's. Runs
    /// on the runtime that shall drive the connection. What the connection tells unasked goes to
    /// `events`, if somebody listens.
    fn open(
        &self,
        options: &Options,
        events: Option<UnboundedSender<ConnectionEvent>>,
    ) -> impl Future<Output = Result<Self::Connection, Failure>> + Send;
}

/// One connection, and the few commands that are sent over it. Dropping it closes it, unless it is
/// the user's.
///
/// None of its futures has a time limit of its own: who waits for them has one, and drops them.
pub trait Connection: Send + Sync + 'static {
    /// What a script answers, as the library gives it.
    type Reply: AsRef<[u8]> + Send + Sync;

    /// Whether it is known to have ended, so that nothing can be sent over it.
    fn is_closed(&self) -> bool;

    /// Runs a script by the command `name`, which takes either its hash or its source, once.
    fn eval(
        &self,
        name: &'static str,
        script: &str,
        call: &Call,
    ) -> impl Future<Output = Result<Self::Reply, Failure>> + Send;

    /// The server's own description of itself: `INFO server`.
    fn info(&self) -> impl Future<Output = Result<String, Failure>> + Send;

    /// The server's clock.
    fn time(&self) -> impl Future<Output = Result<ServerTime, Failure>> + Send;

    /// Asks for a sign of life, where messages come in.
    fn ping(&self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Subscribes, and waits until the server has confirmed it.
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

//! The observer of a run.

use std::time::Duration;

use leasehold_api::machine::{Command, Message, State};
use leasehold_api::{Key, Stamp};

use crate::record::{Event, ServerAnswer};

/// Observes all events of a simulation as they happen. It costs less than a log.
///
/// [`SimServer::observe`](crate::SimServer::observe) sets it. Its methods are called while the
/// simulation is locked, so they must not use the server or its clients: that deadlocks.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// use leasehold_api::LockClient;
/// use leasehold_sim::tools::{Execution, Observer};
/// use leasehold_sim::SimServer;
///
/// /// Counts the commands that the server executes.
/// struct Counter(Arc<AtomicUsize>);
///
/// impl Observer for Counter {
///     fn executed(&mut self, _: &Execution<'_>) {
///         self.0.fetch_add(1, Ordering::Relaxed);
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), leasehold_api::Error> {
/// let (server, commands) = (SimServer::new(1), Arc::default());
/// server.observe(Counter(Arc::clone(&commands)));
/// let locks = LockClient::new(server.client("a"));
/// locks.mutex("job")?.lock().await?.release().await?;
/// assert_eq!(commands.load(Ordering::Relaxed), 2); // an acquire and a release
/// # Ok(())
/// # }
/// ```
pub trait Observer: Send {
    /// The server is about to execute a command on `key`; [`executed`](Self::executed) follows.
    /// `state` is `None` if the key doesn't exist or has a foreign value. The default does nothing.
    fn executes(&mut self, key: &Key, state: Option<&State>) {
        let _ = (key, state);
    }

    /// The server executed a command.
    fn executed(&mut self, execution: &Execution<'_>);

    /// Any other event happened, at virtual time `at` since the start of the simulation. `client`
    /// is the [index](crate::SimBackend::index) of the client that the event belongs to. The
    /// default does nothing.
    fn event(&mut self, at: Duration, client: Option<usize>, event: &Event) {
        let _ = (at, client, event);
    }
}

/// One command that a server executed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Execution<'a> {
    /// When the client sent the request, in virtual time since the start of the simulation.
    pub sent: Duration,
    /// When the server executed the command, in virtual time since the start of the simulation.
    pub at: Duration,
    /// The [index](crate::SimBackend::index) of the client.
    pub client: usize,
    /// The key that the command is about.
    pub key: &'a Key,
    /// What the client asked for.
    pub command: &'a Command,
    /// The time of the server's clock.
    pub stamp: Stamp,
    /// The server's answer.
    pub answer: &'a ServerAnswer,
    /// The messages to sessions that the command caused.
    pub messages: &'a [Message],
    /// The number of commands in the call, including this one.
    pub together: usize,
    /// Whether this was the second delivery of a duplicated request.
    pub again: bool,
    /// The state of the key after the command; `None` if the key doesn't exist or has a foreign
    /// value.
    pub state: Option<&'a State>,
}

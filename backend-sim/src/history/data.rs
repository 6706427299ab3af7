//! What a history consists of.

use std::sync::Arc;
use std::time::Duration;

use crate::record::{Entry, Fate, Log, Message};

/// The history of a run: its events and messages.
///
/// You can read it as [text](Self::text), or as a [page](Self::html) in a browser. [`SimServer::history`](crate::SimServer::history),
/// [`RunReport::history`](crate::RunReport::history) and a [`FailedRun`](crate::FailedRun) contain one.
/// All times are virtual and count from the start of the simulation.
///
/// # Examples
/// ```
/// use leasehold_api::LockClient;
/// use leasehold_sim::SimServer;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = SimServer::new(1);
/// let locks = LockClient::new(server.client("a"));
/// locks.mutex("job")?.lock().await?.release().await?;
///
/// let history = server.history().with_title("lock and release");
/// assert!(history.text().contains("release \"job\" #1 -> released"));
/// # let folder = std::env::temp_dir().join("leasehold-sim-doc");
/// # std::fs::create_dir_all(&folder)?;
/// # let page = folder.join("run.html");
/// history.save(&page)?; // open it in a browser
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct History {
    /// The heading.
    pub title: String,
    /// Why the run failed, if it did.
    pub verdict: Option<String>,
    /// The command that repeats the run, if there is one.
    pub replay: Option<String>,
    /// Names of the clients, in the order in which they were created. Clients with the same name
    /// share a column.
    pub clients: Vec<Arc<str>>,
    /// The events, oldest first.
    pub entries: Vec<Entry>,
    /// The messages, in the order in which they were sent.
    pub messages: Vec<Message>,
    /// The number of older events that the log has dropped
    /// ([`SimOptions::log_limit`](crate::SimOptions::log_limit)).
    pub dropped: u64,
}

impl History {
    pub(crate) fn of(log: Log, clients: Vec<Arc<str>>) -> Self {
        Self {
            title: "leasehold simulation".to_owned(),
            clients,
            entries: log.entries.into(),
            messages: log.messages.into(),
            dropped: log.dropped,
            ..Self::default()
        }
    }

    /// Sets the heading. By default it is "leasehold simulation".
    #[must_use]
    pub fn with_title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// Sets the reason why the run failed, which the page shows.
    #[must_use]
    pub fn with_verdict(mut self, verdict: impl Into<String>) -> Self {
        self.verdict = Some(verdict.into());
        self
    }

    /// Sets the command that repeats the run, which the page shows.
    #[must_use]
    pub fn with_replay(mut self, command: impl Into<String>) -> Self {
        self.replay = Some(command.into());
        self
    }

    pub(super) fn end(&self) -> Duration {
        let entries = self.entries.iter().map(|entry| entry.at);
        let arrivals = self.messages.iter();
        let arrivals = arrivals.filter_map(|message| ended_at(message.fate));
        entries.chain(arrivals).max().unwrap_or_default()
    }

    /// Returns the names of the clients, each once.
    pub(super) fn columns(&self) -> Vec<Arc<str>> {
        let mut columns: Vec<Arc<str>> = Vec::new();
        let in_entries = self.entries.iter().filter_map(|entry| entry.client.clone());
        for name in self.clients.iter().cloned().chain(in_entries) {
            if !columns.contains(&name) {
                columns.push(name);
            }
        }
        columns
    }
}

/// Returns the first lane whose last interval has ended by `at`. Adds one if there is none.
pub(crate) fn first_free(lanes: &mut Vec<Duration>, at: Duration) -> usize {
    let free = lanes.iter().position(|end| *end <= at);
    free.unwrap_or_else(|| {
        lanes.push(Duration::ZERO);
        lanes.len() - 1
    })
}

/// Returns when a message arrived or was lost; `None` while it is in flight.
pub(crate) const fn ended_at(fate: Fate) -> Option<Duration> {
    match fate {
        Fate::Arrived(at) | Fate::Lost(at) => Some(at),
        Fate::UnderWay => None,
    }
}

//! A run, and the ways to look at it.

mod json;
mod layout;
mod page;
mod perfetto;
mod spans;
mod text;
pub(crate) mod words;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::history::spans::SpanEnd;
use crate::record::{Entry, Log, Message};

/// What happened in a run, to be looked at as [text](Self::text), as a [page](Self::html) or in a
/// [trace viewer](Self::perfetto).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct History {
    /// The heading.
    pub title: String,
    /// What was found wrong with it, if anything.
    pub verdict: Option<String>,
    /// The command that repeats it, if there is one.
    pub replay: Option<String>,
    /// Names of the clients, in the order in which they were made; equal names share a column.
    pub clients: Vec<Arc<str>>,
    /// What happened, oldest first.
    pub entries: Vec<Entry>,
    /// What was sent, in that order.
    pub messages: Vec<Message>,
    /// How many older entries the log did not keep.
    pub dropped: u64,
}

impl History {
    pub(crate) fn of(log: &Log, clients: Vec<Arc<str>>) -> Self {
        Self {
            title: "leasehold simulation".to_owned(),
            clients,
            entries: log.entries().cloned().collect(),
            messages: log.messages().cloned().collect(),
            dropped: log.dropped(),
            ..Self::default()
        }
    }

    /// The same with another heading.
    #[must_use]
    pub fn with_title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// The same with what was found wrong with it.
    #[must_use]
    pub fn with_verdict(mut self, verdict: impl Into<String>) -> Self {
        self.verdict = Some(verdict.into());
        self
    }

    /// The same with the command that repeats it.
    #[must_use]
    pub fn with_replay(mut self, command: impl Into<String>) -> Self {
        self.replay = Some(command.into());
        self
    }

    /// A line for each entry: when it happened; a column for each client that shows how it stood
    /// then, and one for the server; what it was.
    ///
    /// `*` shows whose line it is. A client's column shows `#` while it holds something
    /// exclusively, `=` while it holds with others, `?` while it waits, `z` while it is paused,
    /// `x` once it was killed.
    pub fn text(&self) -> String {
        text::render(self)
    }

    /// A page that shows the run as a picture: time downwards, a column for each client and the
    /// server, who waited and who held as bars, messages as arrows, faults in red.
    ///
    /// It is complete in itself: it opens from disk and loads nothing.
    pub fn html(&self) -> String {
        page::render(self)
    }

    /// The run in the JSON trace event format, which <https://ui.perfetto.dev> and
    /// `chrome://tracing` open: a process for each client and the server, slices for waits, holds
    /// and calls, arrows for messages. Times are microseconds of virtual time.
    pub fn perfetto(&self) -> String {
        perfetto::render(self)
    }

    /// Writes the [page](Self::html) to a file, and the [JSON](Self::perfetto) beside it, with the
    /// extension `json`.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn save(&self, page: &Path) -> io::Result<()> {
        std::fs::write(page, self.html())?;
        std::fs::write(page.with_extension("json"), self.perfetto())
    }

    /// Who held, and who waited, at its end, a line for each.
    pub(crate) fn unfinished(&self) -> Vec<String> {
        let spans = spans::spans(self);
        let open = spans.iter().filter(|span| span.end == SpanEnd::Open);
        open.map(|span| {
            let does = if span.is_hold() { "holds" } else { "waits for" };
            let (client, key, number) = (&span.client, &span.key, span.sequence);
            let since = span.from.as_secs_f64();
            format!("{client} {does} {key:?} (#{number}) since {since:.3} s")
        })
        .collect()
    }

    /// The last time of which it tells.
    fn end(&self) -> Duration {
        let entries = self.entries.iter().map(|entry| entry.at);
        let arrivals = self.messages.iter();
        let arrivals = arrivals.filter_map(|message| spans::met(message.fate));
        entries.chain(arrivals).max().unwrap_or_default()
    }

    /// The clients, each name once.
    fn columns(&self) -> Vec<Arc<str>> {
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

//! The history of a run, as text and as a page.

mod data;
mod layout;
mod page;
mod spans;
mod text;
pub(crate) mod words;

use std::io;
use std::path::Path;

use crate::history::spans::SpanEnd;

pub use data::History;

impl History {
    /// Returns the history as text, with a line for each event.
    ///
    /// A line has the time in seconds, a column for each client and for the server, and the event.
    /// A `*` marks the client, or the server, that the event belongs to. The other symbols in a
    /// client's column are:
    ///
    /// | symbol | the client |
    /// |---|---|
    /// | `#` | holds a lock exclusively |
    /// | `=` | shares a lock with others |
    /// | `?` | waits |
    /// | `z` | is paused |
    /// | `x` | was killed |
    /// | `.` | does none of these |
    pub fn text(&self) -> String {
        text::render(self)
    }

    /// Returns the history as an HTML page with a picture of the run.
    ///
    /// Time runs downwards, and each client and the server have a column. Bars are waits and holds,
    /// arrows are messages, and faults are red. The page loads nothing, so it opens from disk and
    /// without a network.
    pub fn html(&self) -> String {
        page::render(self)
    }

    /// Writes the [page](Self::html) to the file `page`, and replaces one that exists.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn save(&self, page: &Path) -> io::Result<()> {
        std::fs::write(page, self.html())
    }

    /// Returns a line for each hold and each wait that is open at the end of the run.
    pub(crate) fn unfinished(&self) -> Vec<String> {
        let spans = spans::spans(self);
        let open = spans.iter().filter(|span| span.end == SpanEnd::Open);
        open.map(|span| {
            let verb = if span.is_hold() { "holds" } else { "waits for" };
            let (client, key, number) = (&span.client, &span.key, span.sequence);
            let since = span.from.as_secs_f64();
            format!("{client} {verb} {key:?} (#{number}) since {since:.3} s")
        })
        .collect()
    }
}

//! The run in the JSON trace event format, for Perfetto and chrome://tracing.
//!
//! The format is described in "Trace Event Format" by Nat Duca and Dan Sinclair. `M` names
//! processes and threads, `X` is a slice, `i` is an instant, and `s` and `f` are the two ends of an
//! arrow. An end binds to the slice around its time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use leasehold_api::bounds::CALL_TIMEOUT;

use crate::history::data::{History, first_free};
use crate::history::json::Quoted;
use crate::history::spans::{Span, absences, spans};
use crate::history::words::{describe, describe_notification, name};
use crate::record::{Content, Entry, Event, Fate, Message};

const SERVER: usize = 1;

/// The first thread of each kind in a process. Slices that overlap go to the next thread, which has
/// the same name.
const EVENTS: usize = 1;
const LOCKS: usize = 10;
const CALLS: usize = 100;

pub(crate) fn render(history: &History) -> String {
    let mut out = Output {
        json: String::from("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"),
        columns: history.columns(),
        lanes: BTreeMap::new(),
        first: true,
    };
    out.process(SERVER, "server");
    for (index, client) in history.columns().iter().enumerate() {
        out.process(pid(index), client);
    }
    for span in spans(history) {
        out.span(&span);
    }
    for absence in absences(history) {
        let pid = out.pid_of(absence.client.as_deref());
        let (from, to) = (absence.from, absence.to);
        out.slice((pid, LOCKS, "locks"), (from, to), absence.kind.name(), "");
    }
    for entry in &history.entries {
        out.entry(entry);
    }
    let (ends, texts) = (call_ends(history), message_texts(history));
    for message in &history.messages {
        let text = texts.get(&message.number).map_or("", String::as_str);
        out.message(message, text, &ends);
    }
    out.json.push_str("\n]}\n");
    out.json
}

const fn pid(column: usize) -> usize {
    SERVER + 1 + column
}

/// Returns when each call ended for its caller, by the number of its request.
fn call_ends(history: &History) -> BTreeMap<u64, Duration> {
    let mut ends = BTreeMap::new();
    let end = history.end();
    for message in &history.messages {
        match (message.content, message.fate) {
            (Content::Request { again: false, .. }, _) => {
                let last = message.sent.saturating_add(CALL_TIMEOUT).min(end);
                ends.insert(message.number, last.max(message.sent));
            }
            (Content::Reply { to, .. }, Fate::Arrived(at)) => {
                ends.insert(to, at);
            }
            _ => {}
        }
    }
    ends
}

struct Output {
    json: String,
    /// The clients. Each is a process.
    columns: Vec<Arc<str>>,
    /// The end of the last slice on each thread, by process and kind. Slices on a thread must not
    /// overlap.
    lanes: BTreeMap<(usize, usize), Vec<Duration>>,
    first: bool,
}

impl Output {
    /// Adds an event. `rest` has its other members, each with a comma before it.
    fn event(&mut self, phase: &str, (pid, tid): (usize, usize), rest: &str) {
        let comma = if std::mem::take(&mut self.first) {
            ""
        } else {
            ",\n"
        };
        // Writing to a string cannot fail.
        let _ = write!(
            self.json,
            "{comma}{{\"ph\":\"{phase}\",\"pid\":{pid},\"tid\":{tid}{rest}}}"
        );
    }

    /// Returns the process of a client, or of the server.
    fn pid_of(&self, client: Option<&str>) -> usize {
        let Some(client) = client else {
            return SERVER;
        };
        let column = self.columns.iter().position(|name| **name == *client);
        pid(column.unwrap_or(self.columns.len()))
    }

    fn process(&mut self, pid: usize, name: &str) {
        let name = Quoted(name);
        let args = format!(",\"name\":\"process_name\",\"args\":{{\"name\":{name}}}");
        self.event("M", (pid, 0), &args);
        let order = format!(",\"name\":\"process_sort_index\",\"args\":{{\"sort_index\":{pid}}}");
        self.event("M", (pid, 0), &order);
    }

    /// Adds a slice to the first free thread of its kind, and returns the thread.
    fn slice(
        &mut self,
        (pid, base, track): (usize, usize, &str),
        (from, to): (Duration, Duration),
        name: &str,
        what: &str,
    ) -> usize {
        let to = to.max(from + Duration::from_micros(1));
        let lanes = self.lanes.entry((pid, base)).or_default();
        let lane = first_free(lanes, from);
        let new = lanes[lane] == Duration::ZERO;
        lanes[lane] = to;
        let tid = base + lane;
        if new {
            let args = format!(",\"name\":\"thread_name\",\"args\":{{\"name\":\"{track}\"}}");
            self.event("M", (pid, tid), &args);
        }
        let (ts, dur) = (from.as_micros(), (to - from).as_micros());
        let (name, what) = (Quoted(name), Quoted(what));
        let slice =
            format!(",\"ts\":{ts},\"dur\":{dur},\"name\":{name},\"args\":{{\"what\":{what}}}");
        self.event("X", (pid, tid), &slice);
        tid
    }

    fn instant(&mut self, pid: usize, at: Duration, name: &str) {
        let (ts, name) = (at.as_micros(), Quoted(name));
        let instant = format!(",\"ts\":{ts},\"s\":\"t\",\"name\":{name}");
        self.event("i", (pid, EVENTS), &instant);
    }

    fn arrow(&mut self, id: u64, from: (usize, usize, Duration), to: (usize, usize, Duration)) {
        let (pid, tid, at) = from;
        let ts = at.as_micros();
        let common = format!(",\"id\":{id},\"cat\":\"message\",\"name\":\"message\"");
        self.event("s", (pid, tid), &format!(",\"ts\":{ts}{common}"));
        let (pid, tid, at) = to;
        let ts = at.as_micros();
        let end = format!(",\"ts\":{ts},\"bp\":\"e\"{common}");
        self.event("f", (pid, tid), &end);
    }

    fn span(&mut self, span: &Span) {
        let (key, number) = (&span.key, span.sequence);
        let (name, what) = match span.token {
            Some(token) => (
                format!("holds {key:?} #{number}"),
                format!("{:?}, token {token}, {:?}", span.mode, span.end),
            ),
            None => (
                format!("waits for {key:?} #{number}"),
                format!("{:?}, {:?}", span.mode, span.end),
            ),
        };
        let pid = self.pid_of(Some(&span.client));
        self.slice((pid, LOCKS, "locks"), (span.from, span.to), &name, &what);
    }

    fn entry(&mut self, entry: &Entry) {
        let pid = self.pid_of(entry.client.as_deref());
        match &entry.event {
            // The messages of these events have slices.
            Event::Executed { .. } | Event::Hello { .. } | Event::Notified { .. } => {}
            event => self.instant(pid, entry.at, &describe(event).to_string()),
        }
    }

    /// Adds a message as slices at its ends, with an arrow between them.
    fn message(&mut self, message: &Message, what: &str, ends: &BTreeMap<u64, Duration>) {
        let client = self.pid_of(Some(&message.client));
        match message.content {
            Content::Request { call, again } => {
                let end = ends.get(&message.number).copied().unwrap_or(message.sent);
                let name = if again { "sent again" } else { name(call) };
                let caller = self.slice((client, CALLS, "calls"), (message.sent, end), name, what);
                if let Fate::Arrived(at) = message.fate {
                    let of = format!("{} {name}", message.client);
                    let server = self.slice((SERVER, CALLS, "commands"), (at, at), &of, what);
                    let from = (client, caller, message.sent);
                    self.arrow(message.number, from, (SERVER, server, at));
                }
            }
            Content::Push { notification, .. } => {
                let name = describe_notification(&notification).to_string();
                let to = format!("{} {name}", message.client);
                let sent = message.sent;
                let server = self.slice((SERVER, LOCKS, "pushes"), (sent, sent), &to, "");
                if let Fate::Arrived(at) = message.fate {
                    let subscriber = self.slice((client, CALLS, "calls"), (at, at), &name, "");
                    let from = (SERVER, server, sent);
                    self.arrow(message.number, from, (client, subscriber, at));
                }
            }
            Content::Reply { .. } | Content::Unlisten => {}
        }
    }
}

/// Returns the text of the log entries that each message caused.
fn message_texts(history: &History) -> BTreeMap<u64, String> {
    let mut texts: BTreeMap<u64, String> = BTreeMap::new();
    for entry in &history.entries {
        if let Some(message) = entry.message {
            let text = texts.entry(message).or_default();
            let separator = if text.is_empty() { "" } else { "; " };
            // Writing to a string cannot fail.
            let _ = write!(text, "{separator}{}", describe(&entry.event));
        }
    }
    texts
}

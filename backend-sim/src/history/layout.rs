//! The positions of all elements on the page.
//!
//! The picture has one row for each entry of the log, with room for its text. Time runs downwards,
//! not to scale: an hour without events is hardly higher than a second. The overview above the
//! picture is to scale.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::history::data::{History, ended_at, first_free};
use crate::history::spans::{Absence, Span, absences, spans};
use crate::record::{Content, Event, Fate, Message};

/// The height of a row. All lengths are in CSS pixels.
pub(crate) const ROW: i32 = 18;
/// The height of an instant that has messages but no log entries.
const SMALL_ROW: i32 = 10;
const TOP: i32 = 14;
pub(crate) const TIME_WIDTH: i32 = 84;
const COLUMN: i32 = 118;
/// The distance between bars of one client that overlap in time.
const BAR_STEP: i32 = 11;
/// The maximum distance between two instants.
const LONGEST_GAP: i32 = 40;

/// An instant, and the positions of its first and last row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instant {
    pub(crate) at: Duration,
    pub(crate) first: i32,
    pub(crate) last: i32,
    pub(crate) rows: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrow {
    pub(crate) from: (i32, i32),
    pub(crate) to: (i32, i32),
}

#[derive(Debug)]
pub(crate) struct Bar {
    pub(crate) span: Span,
    pub(crate) x: i32,
    pub(crate) top: i32,
    pub(crate) bottom: i32,
}

#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) columns: Vec<Arc<str>>,
    pub(crate) instants: Vec<Instant>,
    /// The vertical position of each entry's row.
    pub(crate) rows: Vec<i32>,
    /// The first entry that each message caused.
    brought: BTreeMap<u64, usize>,
    /// The entries about faults of each message.
    faults: BTreeMap<u64, Vec<usize>>,
    pub(crate) spans: Vec<Span>,
    pub(crate) absences: Vec<Absence>,
    pub(crate) height: i32,
}

impl Layout {
    pub(crate) fn new(history: &History) -> Self {
        let (spans, absences) = (spans(history), absences(history));
        let mut layout = Self {
            columns: history.columns(),
            instants: Vec::new(),
            rows: Vec::new(),
            brought: BTreeMap::new(),
            faults: BTreeMap::new(),
            height: 0,
            spans,
            absences,
        };
        for (index, entry) in history.entries.iter().enumerate() {
            if let Some(message) = entry.message {
                layout.brought.entry(message).or_insert(index);
                if is_fault(&entry.event) {
                    layout.faults.entry(message).or_default().push(index);
                }
            }
        }
        layout.position(history);
        layout
    }

    fn position(&mut self, history: &History) {
        let mut instants: BTreeMap<Duration, usize> = BTreeMap::new();
        for message in &history.messages {
            instants.entry(message.sent).or_default();
            ended_at(message.fate).map(|at| *instants.entry(at).or_default());
        }
        for span in &self.spans {
            instants.entry(span.from).or_default();
            instants.entry(span.to).or_default();
        }
        for entry in &history.entries {
            *instants.entry(entry.at).or_default() += 1;
        }
        let mut y = TOP;
        let mut before = None;
        for (at, rows) in instants {
            y += before.map_or(0, |before| gap(at - before));
            let first = y;
            for _ in 0..rows {
                self.rows.push(y + ROW / 2);
                y += ROW;
            }
            let (first, last) = match rows {
                0 => (first + SMALL_ROW / 2, first + SMALL_ROW / 2),
                _ => (first + ROW / 2, y - ROW / 2),
            };
            y += if rows == 0 { SMALL_ROW } else { 0 };
            self.instants.push(Instant {
                at,
                first,
                last,
                rows,
            });
            before = Some(at);
        }
        self.height = y + TOP;
    }

    /// Returns the horizontal position of a client's column, or of the server's. The server is in
    /// the middle, so that arrows are short.
    pub(crate) fn x(&self, client: Option<&str>) -> i32 {
        let middle = self.columns.len().div_ceil(2);
        let column = client.and_then(|name| self.columns.iter().position(|c| **c == *name));
        let position = column.map_or(middle, |at| if at < middle { at } else { at + 1 });
        TIME_WIDTH + COLUMN / 2 + COLUMN * i32::try_from(position).unwrap_or(0)
    }

    /// Returns the horizontal position of the descriptions.
    pub(crate) fn text_x(&self) -> i32 {
        TIME_WIDTH + COLUMN * i32::try_from(self.columns.len() + 1).unwrap_or(1) + 12
    }

    pub(crate) fn instant(&self, at: Duration) -> Instant {
        let index = self.instants.partition_point(|instant| instant.at < at);
        let found = self.instants.get(index).or(self.instants.last());
        *found.expect("what asks for an instant has entries, messages or spans, and so instants")
    }

    /// Returns the entries about faults of a message.
    pub(crate) fn faults(&self, message: u64) -> &[usize] {
        self.faults.get(&message).map_or(&[], Vec::as_slice)
    }

    fn brought(&self, message: u64) -> Option<i32> {
        self.brought.get(&message).map(|&index| self.rows[index])
    }

    pub(crate) fn arrow(&self, message: &Message) -> Arrow {
        let (client, server) = (self.x(Some(&message.client)), self.x(None));
        let sent = self.instant(message.sent);
        let met = ended_at(message.fate).map(|at| self.instant(at));
        let below =
            |y: i32| met.map_or(y + ROW, |met| if met.at > sent.at { met.first } else { y });
        let (from_y, to_y) = match message.content {
            Content::Request { .. } => {
                let arrived = matches!(message.fate, Fate::Arrived(_));
                let row = self.brought(message.number).filter(|_| arrived);
                let to = row.unwrap_or_else(|| below(sent.last));
                let at_once = met.is_some_and(|met| met.at == sent.at);
                (if at_once { to } else { sent.last }, to - 3)
            }
            Content::Reply { to, .. } => {
                let from = self.brought(to).unwrap_or(sent.first);
                (from + 3, below(from + 3))
            }
            Content::Push { cause, .. } => {
                let cause = cause.and_then(|cause| self.brought(cause));
                let from = cause.unwrap_or(sent.last);
                let row = self.brought(message.number);
                (from + 3, row.unwrap_or_else(|| below(from + 3)))
            }
            Content::Unlisten => (sent.last, below(sent.last)),
        };
        let (from_x, to_x) = match message.content.is_to_server() {
            true => (client, server),
            false => (server, client),
        };
        Arrow {
            from: (from_x, from_y),
            to: (to_x, to_y),
        }
    }

    /// Returns the spans as bars. Overlapping bars of one client are side by side.
    pub(crate) fn bars(&self) -> Vec<Bar> {
        let mut ends: BTreeMap<Arc<str>, Vec<Duration>> = BTreeMap::new();
        let mut bars = Vec::new();
        for span in &self.spans {
            let lanes = ends.entry(Arc::clone(&span.client)).or_default();
            let lane = first_free(lanes, span.from);
            lanes[lane] = span.to;
            // Alternates between the left and the right of the client's line, further out each
            // time.
            let side = i32::try_from(lane.div_ceil(2)).unwrap_or(0) * BAR_STEP;
            let side = if lane.is_multiple_of(2) { -side } else { side };
            let (from, to) = span.rows;
            let top = from.map_or(self.instant(span.from).last, |row| self.rows[row]);
            let bottom = to.map_or(self.instant(span.to).first, |row| self.rows[row]);
            bars.push(Bar {
                x: self.x(Some(&span.client)) + side,
                top,
                bottom: bottom.max(top + 4),
                span: span.clone(),
            });
        }
        bars
    }
}

/// Returns whether an event is a fault of a message.
pub(crate) const fn is_fault(event: &Event) -> bool {
    matches!(event, Event::Fault { .. } | Event::Undelivered { .. })
}

/// Returns the height of an interval without events, which grows with its logarithm.
fn gap(time: Duration) -> i32 {
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let bits = 64 - ms.leading_zeros();
    i32::try_from(bits).map_or(LONGEST_GAP, |bits| (bits * 4 - 4).clamp(0, LONGEST_GAP))
}

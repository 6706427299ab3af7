//! The run as text.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use crate::history::data::History;
use crate::history::spans::{Absence, AbsenceKind, Span, absences, spans};
use crate::history::words::describe;

/// A client's column is as wide as its name, up to this many characters.
const WIDEST: usize = 10;

pub(crate) fn render(history: &History) -> String {
    let columns: Vec<(Arc<str>, String)> = history
        .columns()
        .into_iter()
        .map(|name| (Arc::clone(&name), shorten(&name)))
        .collect();
    let (spans, absences) = (spans(history), absences(history));
    let mut text = String::new();
    if history.dropped > 0 {
        let _ = writeln!(text, "({} earlier entries were dropped)", history.dropped);
    }
    if history.entries.is_empty() {
        return text;
    }
    // Writing to a string cannot fail.
    let _ = write!(text, "{:>10}  ", "s");
    for (_, heading) in &columns {
        let _ = write!(text, "{heading}  ");
    }
    let _ = writeln!(text, "server");
    for (row, entry) in history.entries.iter().enumerate() {
        let _ = write!(text, "{:>10.3}  ", entry.at.as_secs_f64());
        for (name, heading) in &columns {
            let symbol = if entry.client.as_ref() == Some(name) {
                '*'
            } else {
                ' '
            };
            let state = state(name, (row, entry.at), &spans, &absences);
            let width = heading.chars().count().saturating_sub(1);
            let _ = write!(text, "{state}{symbol:<width$}  ");
        }
        let symbol = if entry.client.is_none() { '*' } else { ' ' };
        let _ = writeln!(text, "{symbol:<6}  {}", describe(&entry.event));
    }
    text
}

/// Returns a heading of 2 to [`WIDEST`] characters, without control characters.
fn shorten(name: &str) -> String {
    let mut heading: String = name
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .take(WIDEST)
        .collect();
    while heading.chars().count() < 2 {
        heading.push(' ');
    }
    heading
}

/// Returns the symbol for a client's state at a time.
fn state(
    name: &Arc<str>,
    (row, at): (usize, Duration),
    spans: &[Span],
    absences: &[Absence],
) -> char {
    let kinds = absences
        .iter()
        .filter(|absence| absence.client.as_ref() == Some(name))
        .filter(|absence| absence.from <= at && at < absence.to)
        .map(|absence| absence.kind);
    for kind in kinds {
        match kind {
            AbsenceKind::Paused => return 'z',
            AbsenceKind::Dead => return 'x',
            AbsenceKind::Isolated => {}
        }
    }
    let mine = spans
        .iter()
        .filter(|span| span.client == *name && span.covers(row, at));
    let strength = |span: &Span| match (span.is_hold(), span.is_exclusive()) {
        (true, true) => (3, '#'),
        (true, false) => (2, '='),
        (false, _) => (1, '?'),
    };
    mine.map(strength).max().map_or('.', |(_, glyph)| glyph)
}

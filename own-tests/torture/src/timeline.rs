//! A violation as a self-contained HTML page: time runs downwards, each client and the servers have a column. It looks
//! like the pages of the simulator, and has their style sheet.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::history::{Answer, Call, Entry, Fault, History, Operation};

const STYLE: &str = include_str!("../../../backend-sim/src/history/page.css");
/// The page contains everything that it needs, so it may load nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
/// The hatching of faults. It must be once on a page that has drawings.
pub(crate) const HATCH: &str = "<defs><pattern id=\"hatch\" width=\"6\" height=\"6\" patternTransform=\"rotate(45)\" \
    patternUnits=\"userSpaceOnUse\"><path d=\"M0 0V6\" stroke=\"#b97a00\" stroke-width=\"1.6\" opacity=\".45\"/></pattern></defs>";
/// Sizes in CSS pixels: the column of times, a column, a row, half a bar, and a character.
const TIMES: usize = 100;
const COLUMN: usize = 110;
const ROW: usize = 22;
const HALF_BAR: usize = 5;
const CHARACTER: usize = 8;
/// The kinds of holds have so many colours.
const COLOURS: usize = 6;

/// Something that happened at one moment.
struct Row {
    at: u64,
    /// The client, or the servers.
    client: Option<usize>,
    text: String,
    is_fault: bool,
}

/// What a page of drawings says about them.
pub(crate) const LEGEND: &str = "Times are the controller's, in seconds since the run began. A full bar is a lock that the \
    client certainly held, a dashed one is a call that waited, a hatched one is a fault while it lasted.";

/// Writes the page.
pub(crate) fn page(history: &History, verdict: &str) -> String {
    let about = &history.about;
    let title = format!("{} on {}", about.subject, about.topology);
    let body = format!(
        "<h1>{}</h1>\n<p class=\"sum\">{}, {}, seed {}. {LEGEND}</p>\n\
         <div class=\"verdict\">{}</div>\n<svg width=\"0\" height=\"0\">{HATCH}</svg>\n{}",
        escaped(&title),
        escaped(&about.version),
        escaped(&about.server),
        about.seed,
        escaped(verdict),
        drawing(history)
    );
    html(&title, "", &body)
}

/// A page with this title and body, and with a style beside that of the drawings.
pub(crate) fn html(title: &str, more_style: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{}</title>\n<style>\n{STYLE}{more_style}</style>\n\
         </head>\n<body>\n{body}</body>\n</html>\n",
        escaped(title)
    )
}

/// Draws a history, for a page that has the style and the hatching.
pub(crate) fn drawing(history: &History) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = Timeline::new(history).write(&mut out, history);
    out
}

struct Timeline {
    clients: Vec<usize>,
    rows: Vec<Row>,
}

impl Timeline {
    fn new(history: &History) -> Self {
        let of_operations = history.operations().map(|it| it.client);
        let clients = of_operations.chain(history.faults().filter_map(|it| it.client));
        let clients: BTreeSet<usize> = clients.collect();
        let mut rows: Vec<Row> = history.operations().flat_map(rows_of).collect();
        rows.extend(history.faults().flat_map(rows_of_fault));
        rows.extend(history.entries.iter().filter_map(row_of_left));
        rows.sort_by_key(|row| row.at);
        Self {
            clients: clients.into_iter().collect(),
            rows,
        }
    }

    /// The middle of a column.
    fn x(&self, client: Option<usize>) -> usize {
        let column = client.and_then(|it| self.clients.iter().position(|other| *other == it));
        TIMES + column.unwrap_or(self.clients.len()) * COLUMN + COLUMN / 2
    }

    /// The middle of the first row at this time, or of the next one.
    fn y(&self, at: u64) -> usize {
        self.rows.partition_point(|row| row.at < at) * ROW + ROW / 2
    }

    fn write(&self, out: &mut String, history: &History) -> std::fmt::Result {
        let longest = self.rows.iter().map(|row| row.text.chars().count()).max();
        let width = self.x(None) + COLUMN / 2 + longest.unwrap_or(0) * CHARACTER;
        writeln!(
            out,
            "<div class=\"scroll\" style=\"min-width:{width}px\">\n<div class=\"heads\">"
        )?;
        for client in self.clients.iter().copied().map(Some).chain([None]) {
            let name = client.map_or("servers".into(), |it| format!("client {it}"));
            writeln!(out, "<b style=\"left:{}px\">{name}</b>", self.x(client))?;
        }
        let height = self.rows.len() * ROW;
        writeln!(
            out,
            "</div>\n<svg class=\"run\" width=\"{width}\" height=\"{height}\" role=\"img\">"
        )?;
        for client in self.clients.iter().copied().map(Some).chain([None]) {
            writeln!(
                out,
                "<path class=\"life\" d=\"M{} 0V{height}\"/>",
                self.x(client)
            )?;
        }
        history
            .faults()
            .try_for_each(|fault| self.absence(out, fault))?;
        history
            .operations()
            .try_for_each(|it| self.bars(out, history, it))?;
        self.rows
            .iter()
            .zip(0..)
            .try_for_each(|(row, number)| self.row(out, row, number))?;
        writeln!(out, "</svg>\n</div>")
    }

    fn absence(&self, out: &mut String, fault: &Fault) -> std::fmt::Result {
        let (x, top, bottom) = (
            self.x(fault.client) - 18,
            self.y(fault.from),
            self.y(fault.until),
        );
        let height = bottom.saturating_sub(top).max(4);
        writeln!(
            out,
            "<g class=\"gone\"><rect x=\"{x}\" y=\"{top}\" width=\"36\" height=\"{height}\"/></g>"
        )
    }

    /// The wait of an acquire, and its hold.
    fn bars(&self, out: &mut String, history: &History, acquire: &Operation) -> std::fmt::Result {
        let (Call::Acquire { .. }, Some(got)) = (acquire.call, acquire.completed) else {
            return Ok(());
        };
        self.bar(out, acquire.client, "wait", (acquire.invoked, got))?;
        let still_held = |it: &&Operation| {
            it.hold == acquire.hold
                && it.call == Call::Check
                && matches!(it.answer, Answer::Held { .. })
        };
        let until = history
            .operations()
            .filter(still_held)
            .map(|it| it.invoked)
            .max();
        match until.filter(|_| matches!(acquire.answer, Answer::Held { .. })) {
            Some(until) => self.bar(out, acquire.client, "hold", (got, until)),
            None => Ok(()),
        }
    }

    fn bar(
        &self,
        out: &mut String,
        client: usize,
        class: &str,
        (from, to): (u64, u64),
    ) -> std::fmt::Result {
        let (x, top, bottom) = (self.x(Some(client)) - HALF_BAR, self.y(from), self.y(to));
        let (wide, height, colour) = (
            2 * HALF_BAR,
            bottom.saturating_sub(top).max(2),
            client % COLOURS,
        );
        writeln!(
            out,
            "<g class=\"bar k{colour}\"><rect class=\"{class}\" x=\"{x}\" y=\"{top}\" width=\"{wide}\" height=\"{height}\"/></g>"
        )
    }

    fn row(&self, out: &mut String, row: &Row, number: usize) -> std::fmt::Result {
        let (x, y) = (self.x(row.client), number * ROW + ROW / 2);
        let (text_y, text_x) = (y + 4, self.x(None) + COLUMN / 2);
        let class = if row.is_fault { "row fault" } else { "row" };
        let at = match row.at {
            u64::MAX => "the end".into(),
            at => format!("{}.{:06}", at / 1_000_000, at % 1_000_000),
        };
        writeln!(
            out,
            "<g class=\"{class}\"><text class=\"at\" x=\"{}\" y=\"{text_y}\">{at}</text><circle class=\"dot\" cx=\"{x}\" \
             cy=\"{y}\" r=\"3\"/><text class=\"what\" x=\"{text_x}\" y=\"{text_y}\">{}</text></g>",
            TIMES - 12,
            escaped(&row.text)
        )
    }
}

/// The question of an acquire, and the answer to every call.
fn rows_of(operation: &Operation) -> Vec<Row> {
    let (client, key, call) = (operation.client, &operation.key, operation.call);
    let row = |at, text| Row {
        at,
        client: Some(client),
        text,
        is_fault: false,
    };
    let asks = matches!(call, Call::Acquire { .. }).then(|| {
        let text = format!("client {client}: {call} `{key}`");
        row(operation.invoked, text)
    });
    let text = format!("client {client}: {call} `{key}`: {}", operation.answer);
    let answered = match call {
        // What was certain when the question was asked.
        Call::Check => operation.invoked,
        _ => operation.completed.unwrap_or(operation.invoked),
    };
    asks.into_iter().chain([row(answered, text)]).collect()
}

fn rows_of_fault(fault: &Fault) -> [Row; 2] {
    let name = match fault.client {
        Some(client) => format!("{} {client}", fault.kind),
        None => fault.kind.clone(),
    };
    let row = |at, text| Row {
        at,
        client: fault.client,
        text,
        is_fault: true,
    };
    let breaks = fault
        .breaks
        .map_or(String::new(), |it| format!(" (breaks {it:?})"));
    [
        row(fault.from, format!("nemesis: {name}{breaks}")),
        row(fault.until, format!("nemesis: {name} is over")),
    ]
}

fn row_of_left(entry: &Entry) -> Option<Row> {
    let Entry::Left { what } = entry else {
        return None;
    };
    Some(Row {
        at: u64::MAX,
        client: None,
        text: what.clone(),
        is_fault: true,
    })
}

/// Text for HTML, inside or outside of quotes. What a library has said may be in it.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // They could hide or reverse what follows.
            c if c.is_control()
                || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
            {
                out.push('\u{fffd}');
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::About;

    #[test]
    fn page_shows_holds_and_faults_and_escapes_what_a_library_says() {
        let operation = |call, answer, invoked| {
            Entry::Operation(Operation {
                client: 3,
                hold: 1,
                key: "one".into(),
                call,
                invoked,
                completed: Some(invoked + 1_000),
                answer,
            })
        };
        let acquire = Call::Acquire {
            mode: crate::protocol::Mode::Mutex,
            wait_ms: 5,
        };
        let stop = Fault {
            kind: "stop client".into(),
            client: Some(3),
            from: 15_000,
            until: 18_000,
            delays: false,
            breaks: None,
        };
        let history = History {
            about: About::default(),
            entries: vec![
                operation(acquire, Answer::Held { token: Some(7) }, 10_000),
                operation(Call::Check, Answer::Held { token: None }, 20_000),
                operation(Call::Release, Answer::Error("<script>".into()), 30_000),
                Entry::Fault(stop),
            ],
        };
        let page = page(&history, "two holders");
        assert_eq!(page.matches("rect class=\"hold\"").count(), 1, "{page}");
        assert_eq!(page.matches("rect class=\"wait\"").count(), 1, "{page}");
        assert_eq!(page.matches("class=\"gone\"").count(), 1, "{page}");
        assert_eq!(page.matches("<g class=\"row").count(), 6, "{page}");
        assert!(page.contains("error: &lt;script&gt;"), "{page}");
        assert!(!page.contains("<script>"), "{page}");
    }
}

//! A violation as a self-contained HTML page: time runs downwards, each client and the servers have a column. It looks
//! like the pages of the simulator, and has their style sheet.

use std::collections::BTreeSet;

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
    let of_operations = history.operations().map(|it| it.client);
    let clients = of_operations.chain(history.faults().filter_map(|it| it.client));
    let clients: BTreeSet<usize> = clients.collect();
    let mut rows: Vec<Row> = history.entries.iter().flat_map(rows_of).collect();
    rows.sort_by_key(|row| row.at);
    Timeline {
        clients: clients.into_iter().collect(),
        rows,
    }
    .draw(history)
}

struct Timeline {
    clients: Vec<usize>,
    rows: Vec<Row>,
}

impl Timeline {
    /// The middle of a column.
    fn x(&self, client: Option<usize>) -> usize {
        let column = client.and_then(|it| self.clients.iter().position(|other| *other == it));
        TIMES + column.unwrap_or(self.clients.len()) * COLUMN + COLUMN / 2
    }

    /// The middle of the first row at this time, or of the next one.
    fn y(&self, at: u64) -> usize {
        self.rows.partition_point(|row| row.at < at) * ROW + ROW / 2
    }

    fn draw(&self, history: &History) -> String {
        let longest = self.rows.iter().map(|row| row.text.chars().count()).max();
        let width = self.x(None) + COLUMN / 2 + longest.unwrap_or(0) * CHARACTER;
        let height = self.rows.len() * ROW;
        let (mut heads, mut drawn) = (String::new(), String::new());
        for client in self.clients.iter().copied().map(Some).chain([None]) {
            let (x, name) = (self.x(client), client.map(|it| format!("client {it}")));
            let name = name.unwrap_or_else(|| "servers".into());
            heads += &format!("<b style=\"left:{x}px\">{name}</b>\n");
            drawn += &format!("<path class=\"life\" d=\"M{x} 0V{height}\"/>\n");
        }
        drawn.extend(history.faults().map(|fault| self.absence(fault)));
        drawn.extend(history.operations().map(|it| self.bars(history, it)));
        drawn.extend(
            self.rows
                .iter()
                .zip(0..)
                .map(|(row, number)| self.row(row, number)),
        );
        format!(
            "<div class=\"scroll\" style=\"min-width:{width}px\">\n<div class=\"heads\">\n{heads}</div>\n\
             <svg class=\"run\" width=\"{width}\" height=\"{height}\" role=\"img\">\n{drawn}</svg>\n</div>\n"
        )
    }

    fn absence(&self, fault: &Fault) -> String {
        let (x, top) = (self.x(fault.client) - 18, self.y(fault.from));
        let height = self.y(fault.until).saturating_sub(top).max(4);
        format!(
            "<g class=\"gone\"><rect x=\"{x}\" y=\"{top}\" width=\"36\" height=\"{height}\"/></g>\n"
        )
    }

    /// The wait of an acquire, and its hold.
    fn bars(&self, history: &History, acquire: &Operation) -> String {
        let (Call::Acquire { .. }, Some(got)) = (acquire.call, acquire.completed) else {
            return String::new();
        };
        let mut bars = self.bar(acquire.client, "wait", (acquire.invoked, got));
        let still_held = |it: &&Operation| {
            let held = matches!(it.answer, Answer::Held { .. });
            it.hold == acquire.hold && it.call == Call::Check && held
        };
        let checks = history.operations().filter(still_held);
        if let (Some(until), Answer::Held { .. }) =
            (checks.map(|it| it.invoked).max(), &acquire.answer)
        {
            bars += &self.bar(acquire.client, "hold", (got, until));
        }
        bars
    }

    fn bar(&self, client: usize, class: &str, (from, to): (u64, u64)) -> String {
        let (x, top, wide) = (self.x(Some(client)) - HALF_BAR, self.y(from), 2 * HALF_BAR);
        let (height, colour) = (self.y(to).saturating_sub(top).max(2), client % COLOURS);
        format!(
            "<g class=\"bar k{colour}\"><rect class=\"{class}\" x=\"{x}\" y=\"{top}\" width=\"{wide}\" height=\"{height}\"/></g>\n"
        )
    }

    fn row(&self, row: &Row, number: usize) -> String {
        let (x, y) = (self.x(row.client), number * ROW + ROW / 2);
        let (text_y, text_x) = (y + 4, self.x(None) + COLUMN / 2);
        let class = if row.is_fault { "row fault" } else { "row" };
        let at = match row.at {
            u64::MAX => "the end".into(),
            at => format!("{}.{:06}", at / 1_000_000, at % 1_000_000),
        };
        format!(
            "<g class=\"{class}\"><text class=\"at\" x=\"{}\" y=\"{text_y}\">{at}</text><circle class=\"dot\" cx=\"{x}\" \
             cy=\"{y}\" r=\"3\"/><text class=\"what\" x=\"{text_x}\" y=\"{text_y}\">{}</text></g>\n",
            TIMES - 12,
            escaped(&row.text)
        )
    }
}

/// The question of an acquire, and the answer to every call. The beginning and the end of a fault.
fn rows_of(entry: &Entry) -> Vec<Row> {
    let row = |at, client, text| Row {
        at,
        client,
        text,
        is_fault: !matches!(entry, Entry::Operation(_)),
    };
    match entry {
        Entry::Operation(it) => {
            let asked = format!("client {}: {} `{}`", it.client, it.call, it.key);
            let answered = format!("{asked}: {}", it.answer);
            // What is certain after a check was so when the question was asked.
            let at = match it.call {
                Call::Check => it.invoked,
                _ => it.ended(),
            };
            let is_acquire = matches!(it.call, Call::Acquire { .. });
            let asked = is_acquire.then(|| row(it.invoked, Some(it.client), asked));
            let answered = row(at, Some(it.client), answered);
            asked.into_iter().chain([answered]).collect()
        }
        Entry::Fault(it) => {
            let name = it.shown();
            let breaks = it.breaks.map(|it| format!(" (breaks {it:?})"));
            let begins = format!("{name}{}", breaks.unwrap_or_default());
            vec![
                row(it.from, it.client, begins),
                row(it.until, it.client, format!("{name} is over")),
            ]
        }
        Entry::Left { what } => vec![row(u64::MAX, None, what.clone())],
    }
}

/// Text for HTML, inside or outside of quotes. What a library has said may be in it.
pub(crate) fn escaped(text: &str) -> String {
    let escapes = [
        ('&', "&amp;"),
        ('<', "&lt;"),
        ('>', "&gt;"),
        ('"', "&quot;"),
    ];
    escapes
        .into_iter()
        .fold(visible(text), |text, (c, escape)| text.replace(c, escape))
}

/// A text without characters that could hide or reverse what follows.
pub(crate) fn visible(text: &str) -> String {
    let hides =
        |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.replace(hides, "\u{fffd}")
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

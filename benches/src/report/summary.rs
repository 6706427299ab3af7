//! The report as Markdown.

use std::fmt::Write;

use crate::figures::Effort;
use crate::report::{Figure, Report};
use crate::{PEERS, Result};

const BEGIN: &str = "<!-- the report begins -->";
const END: &str = "<!-- the report ends -->";

/// The whole summary.
pub(super) fn of(report: &Report) -> String {
    let mut out = conditions(report);
    for fault in &report.faults {
        let _ = writeln!(out, "**Failed:** {fault}\n");
    }
    let clients: Vec<_> = report.clients().collect();
    table(&mut out, &rows(report), &clients);
    out
}

/// The part for users: leasehold next to other libraries.
pub(super) fn for_users(report: &Report) -> String {
    let mut out = conditions(report);
    let clients: Vec<_> = report.clients().collect();
    free_locks(report, &clients, &mut out);
    contended_lock(report, &mut out);
    out
}

fn free_locks(report: &Report, clients: &[&str], out: &mut String) {
    let ratio = |name: &str, client: &str| {
        let ratio = report.ratio(name, client);
        ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"))
    };
    let ours = clients
        .iter()
        .map(|client| format!("leasehold on {client}"));
    let names = ours.chain(PEERS.map(str::to_owned));
    *out += "### A free lock\n\n";
    head(out, "÷ the raw client", names);
    let mut add = |words: &str, own: &str, peer: &str| {
        let own = clients.iter().map(|client| ratio(own, client));
        let peers = PEERS.map(|name| ratio(&format!("peer.{name}.{peer}"), "peer"));
        row(out, words, own.chain(peers));
    };
    let words = "time of a pair, one at a time (lower is better)";
    add(words, "sequential.p50", "sequential.p50");
    for tasks in [1, 16, 64, 256] {
        let words = match tasks {
            1 => "pairs/s of 1 task (higher is better)".into(),
            _ => format!("pairs/s of {tasks} tasks"),
        };
        let peer = format!("distinct_keys.{tasks}");
        add(&words, &format!("distinct_keys.{tasks}"), &peer);
    }
}

/// The table about a contended lock, if it was measured.
fn contended_lock(report: &Report, out: &mut String) {
    let value =
        |name: &str, figure: &str| report.value(&format!("peer.{name}.steady.{figure}"), "peer");
    if value(CONTENDED[0].1, "wait_p99").is_none() {
        return;
    }
    *out += "\n### A contended lock\n\n";
    head(out, "", CONTENDED.map(|(words, _)| words.to_owned()));
    for (words, figure) in STEADY {
        let cells = CONTENDED.map(|(_, name)| value(name, figure).map_or_else(String::new, number));
        row(out, words, cells);
    }
}

/// The first line of a table, and the one below it.
fn head(out: &mut String, first: &str, names: impl IntoIterator<Item = String>) {
    let names: Vec<String> = names.into_iter().collect();
    let count = 1 + names.len();
    row(out, first, names);
    let _ = writeln!(out, "|{}", "---|".repeat(count));
}

fn row(out: &mut String, first: &str, cells: impl IntoIterator<Item = String>) {
    // The corner of a table may be empty.
    let space = if first.is_empty() { "" } else { " " };
    let _ = write!(out, "|{space}{first} |");
    for cell in cells {
        let _ = write!(out, " {cell} |");
    }
    out.push('\n');
}

/// The columns about a contended lock: words, and the name in the figure.
pub(super) const CONTENDED: [(&str, &str); 3] = [
    ("leasehold", "leasehold"),
    ("rslock", "rslock"),
    ("`SET NX` every 100 ms", "by-hand"),
];

/// The rows about a contended lock: words, and the end of the figure.
const STEADY: [(&str, &str); 5] = [
    ("acquisitions per second", "rate"),
    ("wait, median, ms", "wait_p50"),
    ("wait, 99th percentile, ms", "wait_p99"),
    ("hand-over, median, ms", "hand_over_p50"),
    ("commands per acquisition", "commands"),
];

/// Where and how the figures were measured.
fn conditions(report: &Report) -> String {
    let rounds = report.plan.rounds;
    let mut out = format!(
        "{}; {}; medians of {rounds} rounds.\n\n",
        report.machine, report.server,
    );
    if report.plan.effort == Effort::Quick {
        out += "**A quick run: it only shows that the measurements work; its figures mean nothing.**\n\n";
    }
    out
}

/// Groups the figures by name, in the order of the report.
fn rows(report: &Report) -> Vec<Vec<&Figure>> {
    let mut rows: Vec<Vec<&Figure>> = Vec::new();
    for figure in &report.figures {
        let row = rows.iter_mut().find(|row| row[0].name == figure.name);
        match row {
            Some(row) => row.push(figure),
            None => rows.push(vec![figure]),
        }
    }
    rows
}

fn table(out: &mut String, rows: &[Vec<&Figure>], clients: &[&str]) {
    let names = ["unit"].into_iter().chain(clients.iter().copied());
    head(out, "figure", names.map(str::to_owned));
    for figures in rows {
        let cells = clients.iter().map(|client| {
            // A figure without a client library goes to the first column.
            let is_first = clients.first() == Some(client);
            let belongs = |it: &&&Figure| match clients.contains(&it.client) {
                true => it.client == *client,
                false => is_first,
            };
            let own = figures.iter().find(belongs);
            own.map_or(String::new(), |own| cell(own))
        });
        let cells = [figures[0].unit.to_owned()].into_iter().chain(cells);
        row(out, &format!("`{}`", figures[0].name), cells);
    }
}

fn cell(figure: &Figure) -> String {
    let mut text = number(figure.value);
    if let (Some(ratio), Some(floor)) = (figure.ratio, figure.floor) {
        let _ = write!(text, " ÷ {} = **{ratio:.2}**", number(floor));
    }
    if let Some([least, greatest]) = figure.spread {
        let _ = write!(text, " [{}, {}]", number(least), number(greatest));
    }
    text
}

/// Rounds to about three significant digits.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 || size >= 100.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else if size >= 0.1 {
        format!("{value:.2}")
    } else {
        format!("{value:.1e}")
    }
}

/// Replaces the text between the two markers of the page.
pub(super) fn between_markers(page: &str, summary: &str) -> Result<String> {
    let parts = page.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some((before, after))
    });
    let (before, after) = parts.ok_or_else(|| format!("the page lacks {BEGIN} or {END}"))?;
    Ok(format!("{before}{BEGIN}\n\n{summary}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::Library;
    use crate::report::Plan;

    #[test]
    fn number_rounds_to_three_digits() {
        let texts = [0.0, 0.012, 0.5, 12.34, 123.4, 98_765.4].map(number);
        assert_eq!(texts, ["0", "1.2e-2", "0.50", "12.3", "123", "98765"]);
    }

    #[test]
    fn between_markers_keeps_the_rest_of_the_page() {
        let page = format!("# Speed\n{BEGIN}\nold\n{END}\nmore\n");
        let changed = between_markers(&page, "new\n").expect("both markers");
        assert_eq!(changed, format!("# Speed\n{BEGIN}\n\nnew\n\n{END}\nmore\n"));
        assert_eq!(between_markers(&changed, "new\n").expect("again"), changed);
        assert!(between_markers("# Speed\n", "new\n").is_err());
    }

    #[test]
    fn page_of_the_docs_has_the_markers() {
        let page = include_str!("../../../docs/performance.md");
        assert!(between_markers(page, "new\n").is_ok());
    }

    #[test]
    fn users_see_each_library_next_to_the_raw_client() {
        let figure = |name: &str, client, value: f64, ratio| Figure {
            name: name.to_owned(),
            client,
            value,
            unit: "µs",
            floor: None,
            ratio,
            spread: None,
        };
        let mut report = Report {
            server: "Redis 7".to_owned(),
            machine: "2 cores".to_owned(),
            plan: Plan {
                rounds: 3,
                effort: Effort::Full,
                libraries: vec![Library::RedisRs],
                only: Vec::new(),
            },
            figures: vec![
                figure("sequential.p50", "redis-rs", 82.0, Some(1.48)),
                figure("peer.redis-lock.sequential.p50", "peer", 58.5, Some(1.069)),
            ],
            faults: Vec::new(),
        };
        let text = for_users(&report);
        assert!(text.contains("one at a time (lower is better) | 1.48 |  | 1.07 |  |"));
        assert!(!text.contains("A contended lock"));
        for (name, value) in [("leasehold", 26.3), ("by-hand", 810.4)] {
            let name = format!("peer.{name}.steady.wait_p99");
            report.figures.push(figure(&name, "peer", value, None));
        }
        let text = for_users(&report);
        assert!(text.contains("| wait, 99th percentile, ms | 26.3 |  | 810 |"));
    }
}

//! The chart of the README: how often each lock had two holders at once, from the results of all runs.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::checker::Promise;
use crate::report::Row;

/// The colours and letters of the project's other pictures.
const STYLE: &str = "svg{--paper:#fff;--ink:#1d2430;--faint:#6b7486;--line:#e3e7ee;--fault:#c8201e}\
    @media(prefers-color-scheme:dark){svg{--paper:#12161d;--ink:#dfe5ee;--faint:#8d97a9;--line:#262d39;--fault:#ff6b66}}\
    text{fill:var(--ink);font:12px ui-monospace,Menlo,Consolas,\"DejaVu Sans Mono\",monospace;white-space:pre}\
    .paper{fill:var(--paper)}.faint{fill:var(--faint)}.name{text-anchor:end}.zero{stroke:var(--line);stroke-width:2}\
    .bar{fill:var(--fault)}.ours{font-weight:700}";
const TITLE: &str = "Two holders at once, for 1,000 locks taken on real servers";
const ROW: usize = 22;
/// The edge of the names, the space for the bars, and the whole width.
const NAMES: usize = 230;
const BARS: f64 = 330.0;
const WIDTH: usize = 760;

/// A lock, on all its servers.
#[derive(Default)]
struct Line<'a> {
    name: &'a str,
    taken: usize,
    overlaps: usize,
}

impl Line<'_> {
    fn rate(&self) -> f64 {
        self.overlaps as f64 * 1_000.0 / self.taken.max(1) as f64
    }
}

/// The name in the chart. What is broken on purpose has none, nor have jobs and elections, which are not only locks.
fn name(subject: &str) -> Option<&str> {
    match subject.split_once('-') {
        Some(("broken" | "unmended" | "job" | "election", _)) => None,
        Some(("leasehold", _)) => Some("leasehold"),
        Some(("tutorial", _)) => Some("locks of tutorials"),
        _ => Some(subject),
    }
}

fn lines(rows: &[Row]) -> Vec<Line<'_>> {
    let mut lines: BTreeMap<&str, Line<'_>> = BTreeMap::new();
    for row in rows {
        let Some(name) = name(&row.lock) else {
            continue;
        };
        let line = lines.entry(name).or_default();
        line.name = name;
        line.taken += row.locks;
        line.overlaps += row.convicted.get(&Promise::Exclusion).copied().unwrap_or(0);
    }
    let mut lines: Vec<_> = lines.into_values().collect();
    // Those with the fewest first, and of these the one with the most evidence.
    lines.sort_by(|one, other| {
        let by_rate = one.rate().total_cmp(&other.rate());
        by_rate.then(other.taken.cmp(&one.taken))
    });
    lines
}

pub(crate) fn draw(rows: &[Row]) -> String {
    let lines = lines(rows);
    let most = lines.iter().map(Line::rate).fold(1.0, f64::max);
    let height = (lines.len() + 3) * ROW;
    let mut svg = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         role=\"img\"><title>{TITLE}</title><style>{STYLE}</style><rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n\
         <text x=\"12\" y=\"{ROW}\">{TITLE}</text>\n\
         <text class=\"faint\" x=\"12\" y=\"{}\">Their processes are killed and stopped, their connections cut. Overlaps after a server has lost data are left out.</text>\n",
        2 * ROW
    );
    for (line, number) in lines.iter().zip(2..) {
        let y = number * ROW + ROW;
        let (wide, ours) = (line.rate() / most * BARS, line.name == "leasehold");
        let class = if ours { "name ours" } else { "name" };
        let _ = writeln!(
            svg,
            "<text class=\"{class}\" x=\"{}\" y=\"{y}\">{}</text><path class=\"zero\" d=\"M{NAMES} {}v16\"/>\
             <rect class=\"bar\" x=\"{NAMES}\" y=\"{}\" width=\"{wide:.1}\" height=\"12\"/>\
             <text class=\"faint\" x=\"{:.0}\" y=\"{y}\">{:.1}, of {}</text>",
            NAMES - 10,
            line.name,
            y - 12,
            y - 10,
            NAMES as f64 + wide + 8.0,
            line.rate(),
            line.taken,
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(lock: &str, locks: usize, overlaps: usize) -> Row {
        Row {
            lock: lock.into(),
            locks,
            convicted: BTreeMap::from([(Promise::Exclusion, overlaps)]),
            ..Row::default()
        }
    }

    #[test]
    fn chart_counts_what_convicts_for_a_thousand_locks() {
        let rows = [
            row("redis-semaphore", 500, 5),
            row("leasehold-fred", 400, 0),
            row("leasehold-redis-rs", 600, 0),
            row("broken-releases-anyone", 10, 10),
        ];
        let lines = lines(&rows);
        let shown = lines.iter().map(|it| (it.name, it.taken, it.rate()));
        let shown: Vec<_> = shown.collect();
        let expected = [("leasehold", 1_000, 0.0), ("redis-semaphore", 500, 10.0)];
        assert_eq!(shown, expected);
        let svg = draw(&rows);
        let is_drawn = svg.contains("width=\"330.0\"") && svg.contains(">10.0, of 500<");
        assert!(is_drawn, "{svg}");
    }
}

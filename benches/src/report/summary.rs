//! The report as Markdown.

use std::fmt::Write;

use crate::Result;
use crate::figures::Effort;
use crate::report::{Figure, Report};

const BEGIN: &str = "<!-- the report begins -->";
const END: &str = "<!-- the report ends -->";

/// The whole summary.
pub(super) fn of(report: &Report) -> String {
    let mut out = String::new();
    let clients: Vec<&str> = report.plan.libraries.iter().map(|one| one.name()).collect();
    let rounds = report.plan.rounds;
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "{}; {}; medians of {rounds} rounds, in brackets the minimum and the maximum.\n",
        report.machine, report.server,
    );
    if report.plan.effort == Effort::Quick {
        out += "**A quick run: it only shows that the measurements work; its figures mean nothing.**\n\n";
    }
    for fault in &report.faults {
        let _ = writeln!(out, "**Failed:** {fault}\n");
    }
    let (goals, others): (Vec<_>, Vec<_>) = rows(report)
        .into_iter()
        .partition(|row| row.iter().any(|figure| figure.goal.is_some()));
    let met = goals
        .iter()
        .flatten()
        .filter(|figure| figure.met() == Some(true));
    let (met, all) = (met.count(), goals.iter().flatten().count());
    if all > 0 {
        let _ = writeln!(out, "### Goals\n\n{met} of {all} are met.\n");
        table(&mut out, &goals, &clients);
    }
    if !others.is_empty() {
        out += "\n### Without a goal\n\n";
        table(&mut out, &others, &clients);
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
    let _ = writeln!(out, "| figure | unit | goal | {} |", clients.join(" | "));
    let _ = writeln!(out, "|---|---|---|{}", "---|".repeat(clients.len()));
    for row in rows {
        let goal = row[0].goal.map_or(String::new(), |goal| {
            goal.to_string().replace("<=", "≤").replace(">=", "≥")
        });
        let _ = write!(out, "| `{}` | {} | {goal} |", row[0].name, row[0].unit);
        for client in clients {
            let own = row.iter().find(|figure| figure.client == *client);
            // A figure without a client library goes to the first column.
            let own = own.or_else(|| row.iter().find(|_| clients.first() == Some(client)));
            let other =
                own.is_some_and(|own| own.client != *client && clients.contains(&own.client));
            let text = own
                .filter(|_| !other)
                .map_or(String::new(), |own| cell(own));
            let _ = write!(out, " {text} |");
        }
        out.push('\n');
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
    match figure.met() {
        Some(true) => text += " ✓",
        Some(false) => text += " ✗",
        None => {}
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
}

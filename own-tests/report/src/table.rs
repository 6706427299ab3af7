//! The report as text, for a terminal.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::report::{Counts, Outcome, Report};

/// The number of cases in the list of the slowest.
const SLOWEST: usize = 5;

/// Renders the table of families, and what failed, was ignored or took longest.
pub(crate) fn render(report: &Report) -> String {
    let mut text = format!(
        "leasehold's conformance suite: {} on {}\n\n{:<20}{:>8}{:>8}{:>9}{:>10}\n",
        report.backend, report.server, "family", "passed", "failed", "ignored", "time"
    );
    for family in report.families() {
        text += &row(&family);
    }
    text += &row(&report.total());
    failures(&mut text, report);
    ignored(&mut text, report);
    slowest(&mut text, report);
    let total = report.total();
    let _ = writeln!(
        text,
        "\nconformance {}: {} passed, {} failed, {} ignored in {:.1} s",
        report.backend,
        total.passed,
        total.failed,
        total.ignored,
        report.took.as_secs_f64()
    );
    text
}

fn row(counts: &Counts) -> String {
    let took = counts.took.as_secs_f64();
    format!(
        "{:<20}{:>8}{:>8}{:>9}{took:>8.1} s\n",
        counts.name, counts.passed, counts.failed, counts.ignored
    )
}

// Writing to a string cannot fail.

fn failures(text: &mut String, report: &Report) {
    if report.failed() == 0 {
        return;
    }
    text.push_str("\nfailed:\n");
    for result in &report.results {
        if let Outcome::Failed(failure) = &result.outcome {
            let failure = failure.replace('\n', "\n    ");
            let _ = writeln!(text, "  {}\n    {failure}", result.name);
        }
    }
}

/// Lists the reasons for ignoring cases, each with the number of its cases.
fn ignored(text: &mut String, report: &Report) {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for result in &report.results {
        if let Outcome::Ignored(reason) = &result.outcome {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    if !reasons.is_empty() {
        text.push_str("\nignored:\n");
    }
    for (reason, count) in reasons {
        let _ = writeln!(text, "{count:>5}  {reason}");
    }
}

fn slowest(text: &mut String, report: &Report) {
    let mut results: Vec<_> = report.results.iter().collect();
    results.sort_by_key(|result| std::cmp::Reverse(result.took));
    text.push_str("\nslowest:\n");
    for result in results.into_iter().take(SLOWEST) {
        let _ = writeln!(
            text,
            "{:>7.1} s  {}",
            result.took.as_secs_f64(),
            result.name
        );
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::report::Result;

    /// A report with each outcome.
    pub(crate) fn sample() -> Report {
        let result = |name: &str, outcome, millis| Result {
            name: name.to_string(),
            rules: &["rule 1"],
            outcome,
            took: Duration::from_millis(millis),
        };
        let failure = "S1: one <holder>\n  expected: Contended\n  actual:   Acquired";
        Report {
            backend: "redis-rs".to_string(),
            server: "redis://db:6379".to_string(),
            results: vec![
                result("exclusion::first", Outcome::Passed, 1_300),
                result(
                    "exclusion::second",
                    Outcome::Failed(failure.to_string()),
                    300,
                ),
                result("expiry::third", Outcome::Passed, 40),
                result(
                    "foreign::fourth",
                    Outcome::Ignored("without a".to_string()),
                    0,
                ),
                result(
                    "foreign::fifth",
                    Outcome::Ignored("without a".to_string()),
                    0,
                ),
            ],
            took: Duration::from_millis(1_400),
        }
    }

    #[test]
    fn table_shows_every_family_and_outcome() {
        insta::assert_snapshot!(render(&sample()), @r"
        leasehold's conformance suite: redis-rs on redis://db:6379

        family                passed  failed  ignored      time
        exclusion                  1       1        0     1.6 s
        expiry                     1       0        0     0.0 s
        foreign                    0       0        2     0.0 s
        all                        2       1        2     1.6 s

        failed:
          exclusion::second
            S1: one <holder>
              expected: Contended
              actual:   Acquired

        ignored:
            2  without a

        slowest:
            1.3 s  exclusion::first
            0.3 s  exclusion::second
            0.0 s  expiry::third
            0.0 s  foreign::fourth
            0.0 s  foreign::fifth

        conformance redis-rs: 2 passed, 1 failed, 2 ignored in 1.4 s
        ");
    }

    #[test]
    fn json_has_every_case() {
        let json: serde_json::Value = serde_json::from_str(&sample().json()).expect("JSON");
        assert_eq!(json["failed"], 1);
        assert_eq!(json["cases"][1]["outcome"], "failed");
        assert_eq!(json["cases"][3]["detail"], "without a");
        assert_eq!(json["cases"].as_array().map(Vec::len), Some(5));
    }
}

//! The report as one HTML page, without scripts and without other files.

use std::fmt::Write;

use crate::report::{Counts, Outcome, Report, Result};

const STYLE: &str = "
  :root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif; }
  body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
  table { border-collapse: collapse; width: 100%; }
  th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid #8884; }
  th:first-child, td:first-child { text-align: left; }
  td.failed { color: #c22; font-weight: 600; }
  td.ignored { opacity: .65; }
  pre { margin: 0; white-space: pre-wrap; text-align: left; }
  summary { cursor: pointer; margin: .6rem 0; }
";

/// Renders the page.
pub(crate) fn render(report: &Report) -> String {
    let total = report.total();
    let title = format!("{} on {}", report.backend, report.server);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Conformance: {title}</title>\n<style>{STYLE}</style>\n\
         <h1>Conformance: {title}</h1>\n\
         <p>{} passed, {} failed, {} ignored in {:.1} s</p>\n",
        total.passed,
        total.failed,
        total.ignored,
        report.took.as_secs_f64(),
        title = escaped(&title),
    );
    page += "<table>\n<tr><th>family<th>passed<th>failed<th>ignored<th>time</tr>\n";
    for family in report.families() {
        page += &row(&family);
    }
    page += &row(&total);
    page += "</table>\n";
    for family in report.families() {
        let open = if family.failed > 0 { " open" } else { "" };
        let name = escaped(&family.name);
        // Writing to a string cannot fail.
        let _ = writeln!(page, "<details{open}><summary>{name}</summary>\n<table>");
        let results = report.results.iter();
        for result in results.filter(|result| result.family() == family.name) {
            page += &case(result);
        }
        page += "</table>\n</details>\n";
    }
    page + "</html>\n"
}

fn row(counts: &Counts) -> String {
    let class = if counts.failed > 0 {
        " class=\"failed\""
    } else {
        ""
    };
    format!(
        "<tr><td>{}<td>{}<td{class}>{}<td>{}<td>{:.1} s</tr>\n",
        escaped(&counts.name),
        counts.passed,
        counts.failed,
        counts.ignored,
        counts.took.as_secs_f64()
    )
}

fn case(result: &Result) -> String {
    let (class, detail) = match &result.outcome {
        Outcome::Passed => ("passed", String::new()),
        Outcome::Failed(failure) => ("failed", format!("<pre>{}</pre>", escaped(failure))),
        Outcome::Ignored(reason) => ("ignored", escaped(reason)),
    };
    let (name, rules) = (escaped(&result.name), escaped(&result.rules.join(", ")));
    let took = result.took.as_secs_f64();
    format!("<tr><td>{name}<td>{rules}<td class=\"{class}\">{class} {detail}<td>{took:.2} s</tr>\n")
}

/// Replaces the characters that mean something in HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::sample;

    #[test]
    fn page_shows_every_case_and_loads_nothing() {
        let report = sample();
        let page = render(&report);
        for result in &report.results {
            assert!(page.contains(&result.name), "{}", result.name);
        }
        assert!(page.contains("one &lt;holder&gt;"), "{page}");
        assert!(page.contains("<details open><summary>exclusion"), "{page}");
        for word in ["<script", "src=", "href=", "url(", "@import"] {
            assert!(!page.contains(word), "{word}");
        }
    }
}

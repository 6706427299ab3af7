//! The page `docs/torture.md`, from the summaries of saved runs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use crate::Failure;
use crate::chart;
use crate::checker::Promise;
use crate::history::Entry;
use crate::subject;
use crate::verdict::{Broken, Summary};

const INTRODUCTION: &str = include_str!("report.md");

/// The runs of one subject on one topology.
type Rows<'a> = BTreeMap<(usize, &'a str, &'a str), Vec<(&'a str, &'a Summary)>>;

/// The summaries of all runs in a folder, and the names of the runs.
fn summaries(folder: &Path) -> Result<Vec<(String, Summary)>, Failure> {
    let mut summaries = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(run) = name.strip_suffix(".summary.json") {
            let summary: Summary = serde_json::from_reader(std::fs::File::open(&path)?)?;
            summaries.push((run.to_owned(), summary));
        }
    }
    summaries.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(summaries)
}

/// Draws the chart of all summaries in a folder.
pub(crate) fn chart(folder: &Path) -> Result<String, Failure> {
    Ok(chart::draw(summaries(folder)?.iter().map(|(_, it)| it)))
}

/// Writes the page from all summaries in a folder, which the page links to as `link`.
pub(crate) fn page(folder: &Path, link: &str) -> Result<String, Failure> {
    let summaries = summaries(folder)?;
    let mut rows = Rows::new();
    for (run, summary) in &summaries {
        let about = &summary.about;
        let place = subject::ALL.iter().position(|it| it.name == about.subject);
        let place = place.ok_or_else(|| format!("{run}: no such subject"))?;
        let row = (place, about.subject.as_str(), about.topology.as_str());
        rows.entry(row).or_default().push((run, summary));
    }
    let mut page = INTRODUCTION.to_owned();
    promises(&mut page, &rows)?;
    findings(&mut page, &rows, link)?;
    runs(&mut page, &rows)?;
    Ok(page)
}

/// One line for each subject and topology.
fn promises(page: &mut String, rows: &Rows<'_>) -> std::fmt::Result {
    writeln!(page, "\n## Promises\n")?;
    let names = Promise::ALL.map(Promise::name).join(" | ");
    writeln!(
        page,
        "| lock | servers | {names} | lost without a fence | first answer, ms | first lock, ms |"
    )?;
    writeln!(
        page,
        "|---|---|{}---|---|---|",
        "---|".repeat(Promise::ALL.len())
    )?;
    for ((place, name, topology), runs) in rows {
        write!(page, "| {name} | {topology} |")?;
        for promise in Promise::ALL {
            let given = subject::ALL[*place].promises.contains(&promise);
            write!(page, " {} |", cell(promise, given, runs))?;
        }
        let sum = |of: fn(&Summary) -> usize| runs.iter().map(|(_, run)| of(run)).sum::<usize>();
        let (lost, all) = (
            sum(|it| it.figures.plain_lost),
            sum(|it| it.figures.plain_writes),
        );
        let times = |of: fn(&Summary) -> &Vec<u64>| median_and_last(runs, of);
        writeln!(
            page,
            " {lost} of {all} | {} | {} |",
            times(|it| &it.figures.answers_ms),
            times(|it| &it.figures.recoveries_ms)
        )?;
    }
    Ok(())
}

/// The median and the longest of these times, in ms.
fn median_and_last(runs: &[(&str, &Summary)], of: fn(&Summary) -> &Vec<u64>) -> String {
    let mut times: Vec<u64> = runs.iter().flat_map(|(_, run)| of(run)).copied().collect();
    times.sort_unstable();
    match (times.get(times.len() / 2), times.last()) {
        (Some(middle), Some(last)) => format!("{middle}, at most {last}"),
        _ => "–".into(),
    }
}

/// What became of a promise.
fn cell(promise: Promise, given: bool, runs: &[(&str, &Summary)]) -> String {
    let needs_tokens = matches!(
        promise,
        Promise::Tokens | Promise::Fencing | Promise::Counter
    );
    if promise == Promise::Once && !given {
        return "no jobs".into();
    }
    let fenced = runs.iter().any(|(_, run)| run.figures.fenced_writes > 0);
    if needs_tokens && !fenced {
        return "no tokens".into();
    }
    let of = |convicts: bool| {
        let broken = runs.iter().flat_map(|(_, run)| &run.broken);
        let broken = broken.filter(|it| it.promise == promise && it.convicts == convicts);
        broken.map(|it| it.count).sum::<usize>()
    };
    let count = runs.len();
    let seen = runs.iter().filter(|(_, run)| {
        let mut broken = run.broken.iter();
        broken.any(|it| it.promise == promise && it.convicts)
    });
    match (of(true), of(false), given) {
        (0, 0, _) => "kept".into(),
        (0, not, true) => format!("{not} outside"),
        (0, not, false) => format!("{not}, not promised"),
        (broken, _, _) => format!(
            "**broken {broken} times**, in {} of {count} runs",
            seen.count()
        ),
    }
}

/// The convictions, each with the few operations that show it.
fn findings(page: &mut String, rows: &Rows<'_>, link: &str) -> std::fmt::Result {
    writeln!(page, "\n## Convictions")?;
    for ((place, name, topology), runs) in rows {
        let mut shown: Vec<Promise> = Vec::new();
        for (run, summary) in runs {
            for (number, broken) in summary.broken.iter().enumerate() {
                if broken.convicts && !shown.contains(&broken.promise) {
                    shown.push(broken.promise);
                    let title = format!("{name}, {topology}: {}", broken.promise.name());
                    finding(
                        page,
                        &title,
                        broken,
                        &format!("{link}/{run}.violation-{number}"),
                    )?;
                }
            }
        }
        if !shown.is_empty() {
            let subject = &subject::ALL[*place];
            writeln!(page, "\nIts documentation: {}", subject.documentation)?;
            if !subject.explained.is_empty() {
                writeln!(page, "\nWhy: {}", subject.explained)?;
            }
        }
    }
    Ok(())
}

fn finding(page: &mut String, title: &str, broken: &Broken, file: &str) -> std::fmt::Result {
    writeln!(page, "\n### {title}\n")?;
    writeln!(
        page,
        "{}. Seen {} times. [The history]({file}.jsonl), [the timeline]({file}.html). From and until in ms:\n",
        broken.text, broken.count
    )?;
    writeln!(page, "```text")?;
    broken
        .evidence
        .iter()
        .try_for_each(|entry: &Entry| writeln!(page, "{entry}"))?;
    writeln!(page, "```")
}

/// What ran.
fn runs(page: &mut String, rows: &Rows<'_>) -> std::fmt::Result {
    writeln!(page, "\n## Runs\n")?;
    writeln!(
        page,
        "| lock | version | servers | seed | seconds | operations | locks taken | faults |"
    )?;
    writeln!(page, "|---|---|---|---|---|---|---|---|")?;
    for (_, summary) in rows.values().flatten() {
        let (about, figures) = (&summary.about, &summary.figures);
        writeln!(
            page,
            "| {} | {} | {}, {} | {} | {} | {} | {} | {} |",
            about.subject,
            about.version,
            about.topology,
            about.server,
            about.seed,
            about.lasted_us / 1_000_000,
            figures.operations,
            figures.holds,
            figures.faults.values().sum::<usize>(),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checker::Figures;
    use crate::history::About;

    fn summary(broken: Vec<Broken>) -> Summary {
        Summary {
            about: About {
                subject: "redis-semaphore".into(),
                topology: "standalone".into(),
                ..About::default()
            },
            figures: Figures::default(),
            broken,
        }
    }

    #[test]
    fn page_names_what_was_broken_and_links_to_the_history() {
        let folder = tempfile::tempdir().expect("a folder");
        let save = |run: &str, summary: &Summary| {
            let text = serde_json::to_string(summary).expect("JSON");
            let path = folder.path().join(format!("{run}.summary.json"));
            std::fs::write(path, text).expect("written");
        };
        save("a", &summary(Vec::new()));
        let broken = Broken {
            promise: Promise::Loss,
            convicts: true,
            count: 3,
            text: "client 1 slept".into(),
            evidence: vec![Entry::Left { what: "x".into() }],
        };
        save("b", &summary(vec![broken]));
        let page = page(folder.path(), "runs").expect("a page");
        assert!(
            page.contains("| redis-semaphore | standalone | kept |"),
            "{page}"
        );
        assert!(
            page.contains("**broken 3 times**, in 1 of 2 runs"),
            "{page}"
        );
        assert!(
            page.contains("[The history](runs/b.violation-0.jsonl)"),
            "{page}"
        );
    }
}

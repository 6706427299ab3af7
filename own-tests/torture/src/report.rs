//! The pages `docs/torture.md` and `docs/torture.html`, from the summaries of saved runs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use crate::Failure;
use crate::chart;
use crate::checker::Promise;
use crate::history::{Entry, History};
use crate::verdict::{Broken, Summary};
use crate::{subject, timeline, web};

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

/// What a page is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// With links to the timelines of the other form.
    Markdown,
    /// The same, with the chart and the timelines themselves. Those are HTML.
    Whole,
}

/// Writes the page in Markdown from all summaries in a folder, which the page links to as `link`.
pub(crate) fn page(folder: &Path, link: &str) -> Result<String, Failure> {
    let mut page = introduction(&format!(
        "The [same as one page]({link}.html) also has the chart and all timelines."
    ))?;
    write_all(&mut page, &summaries(folder)?, link, Form::Markdown)?;
    Ok(page)
}

/// Writes the same as one HTML page, which needs no other file.
pub(crate) fn whole_page(folder: &Path, link: &str) -> Result<String, Failure> {
    let summaries = summaries(folder)?;
    let chart = chart::draw(summaries.iter().map(|(_, it)| it));
    // One line, so that all of it is HTML.
    let chart = chart.replace('\n', "");
    let mut page = introduction(&format!("<figure>{chart}</figure>"))?;
    write_all(&mut page, &summaries, link, Form::Whole)?;
    Ok(web::page("Torture", &page))
}

/// The introduction, with this line at the end of its first section.
fn introduction(line: &str) -> Result<String, Failure> {
    let (first, rest) = INTRODUCTION.split_once("\n## ").ok_or("no sections")?;
    Ok(format!("{first}\n{line}\n\n## {rest}"))
}

/// Writes what comes after the introduction.
fn write_all(
    page: &mut String,
    summaries: &[(String, Summary)],
    link: &str,
    form: Form,
) -> Result<(), Failure> {
    let mut rows = Rows::new();
    for (run, summary) in summaries {
        let about = &summary.about;
        let place = subject::ALL.iter().position(|it| it.name == about.subject);
        let place = place.ok_or_else(|| format!("{run}: no such subject"))?;
        let row = (place, about.subject.as_str(), about.topology.as_str());
        rows.entry(row).or_default().push((run, summary));
    }
    promises(page, &rows)?;
    findings(page, &rows, link, form)?;
    Ok(runs(page, &rows)?)
}

/// One line for each subject and topology.
fn promises(page: &mut String, rows: &Rows<'_>) -> std::fmt::Result {
    writeln!(page, "\n## Promises\n")?;
    let names = Promise::ALL.map(Promise::name).join(" | ");
    writeln!(
        page,
        "| lock | servers | {names} | lost without a fence | first success, ms | first lock, ms |"
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
fn findings(page: &mut String, rows: &Rows<'_>, link: &str, form: Form) -> std::fmt::Result {
    writeln!(page, "\n## Convictions")?;
    if form == Form::Whole {
        writeln!(page, "\n{}", timeline::LEGEND)?;
    }
    for ((place, name, topology), runs) in rows {
        let mut shown: Vec<Promise> = Vec::new();
        for (run, summary) in runs {
            for (number, broken) in summary.broken.iter().enumerate() {
                if broken.convicts && !shown.contains(&broken.promise) {
                    shown.push(broken.promise);
                    let title = format!("{name}, {topology}: {}", broken.promise.name());
                    let name = format!("{run}.violation-{number}");
                    finding(page, &title, broken, (link, &name), form)?;
                    if form == Form::Whole {
                        drawing(page, summary, broken, &name)?;
                    }
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

fn finding(
    page: &mut String,
    title: &str,
    broken: &Broken,
    (link, name): (&str, &str),
    form: Form,
) -> std::fmt::Result {
    writeln!(page, "\n### {title}\n")?;
    let timeline = match form {
        Form::Markdown => format!(", [the timeline]({link}.html#{name})"),
        Form::Whole => String::new(),
    };
    writeln!(
        page,
        "{}. Seen {} times. [The history]({link}/{name}.jsonl){timeline}. From and until in ms:\n",
        in_one_line(&broken.text),
        broken.count
    )?;
    writeln!(page, "```text")?;
    broken
        .evidence
        .iter()
        .try_for_each(|entry: &Entry| writeln!(page, "{}", in_one_line(&entry.to_string())))?;
    writeln!(page, "```")
}

/// What a library has said may have several lines, and the next one would be read as Markdown.
fn in_one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// The timeline, folded. Each line of it is HTML.
fn drawing(page: &mut String, summary: &Summary, broken: &Broken, name: &str) -> std::fmt::Result {
    let history = History {
        about: summary.about.clone(),
        entries: broken.evidence.clone(),
    };
    let drawing = timeline::drawing(&history);
    writeln!(
        page,
        "<details id=\"{name}\"><summary>Timeline</summary><div>"
    )?;
    writeln!(page, "{drawing}</div></details>")
}

/// How far the rates of the clients' clocks were off, in percent.
fn skew(ppm: i64) -> String {
    match ppm {
        0 => "–".into(),
        ppm => format!("{} %", ppm as f64 / 10_000.0),
    }
}

/// What ran.
fn runs(page: &mut String, rows: &Rows<'_>) -> std::fmt::Result {
    writeln!(page, "\n## Runs\n")?;
    writeln!(
        page,
        "| lock | version | servers | seed | seconds | operations | locks taken | faults | clocks off by |"
    )?;
    writeln!(page, "|---|---|---|---|---|---|---|---|---|")?;
    for (_, summary) in rows.values().flatten() {
        let (about, figures) = (&summary.about, &summary.figures);
        writeln!(
            page,
            "| {} | {} | {}, {} | {} | {} | {} | {} | {} | {} |",
            about.subject,
            about.version,
            about.topology,
            about.server,
            about.seed,
            about.lasted_us / 1_000_000,
            figures.operations,
            figures.holds,
            figures.faults.values().sum::<usize>(),
            skew(about.skew_ppm),
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
            text: "client 1 slept\n<img>".into(),
            evidence: vec![Entry::Left {
                what: "x\n```\n<hr>".into(),
            }],
        };
        save("b", &summary(vec![broken]));
        let whole = whole_page(folder.path(), "runs").expect("a page");
        assert!(!whole.contains("<img") && !whole.contains("<hr"), "{whole}");
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

    #[test]
    fn whole_page_has_each_conviction_and_loads_nothing() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/torture"));
        let markdown = super::page(folder, "torture").expect("a page");
        let page = whole_page(folder, "torture").expect("a page");
        let links: Vec<_> = markdown.split("(torture.html#").skip(1).collect();
        for link in &links {
            let name = link.split(')').next().unwrap_or_default();
            assert!(page.contains(&format!("id=\"{name}\"")), "no {name}");
        }
        let summaries = summaries(folder).expect("saved runs");
        let all = summaries.iter().flat_map(|(_, it)| {
            let of = it.broken.iter().filter(|broken| broken.convicts);
            of.map(move |broken| {
                format!(
                    "{}, {}: {}",
                    it.about.subject,
                    it.about.topology,
                    broken.promise.name()
                )
            })
        });
        let mut titles: Vec<_> = all.collect();
        titles.sort_unstable();
        titles.dedup();
        assert!(!titles.is_empty());
        assert_eq!(links.len(), titles.len());
        for title in &titles {
            assert!(page.contains(&format!("<h3>{title}</h3>")), "no {title}");
        }
        assert_eq!(page.matches("<details id=").count(), titles.len());
        assert_eq!(page.matches("class=\"scroll\"").count(), titles.len());
        for loads in [
            "<script", "<link", "<img", "<iframe", "<object", "<use", "src=", "@import", "url(h",
            "url('", "url(\"",
        ] {
            assert!(!page.contains(loads), "{loads}");
        }
        assert!(page.contains("content=\"default-src 'none';"));
        assert!(page.len() < 300_000, "{} bytes", page.len());
    }
}

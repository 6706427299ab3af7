//! The pages `docs/torture.md` and `docs/torture.html`, from the summaries of saved runs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use crate::Failure;
use crate::chart;
use crate::checker::{Figures, Promise};
use crate::history::History;
use crate::verdict::{Broken, Summary};
use crate::{subject, timeline, web};

const INTRODUCTION: &str = include_str!("report.md");
/// Where the page is: `docs/torture.md`. The folder of the runs and the other form are beside it.
const LINK: &str = "torture";

/// The runs of one subject, which has this place in the list, on one topology.
type Rows<'a> = BTreeMap<(usize, &'a str), Vec<(&'a str, &'a Summary)>>;

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
    Ok(draw(&summaries(folder)?))
}

fn draw(summaries: &[(String, Summary)]) -> String {
    chart::draw(summaries.iter().map(|(_, it)| it))
}

/// What a page is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// With links to the timelines of the other form.
    Markdown,
    /// The same, with the chart and the timelines themselves. Those are HTML.
    Whole,
}

/// Writes the page in Markdown from all summaries in a folder.
pub(crate) fn page(folder: &Path) -> Result<String, Failure> {
    markdown(folder, Form::Markdown)
}

/// Writes the same as one HTML page, which needs no other file.
pub(crate) fn whole_page(folder: &Path) -> Result<String, Failure> {
    Ok(web::page("Torture", &markdown(folder, Form::Whole)?))
}

fn markdown(folder: &Path, form: Form) -> Result<String, Failure> {
    let summaries = summaries(folder)?;
    let mut rows = Rows::new();
    for (run, summary) in &summaries {
        let about = &summary.about;
        let place = subject::ALL.iter().position(|it| it.name == about.subject);
        let place = place.ok_or_else(|| format!("{run}: no such subject"))?;
        let row = rows.entry((place, about.topology.as_str())).or_default();
        row.push((run, summary));
    }
    let line = match form {
        Form::Markdown => {
            format!("The [same as one page]({LINK}.html) also has the chart and all timelines.")
        }
        // One line, so that all of it is HTML.
        Form::Whole => format!("<figure>{}</figure>", draw(&summaries).replace('\n', "")),
    };
    // It ends the first section.
    let (first, rest) = INTRODUCTION.split_once("\n## ").ok_or("no sections")?;
    let mut page = format!("{first}\n{line}\n\n## {rest}");
    promises(&mut page, &rows)?;
    findings(&mut page, &rows, form)?;
    runs(&mut page, &rows)?;
    Ok(page)
}

/// One line for each subject and topology.
fn promises(page: &mut String, rows: &Rows<'_>) -> std::fmt::Result {
    let names = Promise::ALL.map(Promise::name).join(" | ");
    let lines = "---|".repeat(Promise::ALL.len() + 5);
    writeln!(page, "\n## Promises\n")?;
    writeln!(
        page,
        "| lock | servers | {names} | lost without a fence | first success, ms | first lock, ms |\n|{lines}"
    )?;
    for ((place, topology), runs) in rows {
        let subject = &subject::ALL[*place];
        write!(page, "| {} | {topology} |", subject.name)?;
        for promise in Promise::ALL {
            let given = subject.promises.contains(&promise);
            write!(page, " {} |", cell(promise, given, runs))?;
        }
        let sum = |of: fn(&Figures) -> usize| runs.iter().map(|(_, run)| of(&run.figures)).sum();
        let (lost, all): (usize, usize) = (sum(|it| it.plain_lost), sum(|it| it.plain_writes));
        let first_success = median_and_last(runs, |it| &it.answers_ms);
        let first_lock = median_and_last(runs, |it| &it.recoveries_ms);
        writeln!(page, " {lost} of {all} | {first_success} | {first_lock} |")?;
    }
    Ok(())
}

/// The median and the longest of these times, in ms.
fn median_and_last(runs: &[(&str, &Summary)], of: fn(&Figures) -> &Vec<u64>) -> String {
    let times = runs.iter().flat_map(|(_, run)| of(&run.figures));
    let mut times: Vec<u64> = times.copied().collect();
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
    let broken = |convicts: bool| {
        let is = move |it: &&Broken| it.promise == promise && it.convicts == convicts;
        let counts = move |run: &Summary| run.broken.iter().filter(is).map(|it| it.count).sum();
        runs.iter().map(move |(_, run)| -> usize { counts(run) })
    };
    let seen = broken(true).filter(|count| *count > 0).count();
    match (broken(true).sum(), broken(false).sum(), given) {
        (0, 0, _) => "kept".into(),
        (0, not, true) => format!("{not} outside"),
        (0, not, false) => format!("{not}, not promised"),
        (times, _, _) => format!("**broken {times} times**, in {seen} of {} runs", runs.len()),
    }
}

/// The convictions, each with the few operations that show it.
fn findings(page: &mut String, rows: &Rows<'_>, form: Form) -> std::fmt::Result {
    writeln!(page, "\n## Convictions")?;
    if form == Form::Whole {
        writeln!(page, "\n{}", timeline::LEGEND)?;
    }
    for ((place, topology), runs) in rows {
        let subject = &subject::ALL[*place];
        let mut shown: Vec<Promise> = Vec::new();
        for (run, summary) in runs {
            for (number, broken) in summary.broken.iter().enumerate() {
                if broken.convicts && !shown.contains(&broken.promise) {
                    shown.push(broken.promise);
                    let promise = broken.promise.name();
                    writeln!(page, "\n### {}, {topology}: {promise}\n", subject.name)?;
                    let name = format!("{run}.violation-{number}");
                    finding(page, broken, &name, form)?;
                    if form == Form::Whole {
                        let (about, entries) = (summary.about.clone(), broken.evidence.clone());
                        let drawing = timeline::drawing(&History { about, entries });
                        // Folded. Each line of it is HTML.
                        let head = "<summary>Timeline</summary><div>";
                        writeln!(page, "<details id=\"{name}\">{head}")?;
                        writeln!(page, "{drawing}</div></details>")?;
                    }
                }
            }
        }
        if !shown.is_empty() {
            writeln!(page, "\nIts documentation: {}", subject.documentation)?;
            if !subject.explained.is_empty() {
                writeln!(page, "\nWhy: {}", subject.explained)?;
            }
        }
    }
    Ok(())
}

fn finding(page: &mut String, broken: &Broken, name: &str, form: Form) -> std::fmt::Result {
    let timeline = match form {
        Form::Markdown => format!(", [the timeline]({LINK}.html#{name})"),
        Form::Whole => String::new(),
    };
    writeln!(
        page,
        "{}. Seen {} times. [The history]({LINK}/{name}.jsonl){timeline}. From and until in ms:\n",
        in_one_line(&broken.text),
        broken.count
    )?;
    writeln!(page, "```text")?;
    for entry in &broken.evidence {
        writeln!(page, "{}", in_one_line(&entry.to_string()))?;
    }
    writeln!(page, "```")
}

/// What a library has said may have several lines, and the next one would be read as Markdown.
fn in_one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// What ran.
fn runs(page: &mut String, rows: &Rows<'_>) -> std::fmt::Result {
    writeln!(
        page,
        "\n## Runs\n\n\
         | lock | version | servers | seed | seconds | operations | locks taken | faults | clocks off by |\n\
         |---|---|---|---|---|---|---|---|---|"
    )?;
    for (_, summary) in rows.values().flatten() {
        let (about, figures) = (&summary.about, &summary.figures);
        let skew = match about.skew_ppm {
            0 => "–".into(),
            ppm => format!("{} %", ppm as f64 / 10_000.0),
        };
        writeln!(
            page,
            "| {} | {} | {}, {} | {} | {} | {} | {} | {} | {skew} |",
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
    use std::collections::BTreeSet;

    use super::*;
    use crate::history::{About, Entry};

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
        let whole = whole_page(folder.path()).expect("a page");
        assert!(!whole.contains("<img") && !whole.contains("<hr"), "{whole}");
        let page = page(folder.path()).expect("a page");
        for text in [
            "| redis-semaphore | standalone | kept |",
            "**broken 3 times**, in 1 of 2 runs",
            "[The history](torture/b.violation-0.jsonl)",
        ] {
            assert!(page.contains(text), "no {text}: {page}");
        }
    }

    #[test]
    fn whole_page_has_each_conviction_and_loads_nothing() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/torture"));
        let markdown = super::page(folder).expect("a page");
        let page = whole_page(folder).expect("a page");
        let links: Vec<_> = markdown.split("(torture.html#").skip(1).collect();
        for link in &links {
            let name = link.split(')').next().unwrap_or_default();
            assert!(page.contains(&format!("id=\"{name}\"")), "no {name}");
        }
        let summaries = summaries(folder).expect("saved runs");
        let all = summaries.iter().flat_map(|(_, it)| {
            let (lock, servers) = (&it.about.subject, &it.about.topology);
            let of = it.broken.iter().filter(|broken| broken.convicts);
            of.map(move |broken| format!("{lock}, {servers}: {}", broken.promise.name()))
        });
        let titles: BTreeSet<_> = all.collect();
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

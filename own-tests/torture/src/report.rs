//! The table of `docs/torture.md` and the chart of the README, from the results of all runs in `docs/torture.json`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::checker::{Promise, Verdict};
use crate::{Failure, chart, subject};

/// The head of the table. What the page says before it is written by hand.
const HEAD: &str = "| lock | servers | promises | locks | faults | lost without a fence | slowest, ms |\n\
    |---|---|---|---|---|---|---|\n";
const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");

/// With fewer locks taken, nothing was shown.
const LEAST: usize = 20;

/// What the runs of one lock on one kind of servers have shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) lock: String,
    pub(crate) servers: String,
    pub(crate) version: String,
    pub(crate) server: String,
    pub(crate) runs: u64,
    pub(crate) seconds: u64,
    pub(crate) locks: usize,
    pub(crate) faults: usize,
    /// How often each promise was broken that the lock gives,
    pub(crate) convicted: BTreeMap<Promise, usize>,
    /// and how often while an assumption was.
    pub(crate) outside: BTreeMap<Promise, usize>,
    /// The additions to counters without a fence, and the lost ones.
    pub(crate) additions: usize,
    pub(crate) lost: usize,
    /// The longest time from the end of a fault of the servers to the first lock of the probe.
    pub(crate) slowest_ms: u64,
}

impl Row {
    pub(crate) fn of(verdict: &Verdict) -> Self {
        let (about, figures) = (&verdict.about, &verdict.figures);
        let (mut convicted, mut outside) = (BTreeMap::new(), BTreeMap::new());
        for it in &verdict.violations {
            if verdict.convicts(it) {
                *convicted.entry(it.promise).or_default() += 1;
            } else if about.promises.contains(&it.promise) {
                *outside.entry(it.promise).or_default() += 1;
            }
        }
        Self {
            lock: about.subject.clone(),
            servers: about.topology.clone(),
            version: about.version.clone(),
            server: about.server.clone(),
            runs: 1,
            seconds: about.lasted_us / 1_000_000,
            locks: figures.holds,
            faults: figures.faults.values().sum(),
            convicted,
            outside,
            additions: figures.plain_writes,
            lost: figures.plain_lost,
            slowest_ms: figures.answers_ms.last().copied().unwrap_or(0),
        }
    }

    /// The same after one more run.
    fn and(mut self, other: Self) -> Self {
        self.runs += other.runs;
        self.seconds += other.seconds;
        self.locks += other.locks;
        self.faults += other.faults;
        self.additions += other.additions;
        self.lost += other.lost;
        self.slowest_ms = self.slowest_ms.max(other.slowest_ms);
        for (promise, count) in other.convicted {
            *self.convicted.entry(promise).or_default() += count;
        }
        for (promise, count) in other.outside {
            *self.outside.entry(promise).or_default() += count;
        }
        self
    }

    /// Runs of the same lock on the same servers are one row. The version of the servers may differ, their name not.
    fn key(&self) -> [String; 3] {
        let name = self.server.rsplit_once(' ').map_or("", |(name, _)| name);
        [self.lock.clone(), self.servers.clone(), name.into()]
    }

    fn shown(&self) -> String {
        let list = |counts: &BTreeMap<Promise, usize>| {
            let texts = counts
                .iter()
                .map(|(promise, count)| format!("{} {count} ×", promise.name()));
            texts.collect::<Vec<_>>().join(", ")
        };
        match (self.convicted.is_empty(), self.outside.is_empty()) {
            (true, _) if self.locks < LEAST => "not shown".into(),
            (true, true) => "kept".into(),
            (true, false) => format!("kept; outside: {}", list(&self.outside)),
            (false, _) => format!("**broken**: {}", list(&self.convicted)),
        }
    }
}

/// Reads `docs/torture.json`, puts the results of the runs in a folder in the place of older ones of the same lock and
/// servers, and writes it, the page and the chart.
pub(crate) fn report(add: Option<&Path>) -> Result<(), Failure> {
    let docs = PathBuf::from(DOCS);
    let data = docs.join("torture.json");
    let mut rows: Vec<Row> = serde_json::from_str(&std::fs::read_to_string(&data)?)?;
    let mut new: BTreeMap<[String; 3], Row> = BTreeMap::new();
    for entry in add
        .map(std::fs::read_dir)
        .transpose()?
        .into_iter()
        .flatten()
    {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(".result.json") {
            let row: Row = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
            let key = row.key();
            let so_far = new.remove(&key);
            new.insert(
                key,
                so_far.map_or_else(|| row.clone(), |it| it.and(row.clone())),
            );
        }
    }
    rows.retain(|row| !new.contains_key(&row.key()));
    rows.extend(new.into_values());
    // In the order of the subjects.
    let place = |row: &Row| subject::ALL.iter().position(|it| it.name == row.lock);
    rows.sort_by_key(|row| (place(row), row.key()));
    std::fs::write(&data, lines(&rows)?)?;
    std::fs::write(docs.join("torture.svg"), chart::draw(&rows))?;
    let path = docs.join("torture.md");
    let page = page(&std::fs::read_to_string(&path)?, &rows)?;
    std::fs::write(path, page)?;
    Ok(())
}

/// One line for each row.
fn lines(rows: &[Row]) -> Result<String, Failure> {
    let lines: Result<Vec<_>, _> = rows.iter().map(serde_json::to_string).collect();
    Ok(format!("[\n{}\n]\n", lines?.join(",\n")))
}

/// The page with a new table.
fn page(before: &str, rows: &[Row]) -> Result<String, Failure> {
    let (text, _) = before.split_once(HEAD).ok_or("the page has no table")?;
    let mut page = format!("{text}{HEAD}");
    let mut shown: Vec<Row> = Vec::new();
    for row in rows {
        let mut row = row.clone();
        if row.lock.starts_with("tutorial-") {
            row.lock = "locks of tutorials".into();
        }
        let before = shown.pop_if(|it| it.key() == row.key());
        shown.push(before.map_or_else(|| row.clone(), |it| it.and(row.clone())));
    }
    for row in &shown {
        let (shown, lost, all) = (row.shown(), row.lost, row.additions);
        let valkey = if row.server.contains("Valkey") {
            ", Valkey"
        } else {
            ""
        };
        let Row {
            lock,
            servers,
            locks,
            faults,
            slowest_ms,
            ..
        } = row;
        writeln!(
            page,
            "| {lock} | {servers}{valkey} | {shown} | {locks} | {faults} | {lost}/{all} | {slowest_ms} |"
        )?;
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_and_chart_are_those_of_the_results() {
        let read = |name: &str| {
            std::fs::read_to_string(Path::new(DOCS).join(name)).expect("a file of the repository")
        };
        let data = read("torture.json");
        let rows: Vec<Row> = serde_json::from_str(&data).expect("rows");
        let again = "run `torture report`";
        assert_eq!(lines(&rows).expect("JSON"), data, "{again}");
        let shown = read("torture.md");
        assert!(page(&shown, &rows).expect("a page") == shown, "{again}");
        assert_eq!(chart::draw(&rows), read("torture.svg"), "{again}");
        let words = read("torture.md")
            .split_whitespace()
            .filter(|it| *it != "|")
            .count();
        assert!(words <= 1_500, "{words} words");
    }
}

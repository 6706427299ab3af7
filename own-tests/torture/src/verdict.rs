//! What a check means for a subject, and how it is shown and saved.

use std::collections::BTreeMap;
use std::path::Path;

use crate::Failure;
use crate::checker::{self, Promise, Verdict, Violation};
use crate::history::{About, History};
use crate::report::Row;
use crate::subject;

/// What a run has shown of the promises that the subject's documentation gives. One that was broken counts, even if
/// too little was seen of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Convicted,
    /// Too little was seen to say that the promises were kept.
    NotShown,
    Kept,
}

impl Ending {
    /// The exit status. Another error has 2.
    pub(crate) const fn status(self) -> u8 {
        match self {
            Self::Kept => 0,
            Self::Convicted => 1,
            Self::NotShown => 3,
        }
    }
}

impl Verdict {
    pub(crate) fn ending(&self) -> Ending {
        if self.violations.iter().any(|it| self.convicts(it)) {
            Ending::Convicted
        } else if !self.missing.is_empty() {
            Ending::NotShown
        } else {
            Ending::Kept
        }
    }

    /// A violation outside of the assumptions convicts nobody, nor does one of a promise that the
    /// subject doesn't give.
    pub(crate) fn convicts(&self, violation: &Violation) -> bool {
        violation.outside.is_none() && self.about.promises.contains(&violation.promise)
    }

    /// The violations by promise, those that convict first.
    fn by_kind(&self) -> BTreeMap<(bool, Promise), Vec<&Violation>> {
        let mut kinds: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for violation in &self.violations {
            let kind = (!self.convicts(violation), violation.promise);
            kinds.entry(kind).or_default().push(violation);
        }
        kinds
    }

    /// Saves the result, and a minimal history of each kind of violation.
    pub(crate) fn save(&self, folder: &Path, run: &str) -> Result<(), Failure> {
        for (number, violations) in self.by_kind().values().enumerate() {
            let shown = minimal(&self.about, violations[0]);
            shown.save(&folder.join(format!("{run}.violation-{number}.jsonl")))?;
        }
        let result = serde_json::to_string(&Row::of(self))?;
        Ok(std::fs::write(
            folder.join(format!("{run}.result.json")),
            result,
        )?)
    }
}

/// The few entries that show a violation, as a history that the checker takes again.
pub(crate) fn minimal(about: &About, violation: &Violation) -> History {
    let mut about = about.clone();
    if violation.promise != Promise::Progress {
        // Too short to tell whether anybody made progress.
        about.lasted_us = 0;
    }
    History {
        about,
        entries: violation.evidence.clone(),
    }
}

pub(crate) fn print(history: &History) -> Verdict {
    let verdict = checker::check(history);
    let (about, figures) = (&verdict.about, &verdict.figures);
    println!(
        "{} {} on {} ({}), seed {}: {} operations, {} locks taken ({} while others wanted them, {} for longer than a lease), \
         {} faults in {} s",
        about.subject,
        about.version,
        about.topology,
        about.server,
        about.seed,
        figures.operations,
        figures.holds,
        figures.contended,
        figures.outlasted,
        figures.faults.values().sum::<usize>(),
        about.lasted_us / 1_000_000,
    );
    let shown = [
        ("the probe got its lock again", &figures.answers_ms),
        ("locks were granted again", &figures.recoveries_ms),
    ];
    for (what, took) in shown {
        if let (Some(middle), Some(last)) = (took.get(took.len() / 2), took.last()) {
            let count = took.len();
            println!("  {what} after {count} faults: median {middle} ms, longest {last} ms");
        }
    }
    println!(
        "  fenced writes: {}, refused: {}; additions without a fence: {}, lost: {}",
        figures.fenced_writes, figures.refused_writes, figures.plain_writes, figures.plain_lost
    );
    for (what, count) in &figures.more {
        println!("  {count} × while others wanted the lock: {what}");
    }
    for (text, count) in &figures.errors {
        println!("  {count} × error: {text}");
    }
    for ((not, _), violations) in verdict.by_kind() {
        let kind = if not { "no conviction" } else { "CONVICTED" };
        println!("  {kind}, {} ×:", violations.len());
        let shown = violations[0];
        println!("    {shown}");
        shown
            .evidence
            .iter()
            .for_each(|entry| println!("      {entry}"));
    }
    match verdict.ending() {
        Ending::Kept => println!("  kept its promises"),
        Ending::Convicted => {
            if let Ok(subject) = subject::find(&about.subject) {
                println!("  promised by {}", subject.documentation);
            }
        }
        Ending::NotShown => {
            println!("  NOT SHOWN that it keeps its promises:");
            verdict.missing.iter().for_each(|it| println!("    {it}"));
        }
    }
    verdict
}

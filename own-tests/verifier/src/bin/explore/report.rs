//! The report: the summary, the violations of a run, and the progress bar.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the speed is measured in real time"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _, stderr};
use std::time::{Duration, Instant};

use leasehold_verifier::{Coverage, Situation, Violation};
use serde_json::{Map, Value, json};

use crate::subject::Variant;

/// Each rare situation of a variant must have been reached after this many of its seeds.
const ENOUGH: u64 = 20_000;

/// What the runs of a variant have reached.
#[derive(Debug, Default)]
pub(crate) struct Reached {
    pub(crate) runs: u64,
    pub(crate) coverage: Coverage,
}

/// The summary of all runs.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) runs: u64,
    pub(crate) took: Duration,
    pub(crate) reached: BTreeMap<Variant, Reached>,
    /// The number of runs with a broken promise.
    pub(crate) failed: u64,
    /// The seed and the first violation of each failed run; if there are many, of the first ones.
    pub(crate) violations: Vec<(u64, Violation)>,
    pub(crate) mutant: Option<String>,
    pub(crate) found_at_seed: Option<u64>,
}

impl Summary {
    fn rate(&self) -> f64 {
        self.runs as f64 / self.took.as_secs_f64().max(1e-9)
    }

    /// The rare situations that should have been reached, and were not.
    pub(crate) fn missing(&self) -> impl Iterator<Item = String> {
        let enough = self.reached.iter().filter(|(_, it)| it.runs >= ENOUGH);
        enough.flat_map(|(variant, it)| {
            let missing = it.coverage.missing(variant.out_of_model);
            missing
                .map(|situation| format!("never reached{}: {}", variant.flags(), situation.text()))
        })
    }

    /// The summary as it is printed, with or without the coverage.
    pub(crate) fn text(&self, coverage: bool) -> String {
        let mut text = String::new();
        for (variant, Reached { runs, coverage }) in self.reached.iter().filter(|_| coverage) {
            let _ = writeln!(text, "{runs} runs{}:", variant.flags());
            let reachable = |s: &&Situation| s.is_reachable(variant.out_of_model);
            for situation in Situation::ALL.iter().filter(reachable) {
                let times = coverage.of(*situation);
                let _ = writeln!(text, "{times:>10}  {}", situation.text());
            }
        }
        let _ = write!(
            text,
            "{} runs in {:.1} s ({:.0} per second), {} with a broken promise",
            self.runs,
            self.took.as_secs_f64(),
            self.rate(),
            self.failed
        );
        text
    }

    pub(crate) fn json(&self) -> String {
        let coverage = |reached: &Reached| -> Map<String, Value> {
            let times = |s: &Situation| (s.text().to_owned(), json!(reached.coverage.of(*s)));
            Situation::ALL.iter().map(times).collect()
        };
        let variants = self.reached.iter().map(|(variant, reached)| {
            json!({
                "out_of_model": variant.out_of_model,
                "runs": reached.runs,
                "coverage": coverage(reached),
            })
        });
        let violations: Vec<Value> = self
            .violations
            .iter()
            .map(|(seed, v)| json!({ "seed": seed, "promise": v.promise, "text": v.text }))
            .collect();
        let all = json!({
            "runs": self.runs,
            "seconds": self.took.as_secs_f64(),
            "violations": self.failed,
            "first_violations": violations,
            "mutant": self.mutant,
            "found_at_seed": self.found_at_seed,
            "variants": variants.collect::<Value>(),
        });
        format!("{all:#}\n")
    }
}

/// Describes the violations of a run, one per line.
pub(crate) fn verdict(violations: &[Violation]) -> String {
    let lines = violations.iter().map(|it| {
        let (promise, at, details) = (it.promise, it.at.as_secs_f64(), &it.text);
        format!("{promise} at {at:.6} s: {details}\n")
    });
    lines.collect()
}

/// A progress bar, if stderr is a terminal.
pub(crate) struct Progress {
    shown: bool,
    began: Instant,
    last: Instant,
    /// Time that doesn't count as running.
    excluded: Duration,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            shown: stderr().is_terminal(),
            began: now,
            last: now,
            excluded: Duration::ZERO,
        }
    }

    /// How long the runs have taken.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed().saturating_sub(self.excluded)
    }

    /// Runs `act` without counting its time, and returns that time.
    pub(crate) fn exclude<R>(&mut self, act: impl FnOnce() -> R) -> (R, Duration) {
        let began = Instant::now();
        let result = act();
        let took = began.elapsed();
        self.excluded += took;
        (result, took)
    }

    /// Updates the bar, at most five times per second.
    pub(crate) fn update(&mut self, done: u64, of: u64) {
        if !self.shown || self.last.elapsed() < Duration::from_millis(200) {
            return;
        }
        self.last = Instant::now();
        let percent = done * 100 / of.max(1);
        let rate = done as f64 / self.elapsed().as_secs_f64();
        let bar = "#".repeat((percent / 4) as usize);
        eprint!("\r[{bar:<25}] {percent:>3} %  {done} of {of}, {rate:.0} per second ");
        drop(stderr().flush());
    }

    pub(crate) fn clear(&self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}

//! The results of a run.

use std::time::Duration;

use serde_json::{Value, json};

/// The result of one case.
#[derive(Clone, Debug)]
pub(crate) struct Result {
    /// `family::case`.
    pub(crate) name: String,
    pub(crate) rules: &'static [&'static str],
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
}

impl Result {
    pub(crate) fn family(&self) -> &str {
        self.name.split("::").next().unwrap_or(&self.name)
    }
}

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// With the rule, what was expected and what was answered.
    Failed(String),
    /// With what is missing.
    Ignored(String),
}

/// The results of all cases.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) backend: String,
    /// The URL of the server, without secrets.
    pub(crate) server: String,
    pub(crate) results: Vec<Result>,
    pub(crate) took: Duration,
}

/// The counts of a family, or of all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) name: String,
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
    /// The sum of the times of the cases. Some of them ran at the same time.
    pub(crate) took: Duration,
}

impl Counts {
    fn add(&mut self, result: &Result) {
        match result.outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::Failed(_) => self.failed += 1,
            Outcome::Ignored(_) => self.ignored += 1,
        }
        self.took += result.took;
    }
}

impl Report {
    pub(crate) fn failed(&self) -> usize {
        self.total().failed
    }

    pub(crate) fn total(&self) -> Counts {
        let mut total = Counts {
            name: "all".to_string(),
            ..Counts::default()
        };
        self.results.iter().for_each(|result| total.add(result));
        total
    }

    /// The counts of each family, in the order of the suite.
    pub(crate) fn families(&self) -> Vec<Counts> {
        let mut families: Vec<Counts> = Vec::new();
        for result in &self.results {
            if families.last().is_none_or(|it| it.name != result.family()) {
                families.push(Counts {
                    name: result.family().to_string(),
                    ..Counts::default()
                });
            }
            if let Some(family) = families.last_mut() {
                family.add(result);
            }
        }
        families
    }

    /// The report as JSON.
    pub(crate) fn json(&self) -> String {
        let cases: Vec<Value> = self.results.iter().map(case_json).collect();
        let total = self.total();
        let report = json!({
            "backend": self.backend,
            "server": self.server,
            "passed": total.passed,
            "failed": total.failed,
            "ignored": total.ignored,
            "seconds": self.took.as_secs_f64(),
            "cases": cases,
        });
        format!("{report:#}\n")
    }
}

fn case_json(result: &Result) -> Value {
    let (outcome, detail) = match &result.outcome {
        Outcome::Passed => ("passed", None),
        Outcome::Failed(failure) => ("failed", Some(failure)),
        Outcome::Ignored(reason) => ("ignored", Some(reason)),
    };
    json!({
        "name": result.name,
        "rules": result.rules,
        "outcome": outcome,
        "detail": detail,
        "seconds": result.took.as_secs_f64(),
    })
}

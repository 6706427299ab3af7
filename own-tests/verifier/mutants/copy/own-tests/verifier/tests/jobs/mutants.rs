//! Each mutant of a job, an election or a note is found within its budget.

use leasehold_api::mutants;
use leasehold_verifier::MutantInfo;

use crate::plan::{self, Model};
use crate::{elections, explorations, number};

/// The scenario that finds a mutant.
#[derive(Clone, Copy, Debug)]
enum Scenario {
    Jobs(Model),
    Elections,
}

const JOBS: Scenario = Scenario::Jobs(Model::Within);
const BROKEN: Scenario = Scenario::Jobs(Model::Outside);
const ELECTIONS: Scenario = Scenario::Elections;

/// The mutants, each with a part of the problem that it must cause, and its budget of seeds.
const MUTANTS: &[(&str, Scenario, &str, u64)] = &[
    ("job-is-decided-without-its-record", JOBS, "", 20),
    ("attempt-of-a-job-is-not-noted", JOBS, "attempt", 20_000),
    ("failed-job-is-noted-as-done", JOBS, "", 50),
    ("note-ends-with-its-epoch", JOBS, "", 50),
    (
        "failed-job-is-tried-again-at-once",
        JOBS,
        "without a pause",
        500,
    ),
    (
        "failed-job-waits-until-it-is-too-late",
        JOBS,
        "never done",
        500,
    ),
    (
        "failed-not-within-begins-anew",
        JOBS,
        "within the window",
        500,
    ),
    (
        "not-within-counts-from-the-beginning",
        JOBS,
        "again within its time",
        500,
    ),
    ("done-counts-longer-than-its-window", JOBS, "silences", 500),
    (
        "job-begins-before-its-fire-time",
        JOBS,
        "outside of its window",
        500,
    ),
    ("try-run-is-busy-with-itself", JOBS, "run by nobody", 500),
    ("every-leaves-out-the-next", JOBS, "never done", 500),
    (
        "every-names-an-occurrence-by-the-present",
        JOBS,
        "no multiple",
        500,
    ),
    (
        "every-ends-with-a-lost-connection",
        JOBS,
        "of the loop",
        500,
    ),
    ("reset-writes-nothing", JOBS, "", 500),
    (
        "reset-passes-over-a-running-job",
        JOBS,
        "while it runs",
        5_000,
    ),
    ("done-ahead-of-the-clock-silences", BROKEN, "silences", 200),
    (
        "every-ends-with-a-wrong-clock",
        BROKEN,
        "the loop ends",
        500,
    ),
    (
        "every-waits-for-a-time-that-is-far-ahead",
        BROKEN,
        "never done",
        5_000,
    ),
    ("leader-by-a-remembered-flag", ELECTIONS, "at once", 20_000),
    (
        "leader-goes-on-after-its-term",
        ELECTIONS,
        "after its term",
        5_000,
    ),
    (
        "lost-leader-stands-no-more",
        ELECTIONS,
        "doesn't stand again",
        5_000,
    ),
];

/// `LEASEHOLD_TRIALS` finds each mutant more often, from different seeds.
#[test]
fn each_mutant_is_found_within_its_budget() {
    let trials = number("LEASEHOLD_TRIALS", 1);
    for name in MutantInfo::of_jobs() {
        assert!(MUTANTS.iter().any(|(mutant, ..)| mutant == name), "{name} has no budget");
    }
    for &(mutant, scenario, problem, budget) in MUTANTS {
        assert!(mutants::plant(mutant), "no mutant {mutant:?}");
        let mut found = Vec::new();
        for first in (0..trials).map(|trial| trial * 1_000_000) {
            let explore = explorations(first..first + budget).shrink_runs(0);
            // Other judgements may find it sooner, and must not hide that this one doesn't.
            let failure = explore.find(|sim| async move {
                let verdict = match scenario {
                    Scenario::Jobs(model) => plan::scenario(sim, model).await,
                    Scenario::Elections => elections::scenario(sim).await,
                };
                verdict.or_else(|text| match text.contains(problem) {
                    true => Err(text),
                    false => Ok(()),
                })
            });
            let failure = failure.unwrap_or_else(|| panic!("{mutant} is not found"));
            let reason = failure.reason.lines().next().unwrap_or_default();
            assert!(reason.contains(problem), "{mutant}: {reason}");
            found.push(failure.runs);
        }
        let (sum, max) = (found.iter().sum::<u64>(), found.iter().max());
        let mean = sum as f64 / trials as f64;
        let max = max.copied().unwrap_or_default();
        println!("{mutant:40} {budget:5} {mean:7.1} {max:5}");
    }
}

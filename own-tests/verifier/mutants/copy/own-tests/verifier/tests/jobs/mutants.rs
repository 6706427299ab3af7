//! Each mutant of a job, an election or a note is found within its budget.

use leasehold_api::mutants;

use crate::{elections, explorations, jobs, number};

/// The scenario that finds a mutant.
#[derive(Clone, Copy, Debug)]
enum Scenario {
    Jobs(jobs::Model),
    Elections,
}

/// The mutants, each with a part of the problem that it must cause, and its budget of seeds.
const MUTANTS: &[(&str, Scenario, &str, u64)] = {
    const JOBS: Scenario = Scenario::Jobs(jobs::Model::Within);
    const BROKEN: Scenario = Scenario::Jobs(jobs::Model::Outside);
    &[
        ("job-is-decided-without-its-record", JOBS, "", 20),
        ("attempt-of-a-job-is-not-noted", JOBS, "attempt", 20_000),
        ("failed-job-is-noted-as-done", JOBS, "", 50),
        ("note-ends-with-its-epoch", JOBS, "", 50),
        ("done-ahead-of-the-clock-silences", BROKEN, "", 200),
        (
            "leader-by-a-remembered-flag",
            Scenario::Elections,
            "at once",
            20_000,
        ),
    ]
};

/// `LEASEHOLD_TRIALS` finds each mutant more often, from different seeds.
#[test]
fn each_mutant_is_found_within_its_budget() {
    let trials = number("LEASEHOLD_TRIALS", 1);
    for &(mutant, scenario, problem, budget) in MUTANTS {
        assert!(mutants::plant(mutant), "no mutant {mutant:?}");
        let mut found = Vec::new();
        for first in (0..trials).map(|trial| trial * 1_000_000) {
            let explore = explorations(first..first + budget).shrink_runs(0);
            let failure = match scenario {
                Scenario::Jobs(model) => explore.find(|sim| jobs::scenario(sim, model)),
                Scenario::Elections => explore.find(elections::scenario),
            };
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

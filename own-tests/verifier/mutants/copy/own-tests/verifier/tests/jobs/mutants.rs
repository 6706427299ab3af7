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

/// A mutant, the scenario that finds it, a part of the problem that it must cause, and its budget of seeds.
type Row = (&'static str, Scenario, &'static str, u64);

/// A mutant that is found soon while the assumptions hold.
const fn within(mutant: &'static str, problem: &'static str) -> Row {
    (mutant, JOBS, problem, 500)
}

const MUTANTS: &[Row] = &[
    ("job-is-decided-without-its-record", JOBS, "", 20),
    ("attempt-of-a-job-is-not-noted", JOBS, "attempt", 20_000),
    ("failed-job-is-noted-as-done", JOBS, "", 50),
    within("failed-job-is-tried-again-at-once", "without a pause"),
    within("failed-job-waits-until-it-is-too-late", "never done"),
    within("failed-not-within-begins-anew", "within the window"),
    within("not-within-counts-from-the-beginning", "again within its time"),
    within("done-counts-longer-than-its-window", "silences"),
    within("job-begins-before-its-fire-time", "outside of its window"),
    within("try-run-is-busy-with-itself", "run by nobody"),
    within("every-leaves-out-the-next", "never done"),
    within("every-names-an-occurrence-by-the-present", "no multiple"),
    within("every-ends-with-a-lost-connection", "of the loop"),
    within("reset-writes-nothing", ""),
    ("reset-passes-over-a-running-job", JOBS, "while it runs", 5_000),
    ("done-ahead-of-the-clock-silences", BROKEN, "silences", 200),
    ("every-ends-with-a-wrong-clock", BROKEN, "the loop ends", 500),
    ("every-waits-for-a-time-that-is-far-ahead", BROKEN, "never done", 5_000),
    ("leader-by-a-remembered-flag", ELECTIONS, "at once", 20_000),
    ("leader-goes-on-after-its-term", ELECTIONS, "after its term", 5_000),
    ("lost-leader-stands-no-more", ELECTIONS, "doesn't stand again", 5_000),
];

/// `LEASEHOLD_TRIALS` finds each mutant more often, from different seeds.
#[test]
fn each_mutant_is_found_within_its_budget() {
    let trials = number("LEASEHOLD_TRIALS", 1);
    for (name, _) in mutants::all().filter(|(_, rule)| MutantInfo::is_of_jobs(rule)) {
        assert!(MUTANTS.iter().any(|(mutant, ..)| *mutant == name), "{name} has no budget");
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

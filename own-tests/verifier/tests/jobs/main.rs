//! Explores jobs that run once, and elections, under faults. `LEASEHOLD_SEEDS` sets the number of seeds.
//!
//! With `--cfg leasehold_mutants`, each mutant of a job, an election or a note must be found within its budget.

mod elections;
mod jobs;

use std::ops::Range;
use std::time::Duration;

#[cfg(leasehold_mutants)]
use leasehold_api::mutants::Mutant;
use leasehold_sim::{Exploration, FaultMix};

/// The number in an environment variable, or the default.
fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}

fn explorations(seeds: Range<u64>) -> Exploration {
    Exploration::new()
        .seeds(seeds)
        .fault_mix(FaultMix::all())
        .time_limit(Duration::from_secs(200_000))
}

#[cfg(not(leasehold_mutants))]
fn asked() -> Exploration {
    explorations(0..number("LEASEHOLD_SEEDS", 150))
}

#[cfg(not(leasehold_mutants))]
#[test]
fn jobs_run_once() {
    asked().check(|sim| jobs::scenario(sim, jobs::Model::Within));
}

#[cfg(not(leasehold_mutants))]
#[test]
fn jobs_keep_going_outside_of_the_model() {
    asked().check(|sim| jobs::scenario(sim, jobs::Model::Outside));
}

#[cfg(not(leasehold_mutants))]
#[test]
fn one_process_leads() {
    asked().check(elections::scenario);
}

/// The scenario that finds a mutant.
#[cfg(leasehold_mutants)]
#[derive(Clone, Copy, Debug)]
enum Scenario {
    Jobs(jobs::Model),
    Elections,
}

/// The mutants, each with a part of the problem that it must cause, and its budget of seeds.
#[cfg(leasehold_mutants)]
const MUTANTS: &[(Mutant, Scenario, &str, u64)] = {
    const JOBS: Scenario = Scenario::Jobs(jobs::Model::Within);
    const BROKEN: Scenario = Scenario::Jobs(jobs::Model::Outside);
    &[
        (Mutant::DecidedBeforeTheLock, JOBS, "", 20),
        (Mutant::AttemptNotNoted, JOBS, "attempt", 20_000),
        (Mutant::FailureIsDone, JOBS, "", 50),
        (Mutant::NoteEndsTooSoon, JOBS, "", 50),
        (Mutant::DoneAheadSilences, BROKEN, "", 200),
        (
            Mutant::LeaderFromMemory,
            Scenario::Elections,
            "at once",
            20_000,
        ),
    ]
};

/// `LEASEHOLD_TRIALS` finds each mutant more often, from different seeds.
#[cfg(leasehold_mutants)]
#[test]
fn each_mutant_is_found_within_its_budget() {
    let trials = number("LEASEHOLD_TRIALS", 1);
    for &(mutant, scenario, problem, budget) in MUTANTS {
        mutant.plant();
        let mut found = Vec::new();
        for first in (0..trials).map(|trial| trial * 1_000_000) {
            let explore = explorations(first..first + budget).shrink_runs(0);
            let failure = match scenario {
                Scenario::Jobs(model) => explore.find(|sim| jobs::scenario(sim, model)),
                Scenario::Elections => explore.find(elections::scenario),
            };
            let failure = failure.unwrap_or_else(|| panic!("{} is not found", mutant.name()));
            let reason = failure.reason.lines().next().unwrap_or_default();
            assert!(reason.contains(problem), "{}: {reason}", mutant.name());
            found.push(failure.runs);
        }
        let (sum, max) = (found.iter().sum::<u64>(), found.iter().max());
        let mean = sum as f64 / trials as f64;
        let max = max.copied().unwrap_or_default();
        println!("{:40} {budget:5} {mean:7.1} {max:5}", mutant.name());
    }
}

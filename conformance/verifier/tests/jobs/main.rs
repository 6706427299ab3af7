//! Explores jobs that run once, and elections, under faults. `LEASEHOLD_SEEDS` sets the number of seeds.
//!
//! With `--cfg leasehold_mutants`, each mutant of a job, an election or a note must be found within its budget.

mod elections;
mod jobs;

use std::time::Duration;

use leasehold_sim::{Exploration, FaultMix};

#[cfg(not(leasehold_mutants))]
fn seeds() -> u64 {
    let asked = std::env::var("LEASEHOLD_SEEDS").ok();
    asked.map_or(150, |text| {
        text.parse().expect("LEASEHOLD_SEEDS is a number")
    })
}

#[cfg(not(leasehold_mutants))]
fn explorations() -> Exploration {
    Exploration::new()
        .seeds(0..seeds())
        .fault_mix(FaultMix::all())
        .time_limit(Duration::from_secs(20_000))
}

#[cfg(not(leasehold_mutants))]
#[test]
fn jobs_run_once() {
    explorations().check(|sim| jobs::scenario(sim, jobs::Model::Within));
}

#[cfg(not(leasehold_mutants))]
#[test]
fn jobs_keep_going_outside_of_the_model() {
    explorations().check(|sim| jobs::scenario(sim, jobs::Model::Outside));
}

#[cfg(not(leasehold_mutants))]
#[test]
fn one_process_leads() {
    explorations().check(elections::scenario);
}

#[cfg(leasehold_mutants)]
#[test]
fn each_mutant_is_found_within_its_budget() {
    use leasehold_api::mutants::Mutant;

    let inside = |sim| jobs::scenario(sim, jobs::Model::Within);
    let outside = |sim| jobs::scenario(sim, jobs::Model::Outside);
    let budgets = [
        (Mutant::DecidedBeforeTheLock, 20),
        (Mutant::AttemptNotNoted, 200),
        (Mutant::FailureIsDone, 50),
        (Mutant::NoteEndsTooSoon, 50),
        (Mutant::DoneAheadSilences, 200),
        (Mutant::LeaderFromMemory, 200),
    ];
    for (mutant, budget) in budgets {
        mutant.plant();
        let explore = Exploration::new()
            .seeds(0..budget)
            .shrink_runs(0)
            .fault_mix(FaultMix::all())
            .time_limit(Duration::from_secs(20_000));
        let failure = match mutant {
            Mutant::DoneAheadSilences => explore.find(outside),
            Mutant::LeaderFromMemory => explore.find(elections::scenario),
            _ => explore.find(inside),
        };
        let failure = failure.unwrap_or_else(|| panic!("{} is not found", mutant.name()));
        println!(
            "{:40} {}",
            mutant.name(),
            failure.reason.lines().next().unwrap_or_default()
        );
    }
}

//! The stress runs and their checker: the code keeps its promises, and the checker finds a broken
//! promise.
//!
//! These tests run a few seeds. `./test` runs thousands with the command `explore`, in a release
//! build.

use leasehold_sim::tools::{SHRINK_RUNS, Scheduling, Tape};
use leasehold_sim::{Ending, SimOptions};
use leasehold_verifier::{Assumption, Stress, StressRun};

fn run(stress: &Stress, seed: u64) -> StressRun {
    stress.run(SimOptions::new(seed).log_limit(0), Scheduling::Random)
}

/// Returns the first seed below `seeds` whose run breaks one of these promises.
fn first_broken(stress: &Stress, seeds: u64, promises: &[&str]) -> Option<u64> {
    (0..seeds).find(|seed| {
        let broken = run(stress, *seed).violations;
        broken.iter().any(|it| promises.contains(&it.promise))
    })
}

fn assert_kept(stress: &Stress) {
    for seed in 0..40 {
        let run = run(stress, seed);
        assert_eq!(run.violations, [], "seed {seed}");
    }
}

#[test]
fn promises_are_kept_within_the_model() {
    assert_kept(&Stress::new());
}

#[test]
fn promises_are_kept_outside_of_the_model() {
    assert_kept(&Stress::new().out_of_model());
}

#[test]
fn exclusion_fails_without_each_of_its_assumptions() {
    let rows = [
        (Assumption::OneHistory, &["S1", "S2"][..]),
        (Assumption::NoEviction, &["S1", "S2"]),
        (Assumption::SameRate, &["S1", "S2"]),
        (Assumption::SameTime, &["S1", "S2"]),
        // No guard is wrong here. A user checks its guard and begins to work. Its machine is paused for
        // longer than the lease, and the user finishes its work while another user works.
        (Assumption::UserStops, &["S1"]),
    ];
    let holds = |(assumption, promises): &&(Assumption, &[&str])| {
        first_broken(&Stress::new().breaking(*assumption), 200, promises).is_none()
    };
    let unbroken: Vec<_> = rows.iter().filter(holds).collect();
    assert!(
        unbroken.is_empty(),
        "exclusion holds even without {unbroken:?}"
    );
}

#[test]
fn resource_that_is_read_without_a_claim_loses_additions() {
    let lost = |stress: &Stress| first_broken(stress, 300, &["S5"]);
    assert!(lost(&Stress::new().without_claims()).is_some());
    assert_eq!(lost(&Stress::new()), None);
}

#[test]
fn seed_and_tape_repeat_a_run() {
    let stress = Stress::new();
    for seed in 0..5 {
        let (first, again) = (run(&stress, seed), run(&stress, seed));
        assert_eq!(first.report.trace, again.report.trace);
        assert_eq!(first.coverage, again.coverage);
        let options = SimOptions::new(0).log_limit(0);
        let replayed = stress.run(options, Scheduling::Replay(first.report.tape.clone()));
        assert_eq!(replayed.report.tape, first.report.tape);
        assert_eq!(replayed.report.trace, first.report.trace);
    }
}

#[test]
fn stopped_run_is_a_prefix_of_the_whole_run() {
    let stress = Stress::new().with_careless_resource();
    let seed = first_broken(&stress, 300, &["S5"]).expect("found");
    let (whole, stopped) = (run(&stress, seed), run(&stress.until_broken(), seed));
    assert_eq!(stopped.report.ending, Ending::Stopped);
    assert_eq!(stopped.violations[0], whole.violations[0]);
    assert_eq!(stopped.report.elapsed, stopped.violations[0].at);
    assert!(stopped.report.steps < whole.report.steps);
    let draws = &stopped.report.tape.draws;
    assert!(whole.report.tape.draws.starts_with(draws));
}

#[test]
fn simplified_run_breaks_the_same_promise() {
    let stress = Stress::new().with_careless_resource();
    let seed = first_broken(&stress, 300, &["S5"]).expect("found");
    let found = run(&stress, seed);
    let simplest = |runs| stress.simplest(found.report.tape.clone(), runs);
    let shrunk = simplest(SHRINK_RUNS).expect("it fails");
    assert_eq!(simplest(SHRINK_RUNS).expect("it fails"), shrunk);
    let set = shrunk.tape.draws.iter().filter(|draw| draw.value != 0);
    assert!(set.count() <= 8, "{}", shrunk.tape);
    let options = SimOptions::new(0).log_limit(0);
    let again = stress.run(options, Scheduling::Replay(shrunk.tape.clone()));
    assert_eq!(again.violations[0].promise, found.violations[0].promise);
    let steps = run(&stress.clone().until_broken(), seed).report.steps;
    let stopping = stress.clone().until_broken();
    let again = stopping.run(options, Scheduling::Replay(shrunk.tape));
    assert!(again.report.steps <= steps + 50);
    assert_eq!(stress.simplest(Tape::new(0), 1), None);
}

//! The swarm and its oracle: the code keeps its promises, and the judge would notice if not.
//!
//! A few seeds here; `./test` runs thousands with the command `explore`, in a release build.

use leasehold_sim::swarm::{Assumption, Swarm, SwarmRun};
use leasehold_sim::{Policy, SimOptions};

fn run(swarm: &Swarm, seed: u64) -> SwarmRun {
    swarm.run(SimOptions::new(seed).with_log_limit(0), Policy::Random)
}

/// The first of so many seeds that breaks one of these promises.
fn first_broken(swarm: &Swarm, seeds: u64, promises: &[&str]) -> Option<u64> {
    (0..seeds).find(|seed| {
        let broken = run(swarm, *seed).violations;
        broken.iter().any(|it| promises.contains(&it.promise))
    })
}

fn assert_kept(swarm: &Swarm) {
    for seed in 0..40 {
        let run = run(swarm, seed);
        assert_eq!(run.violations, [], "seed {seed}");
    }
}

#[test]
fn promises_are_kept_within_the_model() {
    assert_kept(&Swarm::new());
}

#[test]
fn what_is_promised_outside_of_the_model_is_kept() {
    assert_kept(&Swarm::new().out_of_model());
}

#[test]
fn exclusion_fails_without_each_of_its_assumptions() {
    for assumption in [
        Assumption::OneHistory,
        Assumption::NoEviction,
        Assumption::SameRate,
    ] {
        let swarm = Swarm::new().breaking(assumption);
        let broken = first_broken(&swarm, 200, &["S1", "S2"]);
        assert!(broken.is_some(), "{assumption:?} does not matter");
    }
}

/// Nothing is wrong with any guard here: a user looks at its own, begins to work, and is not done
/// when its machine has stood still for longer than the lease, and somebody else works.
#[test]
fn exclusion_fails_if_users_do_not_stop() {
    let swarm = Swarm::new().breaking(Assumption::UserStops);
    let broken = first_broken(&swarm, 200, &["S1"]);
    assert!(broken.is_some(), "A4 does not matter");
}

#[test]
fn a_resource_that_takes_older_tokens_is_found() {
    let swarm = Swarm::new().with_careless_resource();
    let broken = first_broken(&swarm, 300, &["S5"]);
    assert!(broken.is_some());
}

#[test]
fn a_seed_is_the_same_run_again_and_its_tape_too() {
    let swarm = Swarm::new();
    for seed in 0..5 {
        let (first, again) = (run(&swarm, seed), run(&swarm, seed));
        assert_eq!(first.report.trace, again.report.trace);
        assert_eq!(first.coverage, again.coverage);
        let options = SimOptions::new(0).with_log_limit(0);
        let replayed = swarm.run(options, Policy::Replay(first.report.tape.clone()));
        assert_eq!(replayed.report.tape, first.report.tape);
        assert_eq!(replayed.report.trace, first.report.trace);
    }
}

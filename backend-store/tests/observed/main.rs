//! Explores stores without a clock: machines whose clocks are hours apart and run up to 1 % fast, that are stopped, die and
//! are started again; and stores whose clock errs. `LEASEHOLD_SEEDS` sets the number of seeds, and `LEASEHOLD_FIRST_SEED` the first one.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the store in memory uses tokio's paused clock"
)]

mod clocks;
mod machine;
mod moments;
mod plan;
#[expect(dead_code, reason = "the tests of a store with a clock use the rest")]
#[path = "../support/mod.rs"]
mod support;
mod users;
#[expect(dead_code, reason = "the suite uses the rest")]
mod world;

use std::ops::Range;

use plan::{Seen, Verdict};

/// The number in an environment variable, or the default.
fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}

fn seeds() -> Range<u64> {
    let first = number("LEASEHOLD_FIRST_SEED", 0);
    first..first + number("LEASEHOLD_SEEDS", 20)
}

/// Runs a scenario with each seed.
fn explore(scenario: impl Fn(u64, &mut Seen) -> Verdict) -> Seen {
    let mut seen = Seen::default();
    for seed in seeds() {
        if let Err(broken) = scenario(seed, &mut seen) {
            panic!("seed {seed}: {broken}");
        }
    }
    println!("{seen:?}");
    seen
}

#[test]
fn clocks_break_no_lock() {
    let (seen, runs) = (explore(plan::safety), seeds().count() as u64);
    assert!(seen.entered > runs * 3, "{seen:?}");
    assert!(seen.stopped > runs / 4, "{seen:?}");
    assert!(seen.restarted > runs / 4, "{seen:?}");
    assert!(seen.removed > runs / 4, "{seen:?}");
}

#[test]
fn lock_of_a_dead_holder_is_granted() {
    let (seen, runs) = (explore(plan::liveness), seeds().count() as u64);
    assert_eq!(seen.taken_over, runs, "{seen:?}");
}

#[test]
fn clocks_within_the_skew_break_no_lock() {
    let seen = explore(plan::safety_within_the_skew);
    let runs = seeds().count() as u64;
    assert!(seen.entered > runs * 3, "{seen:?}");
    assert!(seen.stopped > runs / 4, "{seen:?}");
    assert!(seen.restarted > runs / 4, "{seen:?}");
}

/// So the skew has no default.
#[test]
fn clocks_beyond_the_skew_break_a_lock() {
    let broken = (0..500).find_map(|seed| {
        let verdict = plan::safety_beyond_the_skew(seed, &mut Seen::default());
        verdict.err().filter(|it| it.contains("two holders"))
    });
    println!("{}", broken.expect("two clocks are too far apart"));
}

#[test]
fn clock_that_errs_breaks_no_lock() {
    let (seen, runs) = (explore(clocks::safety), seeds().count() as u64);
    assert!(seen.entered > runs * 10, "{seen:?}");
}

#[test]
fn processes_of_a_moment_get_the_lock_of_a_dead_holder() {
    let (seen, runs) = (explore(moments::liveness), seeds().count() as u64);
    assert_eq!(seen.taken_over, runs, "{seen:?}");
}

#[test]
fn row_of_processes_of_a_moment_stays_small() {
    for seed in 0..5 {
        let verdict = moments::row_stays_small(seed, seed == 4);
        assert_eq!(verdict, Ok(()), "seed {seed}");
    }
}

//! Each mutant of a store without a clock is found within its budget.

use leasehold_api::mutants;

use crate::clocks;
use crate::moments;
use crate::plan::{self, Seen, Verdict};

type Scenario = fn(u64, &mut Seen) -> Verdict;

/// A mutant, the scenario that finds it, a part of the problem that it must cause, and its budget of seeds.
const MUTANTS: &[(&str, Scenario, &str, u64)] = &[
    ("observed-promise-is-not-written", plan::safety, "two holders", 2_000),
    ("observed-time-is-the-greatest-across-promises", plan::safety, "two holders", 2_000),
    ("observed-push-is-trusted", plan::safety, "", 2_000),
    ("lease-counted-from-the-reply", plan::safety, "two holders", 2_000),
    ("observed-floor-is-not-read", plan::safety, "token", 100),
    ("observed-late-create-is-applied", plan::safety, "token", 2_000),
    ("observed-row-keeps-the-time-of-its-promise", plan::liveness, "not granted", 100),
    ("observed-skew-is-not-subtracted", plan::safety_within_the_skew, "two holders", 2_000),
    ("guard-outlasts-the-error-of-the-clock", clocks::safety, "two holders", 200),
    ("error-of-the-clock-is-a-step", clocks::safety, "ClockStepped", 200),
    ("observed-promise-has-the-time-of-a-failed-try", moments::liveness, "not granted", 100),
    ("observed-idle-time-stands-still", |seed, _| moments::row_stays_small(seed, false), "a row of", 1),
];

#[test]
fn each_mutant_is_found_within_its_budget() {
    for (name, rule) in mutants::all() {
        let is_listed = MUTANTS.iter().any(|(mutant, ..)| *mutant == name);
        assert!(is_listed || rule != "observed", "{name} has no budget");
    }
    for &(mutant, scenario, problem, budget) in MUTANTS {
        assert!(mutants::plant(mutant), "no mutant {mutant:?}");
        let broken = (0..budget).find_map(|seed| Some((seed, scenario(seed, &mut Seen::default()).err()?)));
        let (seed, broken) = broken.unwrap_or_else(|| panic!("{mutant} is not found"));
        assert!(broken.contains(problem), "{mutant}: {broken}");
        println!("{mutant:50} {budget:5} {:5} {broken}", seed + 1);
    }
    mutants::clear();
}

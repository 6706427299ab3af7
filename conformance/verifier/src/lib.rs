//! Checks leasehold itself: the production lock client and the state machine, on the simulator.
//!
//! A [`Stress`] runs one seed: several clients, every fault that the simulator has, and a checker
//! that compares each step with the promises of `docs/semantics.md`. The command `explore` runs
//! many seeds, simplifies the ones that fail, and plants mutants that the checker must find.
//!
//! This package is not published. What users need to explore their own code is in
//! `leasehold-sim`.

mod checker;
mod stress;

pub use checker::{Coverage, Situation, Violation};
pub use stress::{
    Assumption, CARELESS_RESOURCE, PLANTED, Planted, SmallScope, Stress, StressRun, try_only,
};

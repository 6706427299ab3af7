//! Checks leasehold itself: the production lock client and the state machine, on the simulator.
//!
//! A [`Stress`] runs one seed: several clients, every fault that the simulator has, and a checker
//! that compares each step with the promises of `docs/semantics.md`. The command `explore` runs
//! many seeds and simplifies the runs that fail. It also activates mutants, which the checker must
//! find.
//!
//! This package is not published. To explore your own code, use `leasehold-sim`.

mod checker;
mod stress;

pub use checker::{Coverage, Situation, Violation};
pub use stress::{
    ANSWERING_REPLICA, Assumption, CARELESS_RESOURCE, IN_EVERY_BUILD, MutantInfo, OLDER_EPOCH,
    READ_WITHOUT_CLAIM, SmallScope, Stress, StressRun, try_only,
};

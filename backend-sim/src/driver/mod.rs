//! The lock around a simulation, its clock, its tasks, and the two drivers: one inside the user's
//! tokio test, and an executor that runs a whole scenario.

pub(crate) mod clock;
pub(crate) mod executor;
pub(crate) mod sleep;
pub(crate) mod tasks;
pub(crate) mod tokio;
pub(crate) mod world;

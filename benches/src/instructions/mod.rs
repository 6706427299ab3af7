//! Counts the instructions of the hot paths with callgrind and compares them with a baseline.
//!
//! Instruction counts hardly depend on the load of the machine, so they show a change of a few
//! percent that a measurement of time would lose in noise. They are not times: waiting for memory
//! or for the network counts as nothing.
//!
//! The baseline is a file in the repository. A count that moves by more than its tolerance, up or
//! down, is a failure. Fix the cause, or write the new counts and commit them with the change that
//! moved them.

mod baseline;
mod callgrind;
mod cases;
mod server;

pub use baseline::{Baseline, TOLERANCE};
pub use cases::{Case, cases};
pub use server::{Queue, Turn, queues};

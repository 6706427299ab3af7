//! Instructions of what runs in every operation, counted by callgrind, beside a kept baseline.
//!
//! A count of instructions hardly depends on what else the machine does, so a change of a few
//! percent is seen where a measurement of time would be lost in noise. It is no time: what waits
//! for memory or for the network costs nothing here.
//!
//! The baseline is a file of the repository. A count that has moved by more than its tolerance, up
//! or down, is a failure: either it is mended, or the new counts are written, reviewed and kept with
//! the change that moved them.

mod baseline;
mod callgrind;
mod cases;

pub use baseline::{Baseline, Comparison, TOLERANCE};
pub use callgrind::Callgrind;
pub use cases::{Case, cases};

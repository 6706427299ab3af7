//! The quorum on simulated servers, with exact times.

mod bursts;
mod failures;
mod input;
mod long_holds;
mod one_by_one;
mod overlapping;
mod partial;
mod restarts;
mod stress;
mod support;
mod time;
mod tokens;

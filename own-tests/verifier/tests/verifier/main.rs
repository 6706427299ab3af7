//! Tests of the verifier, and the hashes of some runs.

mod same_runs;
mod stress;

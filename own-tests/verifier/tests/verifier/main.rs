//! Tests of the verifier, and the hashes of some runs.

mod golden;
mod stress;

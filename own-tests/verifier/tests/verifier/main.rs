//! Tests of the verifier, and the hashes of some runs.
//!
//! Not compiled with mutants, because an active mutant would affect all tests of the process.
#![cfg(not(leasehold_mutants))]

mod golden;
mod stress;

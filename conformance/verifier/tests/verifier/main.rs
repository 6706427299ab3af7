//! Tests of the verifier, and the kept hashes of some runs.
//!
//! Not compiled with mutants: one that is planted would show in all tests of the process.
#![cfg(not(leasehold_mutants))]

mod golden;
mod stress;

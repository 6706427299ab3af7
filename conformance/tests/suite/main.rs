//! Tests of the suite: what it refuses, and how little a backend needs to pass.

mod breaks;
mod small;
#[path = "../support/mod.rs"]
mod support;

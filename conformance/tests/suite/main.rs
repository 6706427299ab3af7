//! Tests of the suite: broken backends fail, and a minimal backend passes.

mod breaks;
mod small;
#[path = "../support/mod.rs"]
mod support;

//! Tests of the suite: broken backends fail, and smaller backends and slow ones pass.

mod breaks;
mod connection_breaks;
mod small;
#[path = "../support/mod.rs"]
mod support;
mod variants;

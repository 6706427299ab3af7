//! Late, repeated and lost writes, conflicts, and what a client leaves behind.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the store in memory uses tokio's paused clock"
)]

#[path = "../support/mod.rs"]
mod support;

mod contending;
mod contract;
mod exploring;
mod late;
mod outcomes;
mod quiet;
mod remembering;
mod sharing;
mod steps;

//! Late, repeated and lost writes, conflicts, and what a client leaves behind.

#[path = "../support/mod.rs"]
mod support;

mod exploring;
mod late;
mod outcomes;
mod sharing;
mod steps;

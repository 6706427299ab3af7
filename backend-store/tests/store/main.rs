//! Late, repeated and lost writes, conflicts, and what a client leaves behind.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the store in memory uses tokio's paused clock"
)]

/// Checks that a value has this form, and shows it otherwise.
macro_rules! assert_matches {
    ($value:expr, $pattern:pat) => {
        match &$value {
            $pattern => {}
            other => panic!("{other:?}"),
        }
    };
}

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

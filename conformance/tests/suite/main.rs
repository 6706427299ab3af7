//! Tests of the suite: broken backends fail, and smaller backends and slow ones pass.

use std::fmt::Debug;
use std::sync::Arc;

use leasehold_conformance::{Case, Harness, cases, run_case};

/// Defines broken backends: the name of each, the rule that it breaks, and the cases that must fail.
macro_rules! breaks {
    ($($(#[$doc:meta])* $name:ident: $rule:literal, $($case:literal),+;)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Break { $($(#[$doc])* $name),+ }

        const BREAKS: &[(Break, &str, &str)] = &[$($((Break::$name, $rule, $case)),+),+];
    };
}

mod breaks;
mod connection_breaks;
mod small;
#[path = "../support/mod.rs"]
mod support;
mod unfair;
mod variants;

fn case(name: &str) -> &'static Case {
    cases()
        .find(|case| case.name() == name)
        .unwrap_or_else(|| panic!("unknown case {name}"))
}

/// Asserts that every case in a table fails with its broken backend.
fn assert_each_fails<B: Copy + Debug>(
    breaks: &[(B, &str, &str)],
    harness: impl Fn(B) -> Arc<dyn Harness>,
) {
    let mut missed = Vec::new();
    for (how, rule, name) in breaks {
        match run_case(&harness(*how), case(name)) {
            Ok(()) => missed.push(format!("{name} passed with {how:?}, which breaks {rule}")),
            Err(failure) => println!("{how:?} breaks {rule}. {name} fails:\n{failure}\n"),
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

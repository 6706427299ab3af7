//! The conformance suite on a store in memory, in virtual time. A fifth of the writes meet a conflict,
//! and a tenth arrive a second time later.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the store in memory uses tokio's paused clock"
)]

#[expect(dead_code, reason = "the other tests use the rest")]
mod support;

use std::process::ExitCode;

use support::Faults;
use support::harness::Memory;

fn main() -> ExitCode {
    let faults = Faults {
        conflict: 20,
        copied: 10,
        ..Faults::default()
    };
    leasehold_conformance::run(Memory(faults), &["outages::*"])
}

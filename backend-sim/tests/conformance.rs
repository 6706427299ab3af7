//! The conformance suite on the simulator, in virtual time.

mod harness;

use std::process::ExitCode;

fn main() -> ExitCode {
    leasehold_conformance::run(harness::Simulated, &[])
}

//! The conformance suite on a real server, through the `fred` crate.

mod client;

#[path = "../../redis-common/tests/shared/harness.rs"]
mod harness;

fn main() -> std::process::ExitCode {
    harness::run("fred", include_str!("../src/lib.rs"))
}

//! The conformance suite on a real server, through the `redis` crate.

mod client;

#[path = "../../redis-common/tests/shared/harness.rs"]
mod harness;

fn main() -> std::process::ExitCode {
    harness::run("redis-rs", include_str!("../src/lib.rs"))
}

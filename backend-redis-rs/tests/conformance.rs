//! The conformance suite on a real server, through the `redis` crate.

mod client;

#[path = "../../redis-link/tests/shared/harness.rs"]
mod harness;

use std::process::ExitCode;

use harness::Redis;

/// Cases that need virtual time: they would take minutes here.
const CANNOT_RUN: &[&str] = &[
    "long_spans::token_is_remembered",
    "long_spans::token_outlives_an_expired_holder",
    "long_spans::longest_lease",
    "long_spans::no_copy_outlives_its_watermark",
];

fn main() -> ExitCode {
    leasehold_conformance::run(
        Redis::start("redis-rs", include_str!("../src/lib.rs")),
        CANNOT_RUN,
    )
}

//! Random command sequences through a store in memory, compared with the state machine.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the store in memory uses tokio's paused clock"
)]

#[expect(dead_code, reason = "the other tests use the rest")]
mod support;

use std::sync::Arc;
use std::time::Duration;

use leasehold_conformance::differential::{check_with_estimates, commands};

use support::{Faults, Server};

#[test]
fn random_commands_are_answered_as_the_machine_does() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime starts");
    let backend = runtime.block_on(async {
        let server = Server::new(1, Duration::ZERO);
        server.set_faults(Faults {
            conflict: 3,
            ..Faults::default()
        });
        server.client()
    });
    match check_with_estimates(&runtime, Arc::new(backend), commands()) {
        Ok(counts) => println!("{counts}"),
        Err(problem) => panic!("{problem}"),
    }
}

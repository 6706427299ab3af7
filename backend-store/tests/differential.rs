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

use support::{Fault, Faults, Server};

#[test]
fn random_commands_are_answered_as_the_machine_does() {
    let runtime = support::paused();
    let backend = runtime.block_on(async {
        let server = Server::new(1, Duration::ZERO);
        server.compare_tags();
        server.read_late(Duration::from_millis(1));
        server.set_faults(Faults::default().share(Fault::Conflict, 3));
        server.client()
    });
    match check_with_estimates(&runtime, Arc::new(backend), commands()) {
        Ok(counts) => println!("{counts}"),
        Err(problem) => panic!("{problem}"),
    }
}

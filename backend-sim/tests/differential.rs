//! Random command sequences through the simulated network, compared with the state machine.

use std::sync::Arc;

use leasehold_conformance::differential::{check, commands};
use leasehold_sim::SimServer;

#[test]
fn random_commands_are_answered_as_the_machine_does() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime starts");
    let backend = runtime.block_on(async { SimServer::new(1).client("client") });
    match check(&runtime, Arc::new(backend), commands()) {
        Ok(counts) => println!("{counts}"),
        Err(problem) => panic!("{problem}"),
    }
}

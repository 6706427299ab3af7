//! Random command sequences to a NATS server, compared with the state machine.

use std::sync::Arc;

use leasehold_api::bounds;
use leasehold_conformance::differential::{check, commands};
use leasehold_nats::{NatsBackend, Options};
use leasehold_test_servers::NatsServers;

#[test]
fn random_commands_are_answered_as_the_machine_does() {
    let server = NatsServers::start("");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    // Other tests may keep the machine busy.
    let options = Options::new().call_timeout(bounds::MAX_CALL_TIMEOUT);
    let url = server.url();
    let connecting = NatsBackend::connect_with(&url, options);
    let backend = runtime.block_on(connecting).expect("connected");
    match check(&runtime, Arc::new(backend), commands()) {
        Ok(counts) => println!("{counts}"),
        Err(problem) => panic!("{problem}"),
    }
}

//! Random command sequences to a real server, compared with the state machine.

#[expect(dead_code, reason = "the other tests use the rest")]
mod support;

use std::sync::Arc;

use leasehold_api::bounds;
use leasehold_conformance::differential::{check_with_estimates, commands};
use leasehold_postgres::{Options, PostgresBackend};

#[test]
fn random_commands_are_answered_as_the_machine_does() {
    let server = support::Server::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    // Other tests may keep the machine busy.
    let options = Options::new().call_timeout(bounds::MAX_CALL_TIMEOUT);
    let backend = runtime
        .block_on(PostgresBackend::connect_with(&server.url(), options))
        .expect("the server can be reached");
    match check_with_estimates(&runtime, Arc::new(backend), commands()) {
        Ok(counts) => println!("{counts}"),
        Err(problem) => panic!("{problem}"),
    }
}

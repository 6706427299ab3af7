//! Random command sequences through fred to a real server, compared with the state
//! machine.

use std::sync::Arc;

use leasehold_conformance::differential::{check, commands};
use leasehold_fred::FredBackend;
use leasehold_test_servers::RedisServer;

#[test]
fn random_commands_are_answered_as_the_machine_does() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let backend = runtime
        .block_on(FredBackend::connect(&server.url()))
        .expect("the server can be reached");
    match check(&runtime, Arc::new(backend), commands()) {
        Ok(counts) => println!("{counts}"),
        Err(problem) => panic!("{problem}"),
    }
}

//! Random command sequences through the `redis` crate to a real server, compared with the state
//! machine.

use std::sync::Arc;

use leasehold_conformance::differential::{check, commands};
use leasehold_redis_rs::RedisBackend;
use leasehold_test_servers::RedisServer;

#[test]
fn random_commands_are_answered_as_the_machine_does() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let backend = runtime
        .block_on(RedisBackend::connect(&server.unix_url()))
        .expect("the server can be reached");
    match check(&runtime, Arc::new(backend), commands()) {
        Ok(counts) => println!("{counts}"),
        Err(problem) => panic!("{problem}"),
    }
}

//! Random command sequences through the `redis` crate to a real server, compared with the state
//! machine.

use std::sync::Arc;

use leasehold_api::bounds;
use leasehold_conformance::differential::{check, commands};
use leasehold_redis_rs::{Options, RedisBackend};
use leasehold_test_servers::RedisServer;

#[test]
fn random_commands_are_answered_as_the_machine_does() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    // Answers are compared, not their speed; other tests may be using up the machine.
    let patient = Options::new().with_call_timeout(bounds::MAX_CALL_TIMEOUT);
    let backend = runtime
        .block_on(RedisBackend::connect_with(&server.unix_url(), patient))
        .expect("the server can be reached");
    match check(&runtime, Arc::new(backend), commands()) {
        Ok(counts) => println!("{counts}"),
        Err(problem) => panic!("{problem}"),
    }
}

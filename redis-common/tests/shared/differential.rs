//! Random command sequences to a real server, compared with the state machine.

use leasehold_api::bounds;
use leasehold_conformance::differential::{check, commands};
use leasehold_redis_common::Options;
use leasehold_test_servers::RedisServer;

use crate::client;

/// Runs the commands on a server, at the URL that `url` returns.
pub(crate) fn run(url: fn(&RedisServer) -> String) {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    // Other tests may keep the machine busy.
    let options = Options::new().call_timeout(bounds::MAX_CALL_TIMEOUT);
    let backend = runtime
        .block_on(client::connect_with(&url(&server), options))
        .expect("the server can be reached");
    match check(&runtime, backend, commands()) {
        Ok(counts) => println!("{counts}"),
        Err(problem) => panic!("{problem}"),
    }
}

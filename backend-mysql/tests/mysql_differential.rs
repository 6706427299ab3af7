//! Random command sequences to a MariaDB server, compared with the state machine.

mod support;

use std::sync::Arc;

use leasehold_api::bounds;
use leasehold_conformance::differential::{check_with_estimates, commands};
use leasehold_mysql::{MysqlBackend, Options};

#[test]
fn random_commands_are_answered_as_the_machine_does() {
    let server = support::server(&[]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    // Other tests may keep the machine busy.
    let options = Options::new().call_timeout(bounds::MAX_CALL_TIMEOUT);
    let url = server.url(support::USER);
    let connecting = MysqlBackend::connect_with(&url, options);
    let backend = runtime.block_on(connecting).expect("connected");
    match check_with_estimates(&runtime, Arc::new(backend), commands()) {
        Ok(counts) => println!("{counts}"),
        Err(problem) => panic!("{problem}"),
    }
}

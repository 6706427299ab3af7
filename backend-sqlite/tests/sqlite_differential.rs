//! Random command sequences to a file, compared with the state machine.

use std::sync::Arc;

use leasehold_api::bounds;
use leasehold_conformance::differential::{check_with_estimates, commands};
use leasehold_sqlite::{Options, SqliteBackend};

#[test]
fn random_commands_are_answered_as_the_machine_does() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    // Other tests may keep the machine busy.
    let options = Options::new().call_timeout(bounds::MAX_CALL_TIMEOUT);
    let opening = SqliteBackend::open_with(folder.path().join("locks.db"), options);
    let backend = runtime.block_on(opening).expect("a new file");
    match check_with_estimates(&runtime, Arc::new(backend), commands()) {
        Ok(counts) => println!("{counts}"),
        Err(problem) => panic!("{problem}"),
    }
}

//! Random command sequences to the store of this example, compared with the state machine.

#[path = "../src/store.rs"]
mod store;

use std::sync::Arc;

use leasehold::store::StoreBackend;
use leasehold_conformance::differential::{check, commands};
use store::SqliteStore;

#[test]
fn random_commands_are_answered_as_the_machine_does() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let store = runtime.block_on(async { SqliteStore::open(&folder.path().join("locks.db")) });
    let backend = StoreBackend::new(store.expect("a new file"));
    match check(&runtime, Arc::new(backend), commands()) {
        Ok(counts) => println!("{counts}"),
        Err(problem) => panic!("{problem}"),
    }
}

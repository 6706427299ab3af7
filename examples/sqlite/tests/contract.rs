//! The store refuses the writes that it must refuse.

#[path = "../src/store.rs"]
mod store;

use leasehold::api::Key;
use leasehold::store::check_writes;

use store::SqliteStore;

#[tokio::test]
async fn store_keeps_the_contract_of_writes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = SqliteStore::open(&folder.path().join("locks.db")).expect("a new file");
    let key = Key::new("a new key").expect("valid");
    check_writes(&store, &key)
        .await
        .expect("it keeps the contract");
}

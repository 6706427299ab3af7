//! The conformance suite on the store of this example.

#[path = "../src/store.rs"]
mod store;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::store::StoreBackend;
use leasehold::{Capabilities, Key, LockBackend};
use leasehold_conformance::{Abilities, Environment, Harness, SetupError, Timing};
use rusqlite::{Connection, params};
use store::SqliteStore;

const FOREIGN: &[u8] = b"another program's value";

/// The store can't notify or list, time is real, and no network can be cut.
const CANNOT_RUN: &[&str] = &[
    "client_push::*",
    "client_renewal::revoked_before_the_subscription_is_noticed",
    "listing::*",
    "long_spans::*",
    "notifications::*",
    "outages::*",
    "unreachable::*",
];

/// Each case has its own file.
#[derive(Debug)]
struct Sqlite {
    folder: tempfile::TempDir,
}

#[async_trait]
impl Harness for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full();
        capabilities.list = false;
        capabilities.push = false;
        capabilities.reachability = false;
        capabilities.independent_renewal = false;
        capabilities.batches = false;
        capabilities
    }

    fn abilities(&self) -> Abilities {
        Abilities::default().plant_foreign(true)
    }

    fn timing(&self) -> Timing {
        // A busy machine may stall a process for more than 100 ms.
        Timing::real().unit(Duration::from_millis(300))
    }

    async fn environment(&self, namespace: &str) -> Result<Arc<dyn Environment>, SetupError> {
        let path = self.folder.path().join(format!("{namespace}.db"));
        Ok(Arc::new(File { path }))
    }
}

#[derive(Debug)]
struct File {
    path: PathBuf,
}

#[async_trait]
impl Environment for File {
    async fn backend(&self) -> Result<Arc<dyn LockBackend>, SetupError> {
        Ok(Arc::new(StoreBackend::new(SqliteStore::open(&self.path)?)))
    }

    async fn let_time_pass(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    async fn plant_foreign(&self, key: &Key) -> Result<(), SetupError> {
        let row = params![key.as_str().as_bytes(), FOREIGN, i64::MAX];
        Connection::open(&self.path)?.execute("INSERT INTO locks VALUES (?1, 0, ?2, ?3)", row)?;
        Ok(())
    }

    async fn foreign_is_untouched(&self, key: &Key) -> Result<bool, SetupError> {
        let query = "SELECT state FROM locks WHERE key = ?1";
        let state =
            Connection::open(&self.path)?.query_row(query, [key.as_str().as_bytes()], |row| {
                row.get::<_, Vec<u8>>(0)
            })?;
        Ok(state == FOREIGN)
    }
}

fn main() -> ExitCode {
    let folder = tempfile::tempdir().expect("a temporary folder");
    leasehold_conformance::run(Sqlite { folder }, CANNOT_RUN)
}

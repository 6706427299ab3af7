//! The conformance suite on a file.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_api::{Capabilities, Key, LockBackend, bounds};
use leasehold_conformance::{Abilities, Environment, Harness, SetupError, Timing};
use leasehold_sqlite::{Options, SqliteBackend};
use rusqlite::{Connection, params};

const FOREIGN: &[u8] = b"another program's value";

/// The store can't notify, time is real, and no network can be cut.
const CANNOT_RUN: &[&str] = &[
    "client_push::*",
    "client_renewal::revoked_before_the_subscription_is_noticed",
    "long_spans::*",
    "notifications::*",
    "outages::*",
    "unreachable::*",
];

/// Each case has a separate file.
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
        capabilities.push = false;
        capabilities.reachability = false;
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
        // A busy disk may need longer than the default.
        let options = Options::new().call_timeout(bounds::MAX_CALL_TIMEOUT);
        Ok(Arc::new(
            SqliteBackend::open_with(&self.path, options).await?,
        ))
    }

    async fn let_time_pass(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    async fn plant_foreign(&self, key: &Key) -> Result<(), SetupError> {
        let row = params![key.as_str(), FOREIGN, i64::MAX];
        let statement = "INSERT INTO leasehold_locks VALUES ('', ?1, 0, ?2, ?3)";
        Connection::open(&self.path)?.execute(statement, row)?;
        Ok(())
    }

    async fn foreign_is_untouched(&self, key: &Key) -> Result<bool, SetupError> {
        let query = "SELECT state FROM leasehold_locks WHERE key = ?1";
        let connection = Connection::open(&self.path)?;
        let state: Vec<u8> = connection.query_row(query, [key.as_str()], |row| row.get(0))?;
        Ok(state == FOREIGN)
    }
}

fn main() -> ExitCode {
    let folder = tempfile::tempdir().expect("a temporary folder");
    leasehold_conformance::run(Sqlite { folder }, CANNOT_RUN)
}

//! What the suite can't see: several processes, boots, and the file itself.

mod boots;
mod file;
mod processes;

use std::path::PathBuf;
use std::time::Duration;

use leasehold_api::{LockClient, bounds};
use leasehold_sqlite::{Options, SqliteBackend};
use rusqlite::Connection;

/// What a busy machine may add to any time.
const SLACK: Duration = Duration::from_secs(40);

/// A folder for one file.
struct Folder(tempfile::TempDir);

/// A client that waits for a busy disk.
fn patient(backend: SqliteBackend) -> LockClient {
    let client = LockClient::builder(backend).call_timeout(bounds::MAX_CALL_TIMEOUT);
    client.build().expect("in range")
}

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("locks.db")
    }

    async fn backend(&self) -> SqliteBackend {
        // A busy disk may need longer than the default.
        let options = Options::new().call_timeout(bounds::MAX_CALL_TIMEOUT);
        let backend = SqliteBackend::open_with(self.file(), options).await;
        backend.expect("the file can be opened")
    }

    async fn locks(&self) -> LockClient {
        patient(self.backend().await)
    }

    /// Another program that uses the file.
    fn sql(&self) -> Connection {
        let connection = Connection::open(self.file()).expect("the file can be opened");
        connection.busy_timeout(SLACK).expect("set");
        connection
    }
}

//! A SQLite file that the clients share. There is no server: other programs use the file too.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use leasehold_test_servers::RedisServer;
use rusqlite::Connection;
use tempfile::TempDir;

use super::{Injection, LARGEST_KEY, Servers, sleep, within};
use crate::random::Random;

const FAULTS: &[Injection<Sqlite>] = &[
    (
        within("hold the write lock from outside").delays(),
        |it, random| it.hold("BEGIN IMMEDIATE", random),
    ),
    (
        // Nothing can be removed from the write-ahead log meanwhile.
        within("read from outside"),
        |it, random| it.hold("BEGIN; SELECT * FROM leasehold_locks", random),
    ),
    (within("rewrite the file from outside").delays(), |it, _| {
        it.execute("VACUUM");
    }),
];

pub(crate) struct Sqlite {
    folder: TempDir,
    lease: Duration,
}

impl Sqlite {
    pub(crate) fn start(lease: Duration) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("leasehold-torture-")
            .tempdir();
        let folder = folder.expect("a temporary folder");
        Self { folder, lease }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("locks.db")
    }

    /// Another program.
    fn open(&self) -> Connection {
        let connection = Connection::open(self.path()).expect("a file of SQLite");
        let patient = connection.busy_timeout(Duration::from_secs(60));
        patient.expect("a valid time");
        connection
    }

    fn execute(&self, statements: &str) {
        let done = self.open().execute_batch(statements);
        done.unwrap_or_else(|error| panic!("{statements}: {error}"));
    }

    /// Begins a transaction that stays open for a while.
    fn hold(&self, statements: &str, random: &mut Random) {
        let connection = self.open();
        let begun = connection.execute_batch(statements);
        begun.unwrap_or_else(|error| panic!("{statements}: {error}"));
        sleep(random, self.lease, 20, 200);
    }
}

impl Servers for Sqlite {
    const FAULTS: &[Injection<Self>] = FAULTS;

    fn redis(&self) -> Vec<&RedisServer> {
        Vec::new()
    }

    fn version(&self) -> String {
        format!("SQLite {}", rusqlite::version())
    }

    fn urls(&self, _: &[SocketAddr]) -> Vec<String> {
        vec![format!("sqlite:{}", self.path().display())]
    }

    fn left(&self) -> Vec<String> {
        let large =
            format!("SELECT count(*) FROM leasehold_locks WHERE length(state) > {LARGEST_KEY}");
        let count = self.open().query_row(&large, [], |row| row.get(0));
        let count: i64 = count.expect("a table");
        (count > 0)
            .then(|| format!("{count} large rows"))
            .into_iter()
            .collect()
    }
}

//! A server with the schema, and a user that has only the documented rights.

use std::time::Duration;

use leasehold_api::{LockClient, MutexGuard};
use leasehold_postgres::{Options, PostgresBackend, SCHEMA};
use leasehold_test_servers::{PgBouncer, PostgresOptions, PostgresServer};

/// The user of the backends.
const USER: &str = "locks";
const DATABASE: &str = "shop";

/// A server with the schema.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) postgres: PostgresServer,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(PostgresOptions::default())
    }

    pub(crate) fn start_with(options: PostgresOptions) -> Self {
        let postgres = options.start();
        postgres.execute("postgres", "CREATE DATABASE shop");
        postgres.execute("postgres", "CREATE USER locks");
        postgres.execute(DATABASE, SCHEMA);
        postgres.execute(DATABASE, include_str!("../../src/privileges.sql"));
        Self { postgres }
    }

    /// The URL of the user that has only the documented rights.
    pub(crate) fn url(&self) -> String {
        self.postgres.url(USER, DATABASE)
    }

    /// The URL of this user through the server's port.
    pub(crate) fn tcp_url(&self) -> String {
        self.postgres.tcp_url(USER, DATABASE)
    }

    /// Starts a pooler, and returns its URL for this user.
    pub(crate) fn pooler(&self, settings: &str) -> (PgBouncer, String) {
        let pooler = PgBouncer::start(&self.postgres, USER, settings);
        let url = pooler.url(USER, DATABASE);
        (pooler, url)
    }

    /// Executes statements as the superuser, and returns the result.
    pub(crate) fn execute(&self, statements: &str) -> String {
        self.postgres.execute(DATABASE, statements)
    }
}

/// Connects, even on a machine that is too busy for the default connect timeout.
pub(crate) async fn connect_to(url: &str) -> PostgresBackend {
    let options = Options::new().connect_timeout(Duration::from_secs(5));
    let backend = PostgresBackend::connect_with(url, options).await;
    backend.unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// Waits for a mutex.
pub(crate) async fn hold(locks: &LockClient, key: &str) -> MutexGuard {
    let mutex = locks.mutex(key).expect("valid");
    mutex.lock().await.expect("a lock")
}

//! A server with the schema, and a user that has only the documented rights.

use std::time::Duration;

use leasehold_api::{BackendError, LockClient, MutexGuard};
use leasehold_postgres::{ConnectError, Options, PostgresBackend, SCHEMA, tokio_postgres};
use leasehold_test_servers::{PgBouncer, PostgresOptions, PostgresServer, eventually};

/// The user of the backends.
const USER: &str = "locks";
const DATABASE: &str = "shop";
/// The documented rights of this user.
pub(crate) const PRIVILEGES: &str = include_str!("../../src/privileges.sql");

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
        postgres.execute(DATABASE, PRIVILEGES);
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

    /// Waits until a statement has this result.
    pub(crate) async fn wait_for(&self, statement: &str, expected: &str) {
        eventually(statement, async || self.execute(statement) == expected).await;
    }

    /// Waits until a statement waits for a lock that another one holds.
    pub(crate) async fn somebody_waits(&self) {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        self.wait_for(waiting, "1").await;
    }

    pub(crate) async fn locks(&self) -> LockClient {
        LockClient::new(connect_to(&self.url()).await)
    }
}

/// A busy machine may need longer than the default.
pub(crate) fn patient() -> Options {
    Options::new().connect_timeout(Duration::from_secs(5))
}

pub(crate) async fn connect_to(url: &str) -> PostgresBackend {
    connect_with(url, patient()).await
}

pub(crate) async fn connect_with(url: &str, options: Options) -> PostgresBackend {
    let backend = PostgresBackend::connect_with(url, options).await;
    backend.unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// Through a pooler.
pub(crate) async fn connect_pooled(url: &str) -> PostgresBackend {
    connect_with(url, patient().pooled(true)).await
}

/// Another program.
pub(crate) async fn sql_client(url: &str) -> tokio_postgres::Client {
    let connected = tokio_postgres::connect(url, tokio_postgres::NoTls).await;
    let (client, connection) = connected.expect("a server");
    tokio::spawn(connection);
    client
}

/// The text of a permanent error. It shows no password.
#[track_caller]
pub(crate) fn rejected(connected: Result<PostgresBackend, ConnectError>) -> String {
    match connected {
        Err(error @ ConnectError::Backend(BackendError::Rejected { .. })) => {
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
            error.to_string()
        }
        other => panic!("{other:?}"),
    }
}

/// Waits for a mutex.
pub(crate) async fn hold(locks: &LockClient, key: &str) -> MutexGuard {
    let mutex = locks.mutex(key).expect("valid");
    mutex.lock().await.expect("a lock")
}

//! A server with the schema, and a user that has only the documented rights.

use leasehold_postgres::SCHEMA;
use leasehold_test_servers::PostgresServer;

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
        let postgres = PostgresServer::start();
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

    /// Executes statements as the superuser, and returns the result.
    pub(crate) fn execute(&self, statements: &str) -> String {
        self.postgres.execute(DATABASE, statements)
    }
}

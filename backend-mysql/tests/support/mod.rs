//! A MariaDB server with the schema, and a user with the documented rights.

use leasehold_test_servers::MariaDb;

/// The user of the locks.
pub(crate) const USER: &str = "locks";

pub(crate) fn server(arguments: &[&str]) -> MariaDb {
    prepared(MariaDb::start(arguments))
}

pub(crate) fn prepared(server: MariaDb) -> MariaDb {
    server.execute("shop", leasehold_mysql::SCHEMA);
    for host in ["localhost", "127.0.0.1"] {
        let user = format!("{USER}@'{host}'");
        server.execute("mysql", &format!("CREATE USER {user}"));
        let rights = "SELECT, INSERT, UPDATE, DELETE ON shop.leasehold_locks";
        server.execute("mysql", &format!("GRANT {rights} TO {user}"));
    }
    server
}

//! One MariaDB server, with the schema and a user that has only the documented rights.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use leasehold_test_servers::{MariaDb, RedisServer};

use super::{Injection, LARGEST_KEY, Servers, sleep, within};
use crate::link::{Upstream, fixed};
use crate::random::{Random, between};

const USER: &str = "locks";

const FAULTS: &[Injection<Mysql>] = &[
    (
        within("kill server, restart with its data"),
        |it, random| {
            it.server.stop();
            sleep(random, it.lease, 0, 150);
            it.server.restart();
        },
    ),
    (within("kill connections"), |it, _| {
        it.execute(&format!("KILL CONNECTION USER '{USER}'"));
    }),
    (within("make the server read-only"), |it, random| {
        it.execute("SET GLOBAL read_only = 1");
        sleep(random, it.lease, 20, 200);
        it.execute("SET GLOBAL read_only = 0");
    }),
    (
        within("lock the rows from outside").delays(),
        |it, random| {
            let lock = "START TRANSACTION; SELECT count(*) FROM leasehold_locks FOR UPDATE";
            it.hold(lock, "COMMIT", random);
        },
    ),
    (
        within("lock the table from outside").delays(),
        |it, random| {
            it.hold("LOCK TABLES leasehold_locks WRITE", "UNLOCK TABLES", random);
        },
    ),
];

pub(crate) struct Mysql {
    server: MariaDb,
    lease: Duration,
}

impl Mysql {
    pub(crate) fn start(lease: Duration) -> Self {
        let server = MariaDb::start(&[]);
        let server = Self { server, lease };
        server.execute(include_str!("../../../../backend-mysql/src/schema.sql"));
        server.execute(&format!(
            "CREATE USER {USER}@'127.0.0.1';
            GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold_locks TO {USER}@'127.0.0.1'"
        ));
        server
    }

    fn execute(&self, statements: &str) -> String {
        self.server.execute("shop", statements)
    }

    /// Keeps a lock of the server for a while.
    fn hold(&self, lock: &str, unlock: &str, random: &mut Random) {
        let time = between(random, self.lease / 5, self.lease * 2).as_secs_f64();
        self.execute(&format!("{lock}; DO SLEEP({time}); {unlock}"));
    }
}

impl Servers for Mysql {
    const FAULTS: &[Injection<Self>] = FAULTS;

    fn redis(&self) -> Vec<&RedisServer> {
        Vec::new()
    }

    fn version(&self) -> String {
        format!("MariaDB {}", self.execute("SELECT version()"))
    }

    fn linked(&self) -> Vec<Upstream> {
        vec![fixed((Ipv4Addr::LOCALHOST, self.server.port()).into())]
    }

    fn urls(&self, links: &[SocketAddr]) -> Vec<String> {
        let url = |link| format!("mysql://{USER}@{link}/shop");
        links.iter().map(url).collect()
    }

    fn left(&self) -> Vec<String> {
        let connections = format!("information_schema.processlist WHERE user = '{USER}'");
        let rows = format!("leasehold_locks WHERE length(state) > {LARGEST_KEY}");
        let left = |(what, from)| {
            let count = self.execute(&format!("SELECT count(*) FROM {from}"));
            (count != "0").then(|| format!("{count} {what}"))
        };
        let counted = [("connections", connections), ("large rows", rows)];
        counted.into_iter().filter_map(left).collect()
    }
}

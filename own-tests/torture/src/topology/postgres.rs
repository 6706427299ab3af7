//! One Postgres server, with the schema and a user that has only the documented rights; and the same behind a pooler.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use leasehold_postgres::SCHEMA;
use leasehold_test_servers::{PgBouncer, PostgresOptions, PostgresServer, RedisServer};

use super::{Injection, LARGEST_KEY, Servers, sleep, within};
use crate::link::{Upstream, fixed};
use crate::random::{Random, between};

const DATABASE: &str = "shop";
const USER: &str = "locks";

/// The faults of the server, alone or behind a pooler.
const fn faults<S: AsMut<Postgres>>() -> [Injection<S>; 4] {
    [
        (
            within("kill server, restart with its data"),
            |it, random| {
                let it = it.as_mut();
                it.server.stop();
                sleep(random, it.lease, 0, 150);
                it.server.restart();
            },
        ),
        (within("terminate backends"), |it, _| {
            it.as_mut().execute(&format!(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{USER}'"
            ));
        }),
        (
            within("lock the rows from outside").delays(),
            |it, random| {
                let statement = "PERFORM 1 FROM leasehold.locks FOR UPDATE";
                it.as_mut().hold(statement, random);
            },
        ),
        (
            within("lock the table from outside").delays(),
            |it, random| {
                let statement = "LOCK TABLE leasehold.locks IN ACCESS EXCLUSIVE MODE";
                it.as_mut().hold(statement, random);
            },
        ),
    ]
}

pub(crate) struct Postgres {
    server: PostgresServer,
    lease: Duration,
}

impl Postgres {
    pub(crate) fn start(lease: Duration) -> Self {
        let server = PostgresOptions::default().with_access("trust").start();
        server.execute("postgres", &format!("CREATE DATABASE {DATABASE}"));
        server.execute("postgres", &format!("CREATE USER {USER}"));
        let server = Self { server, lease };
        server.execute(SCHEMA);
        server.execute(include_str!(
            "../../../../backend-postgres/src/privileges.sql"
        ));
        server
    }

    fn execute(&self, statements: &str) -> String {
        self.server.execute(DATABASE, statements)
    }

    /// Executes a statement in a transaction that stays open for a while.
    fn hold(&self, statement: &str, random: &mut Random) {
        let time = between(random, self.lease / 5, self.lease * 2).as_secs_f64();
        self.execute(&format!(
            "DO $$ BEGIN {statement}; PERFORM pg_sleep({time}); END $$"
        ));
    }
}

impl AsMut<Self> for Postgres {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

impl Servers for Postgres {
    const FAULTS: &[Injection<Self>] = &faults();

    fn redis(&self) -> Vec<&RedisServer> {
        Vec::new()
    }

    fn version(&self) -> String {
        format!("PostgreSQL {}", self.execute("SHOW server_version"))
    }

    fn linked(&self) -> Vec<Upstream> {
        vec![fixed((Ipv4Addr::LOCALHOST, self.server.port()).into())]
    }

    fn urls(&self, links: &[SocketAddr]) -> Vec<String> {
        let url = |link| format!("postgres://{USER}@{link}/{DATABASE}");
        links.iter().map(url).collect()
    }

    fn left(&self) -> Vec<String> {
        // A pooler keeps its own, over the Unix socket.
        let clients = format!("usename = '{USER}' AND client_addr IS NOT NULL");
        let connections = format!("pg_stat_activity WHERE {clients}");
        let rows = format!("leasehold.locks WHERE octet_length(state) > {LARGEST_KEY}");
        let left = |(what, from)| {
            let count = self.execute(&format!("SELECT count(*) FROM {from}"));
            (count != "0").then(|| format!("{count} {what}"))
        };
        let counted = [("connections", connections), ("large rows", rows)];
        counted.into_iter().filter_map(left).collect()
    }
}

/// The same server behind a pooler in transaction mode. Of three clients, about one goes to the server itself, and one
/// subscribes there.
pub(crate) struct Pooled {
    postgres: Postgres,
    pooler: PgBouncer,
}

impl Pooled {
    pub(crate) fn start(lease: Duration) -> Self {
        let postgres = Postgres::start(lease);
        let settings = "pool_mode = transaction\nserver_login_retry = 1\nmax_client_conn = 500";
        Self {
            pooler: PgBouncer::start_with_port(&postgres.server, USER, settings),
            postgres,
        }
    }
}

impl AsMut<Postgres> for Pooled {
    fn as_mut(&mut self) -> &mut Postgres {
        &mut self.postgres
    }
}

impl Servers for Pooled {
    const FAULTS: &[Injection<Self>] = {
        let [killed, terminated, rows, table] = faults();
        &[
            (within("restart pooler"), |it, _| it.pooler.restart()),
            killed,
            terminated,
            rows,
            table,
        ]
    };

    fn redis(&self) -> Vec<&RedisServer> {
        Vec::new()
    }

    fn version(&self) -> String {
        self.postgres.version()
    }

    fn linked(&self) -> Vec<Upstream> {
        let mut linked = self.postgres.linked();
        linked.push(fixed((Ipv4Addr::LOCALHOST, self.pooler.port()).into()));
        linked
    }

    /// That of the server, and that of the pooler.
    fn urls(&self, links: &[SocketAddr]) -> Vec<String> {
        let mut urls = self.postgres.urls(links);
        urls[1].push_str("?pgbouncer=true");
        urls
    }

    fn left(&self) -> Vec<String> {
        self.postgres.left()
    }
}

//! The servers of a run, and what may be done to them.

pub(crate) mod balancer;
pub(crate) mod cluster;
pub(crate) mod etcd;
pub(crate) mod mysql;
pub(crate) mod nats;
pub(crate) mod postgres;
pub(crate) mod quorum;
pub(crate) mod s3;
pub(crate) mod sentinel;
pub(crate) mod sqlite;
pub(crate) mod standalone;

use std::net::SocketAddr;
use std::time::Duration;

use leasehold_test_servers::RedisServer;

use crate::history::Assumption;
use crate::link::Upstream;
use crate::random::{Random, between};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Topology {
    Standalone,
    /// A primary and a replica behind one address.
    Balancer,
    Sentinel,
    Cluster,
    /// A cluster whose messages take long.
    DistantCluster,
    Postgres,
    /// A Postgres server behind a pooler, which some clients go around.
    PostgresPooled,
    Mysql,
    Etcd,
    Nats,
    /// A file that the clients share.
    Sqlite,
    S3,
    Quorum,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// Whether a message that was sent during it may arrive after it.
    pub(crate) delays: bool,
    /// The assumption that it breaks.
    pub(crate) breaks: Option<Assumption>,
}

impl Kind {
    /// The same, but messages may be late.
    pub(crate) const fn delays(self) -> Self {
        Self {
            delays: true,
            ..self
        }
    }
}

pub(crate) trait Servers: Send + Sized + 'static {
    /// The faults of the servers.
    const FAULTS: &[Injection<Self>];

    /// The Redis servers that give locks away.
    fn redis(&self) -> Vec<&RedisServer>;

    /// Their program and version.
    fn version(&self) -> String {
        self.redis()[0].product()
    }

    /// The servers that each client reaches over a link of its own. With none, it reaches them directly:
    /// they name their own addresses.
    fn linked(&self) -> Vec<Upstream> {
        Vec::new()
    }

    /// The URLs for a client with these links.
    fn urls(&self, links: &[SocketAddr]) -> Vec<String> {
        links.iter().map(|link| format!("redis://{link}")).collect()
    }

    /// Whether others are primaries than at the last call, although no fault asked for it, or there is one too many. On a
    /// busy machine, servers may take each other for dead.
    fn have_failed_over(&mut self) -> bool {
        false
    }

    /// What is left on them after the last client, although its lease is over.
    fn left(&self) -> Vec<String> {
        self.redis().into_iter().flat_map(left_on).collect()
    }
}

/// A fault of servers: what does it and undoes it, and returns when they answer again.
pub(crate) type Injection<S> = (Kind, fn(&mut S, &mut Random));

pub(crate) const fn within(name: &'static str) -> Kind {
    Kind {
        name,
        delays: false,
        breaks: None,
    }
}

pub(crate) const fn outside(name: &'static str, assumption: Assumption) -> Kind {
    Kind {
        breaks: Some(assumption),
        ..within(name)
    }
}

impl Topology {
    /// The name on the command line.
    pub(crate) fn name(self) -> String {
        let value = clap::ValueEnum::to_possible_value(&self);
        value.map_or_else(String::new, |it| it.get_name().into())
    }

    /// The kinds of faults of its servers.
    pub(crate) fn kinds(self) -> Vec<&'static str> {
        fn of<S: Servers>() -> Vec<&'static str> {
            S::FAULTS.iter().map(|(kind, _)| kind.name).collect()
        }
        match self {
            Self::Standalone => of::<standalone::Standalone>(),
            Self::Balancer => of::<balancer::Balancer>(),
            Self::Sentinel => of::<sentinel::Sentinel>(),
            Self::Cluster => of::<cluster::Cluster>(),
            Self::DistantCluster => {
                let mut kinds = of::<cluster::Cluster>();
                kinds.retain(|kind| *kind != cluster::NOT_AT_A_DISTANCE);
                kinds
            }
            Self::Postgres => of::<postgres::Postgres>(),
            Self::PostgresPooled => of::<postgres::Pooled>(),
            Self::Mysql => of::<mysql::Mysql>(),
            Self::Etcd => of::<etcd::Etcd>(),
            Self::Nats => of::<nats::Nats>(),
            Self::Sqlite => of::<sqlite::Sqlite>(),
            Self::S3 => of::<s3::S3>(),
            Self::Quorum => of::<quorum::Quorum>(),
        }
    }

    /// Whether each client reaches the servers over links of its own. Otherwise they name their own addresses.
    pub(crate) const fn has_links(self) -> bool {
        matches!(
            self,
            Self::Standalone
                | Self::Balancer
                | Self::Postgres
                | Self::PostgresPooled
                | Self::Mysql
                | Self::Etcd
                | Self::Nats
                | Self::S3
                | Self::Quorum
        )
    }

    /// How far the rate of a client's clock may be off, in millionths, so that A3 holds with the 0.5 % of a server's.
    pub(crate) const fn most_skew_ppm(self) -> i64 {
        match self {
            Self::Standalone => 4_000,
            // All processes of a machine have its clock.
            Self::Sqlite => 0,
            _ => 9_000,
        }
    }

    /// How far the wall clock of a client may be set from the machine's. S3 refuses requests that seem 15 minutes old or early.
    pub(crate) const fn longest_step(self) -> Duration {
        match self {
            Self::S3 => Duration::from_secs(5 * 60),
            _ => Duration::from_secs(6 * 3_600),
        }
    }

    /// How long locks may be out of reach after the servers answer: the lease of a dead holder, the 5 s of
    /// the waiters that died in the queue, and a poll. A server that joins a quorum again waits longer. On etcd and S3, a lease
    /// counts from when a survivor has seen it.
    pub(crate) fn progress_within(self, lease: Duration) -> Duration {
        let delay = match self {
            Self::Quorum => leasehold_api::bounds::DELIVERY_WINDOW + lease,
            Self::Etcd | Self::S3 => lease,
            _ => Duration::ZERO,
        };
        lease + Duration::from_secs(8) + delay
    }
}

/// More than any lock of a run needs, with all that it remembers of those who have left.
const LARGEST_KEY: usize = 64 << 10;

/// Sleeps between these parts of the lease, in percent.
fn sleep(random: &mut Random, lease: Duration, least: u32, most: u32) {
    std::thread::sleep(between(random, lease * least / 100, lease * most / 100));
}

/// Makes the server refuse commands that need memory, for a while.
fn fill_memory(server: &RedisServer, random: &mut Random, lease: Duration) {
    server.run(&["CONFIG", "SET", "maxmemory", "1"]);
    sleep(random, lease, 20, 200);
    server.run(&["CONFIG", "SET", "maxmemory", "0"]);
}

fn flush_scripts(server: &RedisServer) {
    server.run(&["SCRIPT", "FLUSH"]);
}

fn cut_subscriptions(server: &RedisServer) {
    server.run(&["CLIENT", "KILL", "TYPE", "pubsub"]);
}

fn cut_connections(server: &RedisServer) {
    server.run(&["CLIENT", "KILL", "TYPE", "normal"]);
}

/// What is left on a server: keys that never expire, each of which is a lock that nobody gets again, unless it is free.
/// Keys that have grown without bound. Connections of clients that have ended.
fn left_on(server: &RedisServer) -> Vec<String> {
    let keys = format!(
        "local left = {{}} \
        for _, key in ipairs(redis.call('KEYS', '*')) do \
            if redis.call('PTTL', key) == -1 then left[#left + 1] = key .. ' never expires' end \
            local bytes = redis.call('MEMORY', 'USAGE', key) \
            if bytes > {LARGEST_KEY} then left[#left + 1] = key .. ' has ' .. bytes .. ' bytes' end \
        end return table.concat(left, '\\n')"
    );
    let left = server.run(&["EVAL", &keys, "0"]);
    let mut left: Vec<String> = left.lines().map(|what| format!("the key {what}")).collect();
    let clients = server.run(&["CLIENT", "LIST"]);
    let others = clients.lines().filter(|it| is_of_a_lock(it));
    left.extend(others.map(|it| format!("a connection: {it}")));
    left
}

/// Whether a line of `CLIENT LIST` may be a connection of a lock: not of another server, nor this one.
fn is_of_a_lock(line: &str) -> bool {
    let has = |text: &str| line.split(' ').any(|part| part.starts_with(text));
    let of_a_server = has("flags=S") || has("flags=M") || has("name=sentinel-");
    has("id=") && !of_a_server && !has("cmd=client|list")
}

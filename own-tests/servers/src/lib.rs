//! Real Redis, Postgres, MariaDB, etcd, NATS and S3 servers for tests, and a proxy that injects network faults.
//!
//! - [`RedisServer`] starts a server in a temporary folder, and can kill, restart, pause and
//!   resume it. The server is killed when the value is dropped, even by a panic, and when the test
//!   process is killed.
//! - [`RedisCluster`] starts a Redis Cluster of six nodes, and can kill them, migrate slots and
//!   fail over. Its nodes may be at a distance.
//! - [`SentinelServers`] starts a primary, two replicas, and three sentinels that watch them.
//! - [`PostgresServer`] starts a Postgres server in the same way, and [`PgBouncer`] a pooler in front of it.
//! - [`EtcdServer`] starts an etcd server, or a cluster of three.
//! - [`MariaDb`] starts a MariaDB server, [`NatsServers`] one or three NATS servers, [`SeaweedFs`] an S3 server.
//! - [`FaultProxy`] forwards between a client and a server of either kind. It can drop requests or replies, delay
//!   them, stop forwarding, or close connections.
//! - [`at_a_distance`] makes the line to a server longer.
//! - [`ServerAway`] takes the place of a server that doesn't run, and counts the connections of its clients.
//! - [`SilentFirstAddress`] is a name that leads to a server only by its second address.
//! - [`ThreadProxy`] accepts connections on a thread of its own, and lets a function of the test serve each.
//! - [`Authority`] issues certificates for servers and clients with TLS.
//!
//! Tests wait by [`eventually`], [`block_until`] and [`throughout`], and measure promised times with a [`Stopwatch`].
//!
//! Whatever fails panics, which fails the test: a program that is missing or refuses its configuration, servers
//! that don't start, answer or agree within a minute, a server that answers with an error. The message about a
//! missing program says how to install it. A missing server never skips a test.

mod away;
mod clock;
mod cluster;
mod etcd;
mod forks;
mod latency;
mod mariadb;
mod names;
mod nats;
mod pgbouncer;
mod postgres;
mod postgres_wire;
mod process;
mod proxy;
mod resp;
mod seaweed;
mod sentinel;
mod server;
mod thread_proxy;
mod tls;
mod tls_proxy;
mod waiting;

pub use away::ServerAway;
pub use clock::SteppedClock;
pub use cluster::RedisCluster;
pub use etcd::EtcdServer;
pub use forks::Forks;
pub use latency::at_a_distance;
pub use mariadb::MariaDb;
pub use names::SilentFirstAddress;
pub use nats::NatsServers;
pub use pgbouncer::PgBouncer;
pub use postgres::{PostgresOptions, PostgresServer};
pub use proxy::FaultProxy;
pub use resp::Request;
pub use seaweed::SeaweedFs;
pub use sentinel::SentinelServers;
pub use server::{Data, RedisServer, ServerOptions, Version, free_port};
pub use thread_proxy::{ThreadProxy, connect};
pub use tls::{Authority, Identity};
pub use waiting::{Stopwatch, block_until, eventually, throughout, within};

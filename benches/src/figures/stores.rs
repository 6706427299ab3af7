//! Each lock service with one mutex that passes between clients, and with free ones, next to Redis in the same round.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{ConnectOptions, LockClient, RedisLibrary, mysql, postgres};
use leasehold_api::bounds;
use leasehold_test_servers::{EtcdServer, MariaDb, NatsServers, PostgresOptions, SeaweedFs};

use crate::Result;
use crate::contend::{Contention, Pace, contend};
use crate::figures::hand_over::close;
use crate::figures::measurement::{Fixture, Reading};
use crate::library::{each_key, one_each};
use crate::load::side_by_side;

const CLIENTS: [usize; 2] = [2, 8];
const TASKS: usize = 64;
/// Only answers are measured, and clients that all begin at once may take longer than the default.
const LIMIT: Duration = bounds::MAX_CALL_TIMEOUT;
/// Several turns of each client even where a waiter looks once in a second.
const SECONDS: u64 = 10;

/// What one service took.
struct Figures {
    contended: Vec<Contention>,
    pairs: f64,
}

pub(super) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    let redis = figures(fixture, &fixture.url()).await?;
    let mut readings = beside("redis", &redis, &redis);
    for (name, start) in SERVICES {
        // Starting a server blocks.
        let (url, server) = tokio::task::spawn_blocking(start).await?;
        readings.extend(beside(name, &figures(fixture, &url).await?, &redis));
        tokio::task::spawn_blocking(|| drop(server)).await?;
    }
    Ok(readings)
}

fn beside(name: &str, own: &Figures, redis: &Figures) -> Vec<Reading> {
    let mut readings = Vec::new();
    for ((clients, own), redis) in CLIENTS.iter().zip(&own.contended).zip(&redis.contended) {
        let id = format!("stores.{name}.hand_over.{clients}");
        readings.extend(
            [50, 99].map(|at| Reading::percentile(&id, at, &own.hand_over, &redis.hand_over)),
        );
    }
    let pairs = Reading::new(format!("stores.{name}.pairs.{TASKS}"), own.pairs, "pairs/s");
    readings.push(pairs.over(redis.pairs));
    readings
}

async fn connect(url: &str) -> Result<LockClient> {
    let options = ConnectOptions::new().redis_library(RedisLibrary::RedisRs);
    Ok(options.call_timeout(LIMIT).connect(url).await?)
}

async fn figures(fixture: &Fixture, url: &str) -> Result<Figures> {
    let time = Duration::from_secs(fixture.effort.of(1, SECONDS));
    let mut contended = Vec::new();
    for count in CLIENTS {
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(connect(url).await?);
        }
        let locks = one_each(&clients, &format!("contended-{count}"))?;
        contended.push(contend(locks, Pace::default(), time).await?);
        close(clients).await?;
    }
    let client = connect(url).await?;
    let keys = (0..TASKS).map(|task| format!("free-{task}"));
    let locks = Arc::new(each_key(&client, keys)?);
    side_by_side(&locks, time / 10).await?;
    let pairs = side_by_side(&locks, time / 4).await?;
    close(vec![client]).await?;
    Ok(Figures { contended, pairs })
}

/// A URL, and what ends its server when it is dropped.
type Started = (String, Box<dyn Send>);
type Start = fn() -> Started;

/// Their data is in the folder for temporary files. Postgres and MariaDB don't sync it to disk, as Redis doesn't by default.
const SERVICES: [(&str, Start); 6] = [
    ("postgres", || {
        let server = PostgresOptions::default().with_access("trust").start();
        server.execute("postgres", postgres::SCHEMA);
        (server.tcp_url("owner", "postgres"), Box::new(server))
    }),
    ("mysql", || {
        let server = MariaDb::start(&[]);
        server.execute("shop", mysql::SCHEMA);
        (server.url("root"), Box::new(server))
    }),
    ("etcd", || {
        let server = EtcdServer::start();
        (server.url(), Box::new(server))
    }),
    ("nats", || {
        let server = NatsServers::start("");
        (server.url(), Box::new(server))
    }),
    ("sqlite", || {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("locks.db");
        (format!("sqlite:{}", path.display()), Box::new(folder))
    }),
    ("s3", || {
        let server = SeaweedFs::start();
        (server.url("locks"), Box::new(server))
    }),
];

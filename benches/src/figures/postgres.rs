//! The Postgres backend, next to the simplest locks in SQL.

use std::time::Duration;

use leasehold::LockClient;
use leasehold::postgres::{Options, PostgresBackend, SCHEMA};
use leasehold_api::bounds;
use leasehold_test_servers::{PostgresOptions, PostgresServer};

use crate::Result;
use crate::contend::{Contention, Pace, contend};
use crate::figures::hand_over::{close, difference};
use crate::figures::measurement::{Fixture, Reading, millis};
use crate::load::one_by_one;
use crate::lock::{Lock, Reader};
use crate::samples::Samples;
use crate::sql_locks::{Kind, ROWS, SqlLock};

const CLIENTS: [usize; 3] = [2, 8, 32];
/// The longest time of a call and of connecting. Only the answers are measured, and 32 clients that begin
/// at the same time may take longer than the default on a busy machine.
const LIMIT: Duration = bounds::MAX_CALL_TIMEOUT;
const DATABASE: &str = "postgres";

/// The statements that tried to write a row, and the rows that were written.
const WRITES: &str = "SELECT (SELECT coalesce(sum(calls), 0) FROM pg_stat_statements
        WHERE query ~ '^(INSERT INTO|UPDATE) leasehold.locks|^WITH silent')
    || ' ' || (SELECT n_tup_ins + n_tup_upd FROM pg_stat_user_tables WHERE relname = 'locks')";

/// A free lock, contended ones, and a free lock on a server that flushes each commit to disk, as servers
/// do unless they are told not to.
pub(super) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    let options = PostgresOptions::default();
    let server = start(options.with_setting("shared_preload_libraries=pg_stat_statements")).await?;
    server.execute(DATABASE, "CREATE EXTENSION pg_stat_statements");
    let floors = [
        ("sequential", Kind::Try),
        ("sequential.beside_row", Kind::Row),
    ];
    let mut readings = free(fixture, &server, &floors).await?;
    for &count in &CLIENTS[..fixture.effort.of(2, CLIENTS.len())] {
        readings.extend(contended(fixture, &server, count).await?);
        readings.extend(readers(fixture, &server, count).await?);
    }
    let server = start(PostgresOptions::default().with_setting("fsync=on")).await?;
    let floor = [("flushed.beside_row", Kind::Row)];
    readings.extend(free(fixture, &server, &floor).await?);
    Ok(readings)
}

async fn start(options: PostgresOptions) -> Result<PostgresServer> {
    let server = tokio::task::spawn_blocking(|| options.start()).await?;
    server.execute(DATABASE, SCHEMA);
    server.execute(DATABASE, ROWS);
    Ok(server)
}

fn url(server: &PostgresServer) -> String {
    server.url("owner", DATABASE)
}

async fn connect(server: &PostgresServer) -> Result<LockClient> {
    let options = Options::new().connect_timeout(LIMIT).call_timeout(LIMIT);
    let backend = PostgresBackend::connect_with(&url(server), options).await?;
    Ok(LockClient::builder(backend).call_timeout(LIMIT).build()?)
}

/// One task acquires and releases a free lock. Each floor comes with the name of the figure beside it.
async fn free(
    fixture: &Fixture,
    server: &PostgresServer,
    floors: &[(&str, Kind)],
) -> Result<Vec<Reading>> {
    let locks = connect(server).await?;
    let ours = locks.mutex("free")?;
    let mut least = Vec::new();
    for (name, kind) in floors {
        let floor = SqlLock::connect(&url(server), *kind).await?;
        one_by_one(&floor, 20).await?;
        least.push((name, floor, Samples::default()));
    }
    one_by_one(&ours, 20).await?;
    let block = fixture.effort.of(10, 100);
    let mut own = Samples::default();
    // The blocks are short, so that noise on the machine affects all.
    for _ in 0..fixture.effort.of(1, 16) {
        for (_, floor, samples) in &mut least {
            samples.merge(one_by_one(floor, block).await?);
        }
        own.merge(one_by_one(&ours, block).await?);
    }
    close(vec![locks]).await?;
    let mut readings = Vec::new();
    for (name, _, samples) in &least {
        let id = format!("postgres.{name}");
        readings.extend([50, 99].map(|at| Reading::percentile(&id, at, &own, samples)));
    }
    Ok(readings)
}

/// Clients with connections of their own contend for one mutex, which each holds for no time.
async fn contended(
    fixture: &Fixture,
    server: &PostgresServer,
    count: usize,
) -> Result<Vec<Reading>> {
    let (pace, time) = (Pace::default(), time(fixture));
    let mut waiting = Vec::new();
    for _ in 0..count {
        waiting.push(SqlLock::connect(&url(server), Kind::Wait).await?);
    }
    let floor = contend(waiting, pace, time).await?;
    let key = format!("contended-{count}");
    let (own, conflicts) = counted(server, count, time, |locks| Ok(locks.mutex(&key)?)).await?;
    let name = |what: &str| format!("postgres.{what}.{count}");
    let id = name("hand_over");
    let hand_over = |at| Reading::percentile(&id, at, &own.hand_over, &floor.hand_over);
    let rate = Reading::new(name("zero_hold"), own.per_second(), "acquisitions/s");
    Ok(vec![
        hand_over(50),
        hand_over(99),
        rate.over(floor.per_second()),
        Reading::new(name("conflicts"), conflicts, "refused writes per operation"),
        difference(name("difference"), &own),
    ])
}

/// Readers that share one lock. Nobody queues, so all write the row at the same time.
async fn readers(fixture: &Fixture, server: &PostgresServer, count: usize) -> Result<Vec<Reading>> {
    let (key, time) = (format!("shared-{count}"), time(fixture));
    let reader = |locks: &LockClient| Ok(Reader(locks.rw_lock(&key)?));
    let (own, conflicts) = counted(server, count, time, reader).await?;
    let name = |what: &str| format!("postgres.readers.{count}.{what}");
    let [fewest, _] = own.fewest_and_most();
    let wait = millis(own.wait.percentile(99));
    Ok(vec![
        Reading::new(name("rate"), own.per_second(), "acquisitions/s"),
        Reading::new(name("conflicts"), conflicts, "refused writes per operation"),
        Reading::new(name("wait_p99"), wait, "ms"),
        Reading::new(name("fewest"), fewest, "acquisitions of a client"),
    ])
}

fn time(fixture: &Fixture) -> Duration {
    Duration::from_millis(fixture.effort.of(200, 2_000))
}

/// Contends with new clients. Also returns the refused writes for each acquire or release.
async fn counted<L: Lock>(
    server: &PostgresServer,
    count: usize,
    time: Duration,
    lock: impl Fn(&LockClient) -> Result<L>,
) -> Result<(Contention, f64)> {
    let (mut clients, mut locks) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let client = connect(server).await?;
        locks.push(lock(&client)?);
        clients.push(client);
    }
    let before = writes(server).await?;
    let seen = contend(locks, Pace::default(), time).await?;
    close(clients).await?;
    let after = writes(server).await?;
    let refused = (after.0 - before.0) - (after.1 - before.1);
    let operations = 2.0 * seen.all as f64;
    Ok((seen, refused / operations))
}

/// How many writes were sent, and how many rows were written, by clients that are gone. A process of the
/// server reports its rows when it ends.
async fn writes(server: &PostgresServer) -> Result<(f64, f64)> {
    tokio::time::sleep(Duration::from_millis(300)).await;
    let counts = server.execute(DATABASE, WRITES);
    let (calls, rows) = counts.split_once(' ').ok_or("two counts")?;
    Ok((calls.parse()?, rows.parse()?))
}

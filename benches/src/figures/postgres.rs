//! The Postgres backend, next to the simplest locks in SQL.

use std::time::Duration;

use leasehold::LockClient;
use leasehold::postgres::{Options, PostgresBackend, SCHEMA};
use leasehold_api::bounds;
use leasehold_test_servers::{PostgresOptions, PostgresServer};

use crate::Result;
use crate::contend::{Pace, contend};
use crate::figures::hand_over::{close, difference};
use crate::figures::measurement::{Fixture, Reading};
use crate::load::one_by_one;
use crate::samples::Samples;
use crate::sql_locks::{Kind, ROWS, SqlLock};

const CLIENTS: [usize; 3] = [2, 8, 32];
/// The longest time of a call and of connecting. Only the answers are measured, and 32 clients that begin
/// at the same time may take longer than the default on a busy machine.
const LIMIT: Duration = bounds::MAX_CALL_TIMEOUT;
const DATABASE: &str = "postgres";

/// A free lock, and contended ones.
pub(super) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    let server = start().await?;
    let mut readings = free(fixture, &server).await?;
    for &count in &CLIENTS[..fixture.effort.of(2, CLIENTS.len())] {
        readings.extend(contended(fixture, &server, count).await?);
    }
    Ok(readings)
}

async fn start() -> Result<PostgresServer> {
    let server = tokio::task::spawn_blocking(|| PostgresOptions::default().start()).await?;
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

/// One task acquires and releases a free lock, next to two committed updates of a row.
async fn free(fixture: &Fixture, server: &PostgresServer) -> Result<Vec<Reading>> {
    let locks = connect(server).await?;
    let ours = locks.mutex("free")?;
    let row = SqlLock::connect(&url(server), Kind::Row).await?;
    one_by_one(&row, 20).await?;
    one_by_one(&ours, 20).await?;
    let block = fixture.effort.of(10, 100);
    let (mut own, mut least) = (Samples::default(), Samples::default());
    // The blocks are short, so that noise on the machine affects both.
    for _ in 0..fixture.effort.of(1, 16) {
        least.merge(one_by_one(&row, block).await?);
        own.merge(one_by_one(&ours, block).await?);
    }
    close(vec![locks]).await?;
    let at = |percent| Reading::percentile("postgres.sequential", percent, &own, &least);
    Ok(vec![at(50), at(99)])
}

/// Clients with connections of their own contend for one mutex, which each holds for no time.
async fn contended(
    fixture: &Fixture,
    server: &PostgresServer,
    count: usize,
) -> Result<Vec<Reading>> {
    let (pace, time) = (
        Pace::default(),
        Duration::from_millis(fixture.effort.of(200, 2_000)),
    );
    let mut waiting = Vec::new();
    for _ in 0..count {
        waiting.push(SqlLock::connect(&url(server), Kind::Wait).await?);
    }
    let floor = contend(waiting, pace, time).await?;
    let (mut clients, mut locks) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let client = connect(server).await?;
        locks.push(client.mutex(format!("contended-{count}"))?);
        clients.push(client);
    }
    let own = contend(locks, pace, time).await?;
    close(clients).await?;
    let name = |what: &str| format!("postgres.{what}.{count}");
    let id = name("hand_over");
    let hand_over = |at| Reading::percentile(&id, at, &own.hand_over, &floor.hand_over);
    let rate = Reading::new(name("zero_hold"), own.per_second(), "acquisitions/s");
    Ok(vec![
        hand_over(50),
        hand_over(99),
        rate.over(floor.per_second()),
        difference(name("difference"), &own),
    ])
}

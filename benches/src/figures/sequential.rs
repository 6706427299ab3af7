//! One task repeatedly acquires and releases a free lock.

use std::time::Duration;

use crate::Result;
use crate::figures::measurement::{Fixture, Goal, Reading};
use crate::load::one_by_one;
use crate::lock::FloorLock;
use crate::samples::Samples;
use crate::server_stats::ServerStats;

const KEY: &str = "sequential";

pub(super) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    let mut readings = times(fixture, &fixture.url(), "sequential").await?;
    readings.extend(commands(fixture).await?);
    Ok(readings)
}

pub(super) async fn measure_unix(fixture: &Fixture) -> Result<Vec<Reading>> {
    times(fixture, &fixture.server.unix_url(), "sequential_unix").await
}

async fn times(fixture: &Fixture, url: &str, name: &str) -> Result<Vec<Reading>> {
    let locks = fixture.library.connect(url).await?;
    let ours = locks.mutex(KEY)?;
    let floor = FloorLock::new(&fixture.library.floor(url).await?, KEY);
    let block = fixture.effort.of(20, 250);
    let (mut own, mut least) = (Samples::default(), Samples::default());
    one_by_one(&ours, block).await?;
    one_by_one(&floor, block).await?;
    // The blocks are short, so that noise on the machine affects both.
    for _ in 0..fixture.effort.of(1, 16) {
        least.merge(one_by_one(&floor, block).await?);
        own.merge(one_by_one(&ours, block).await?);
    }
    locks.shutdown().await?;
    let at = |percent| Reading::percentile(name, percent, &own, &least);
    Ok(vec![at(50).goal(Goal::RatioAtMost(1.15)), at(99)])
}

/// Script calls and new connections, as the server counts them.
async fn commands(fixture: &Fixture) -> Result<Vec<Reading>> {
    const PAIRS: usize = 100;
    let mut server = ServerStats::connect(&fixture.url()).await?;
    let locks = fixture.library.connect(&fixture.url()).await?;
    let ours = locks.mutex(KEY)?;
    one_by_one(&ours, 10).await?;
    // The client connects for renewals in the background.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let scripts = server.commands().await?;
    let before = server.number("stats", "total_connections_received").await?;
    one_by_one(&ours, PAIRS).await?;
    let after = server.number("stats", "total_connections_received").await?;
    let scripts = server.commands().await?.since(&scripts).scripts();
    locks.shutdown().await?;
    let reading = |what, count, unit| {
        let each = count / PAIRS as f64;
        Reading::new(format!("sequential.{what}"), each, unit)
    };
    let calls = reading("commands", scripts.calls as f64, "calls per pair");
    let connections = reading("connections", after - before, "connections per pair");
    Ok(vec![
        calls.goal(Goal::AtMost(2.0)),
        connections.goal(Goal::AtMost(0.0)),
    ])
}

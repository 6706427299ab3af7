//! One task takes a free lock and gives it back, again and again.

use std::time::Duration;

use crate::Result;
use crate::figures::{Goal, Place, Reading, micros};
use crate::load::one_by_one;
use crate::lock::FloorLock;
use crate::samples::Samples;
use crate::server_stats::ServerStats;

const KEY: &str = "sequential";

pub(super) async fn measure(place: &Place) -> Result<Vec<Reading>> {
    let mut readings = times(place, "sequential").await?;
    readings.extend(commands(place).await?);
    Ok(readings)
}

pub(super) async fn measure_unix(place: &Place) -> Result<Vec<Reading>> {
    times(place, "sequential_unix").await
}

async fn times(place: &Place, name: &str) -> Result<Vec<Reading>> {
    let locks = place.library.connect(&place.url()).await?;
    let ours = locks.mutex(KEY)?;
    let floor = FloorLock::new(&place.library.floor(&place.url()).await?, KEY);
    let block = place.effort.of(20, 250);
    let (mut own, mut least) = (Samples::default(), Samples::default());
    one_by_one(&ours, block).await?;
    one_by_one(&floor, block).await?;
    // In short turns, so that both see the same machine.
    for _ in 0..place.effort.of(1, 16) {
        least.merge(one_by_one(&floor, block).await?);
        own.merge(one_by_one(&ours, block).await?);
    }
    locks.shutdown().await?;
    let at = |percent| {
        let value = micros(own.percentile(percent));
        Reading::new(format!("{name}.p{percent}"), value, "µs")
            .over(micros(least.percentile(percent)))
    };
    Ok(vec![at(50).goal(Goal::RatioAtMost(1.15)), at(99)])
}

/// Counted by the server: script calls, and new connections.
async fn commands(place: &Place) -> Result<Vec<Reading>> {
    const PAIRS: usize = 100;
    let mut server = ServerStats::connect(&place.url()).await?;
    let locks = place.library.connect(&place.url()).await?;
    let ours = locks.mutex(KEY)?;
    one_by_one(&ours, 10).await?;
    // The connection for renewals is made in the background.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let scripts = server.commands().await?;
    let before = server.number("stats", "total_connections_received").await?;
    one_by_one(&ours, PAIRS).await?;
    let after = server.number("stats", "total_connections_received").await?;
    let scripts = server.commands().await?.since(&scripts).scripts();
    locks.shutdown().await?;
    let each = |count: f64| count / PAIRS as f64;
    let calls = Reading::new(
        "sequential.commands",
        each(scripts.calls as f64),
        "calls a pair",
    );
    let connections = Reading::new(
        "sequential.connections",
        each(after - before),
        "connections a pair",
    );
    Ok(vec![
        calls.goal(Goal::AtMost(2.0)),
        connections.goal(Goal::AtMost(0.0)),
    ])
}

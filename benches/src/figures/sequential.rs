//! One task repeatedly acquires and releases a free lock, on a server beside it, and on one at a distance.

use std::time::Duration;

use leasehold_test_servers::at_a_distance;

use crate::Result;
use crate::figures::measurement::{Fixture, Reading};
use crate::floor::Floor;
use crate::load::one_by_one;
use crate::lock::FloorLock;
use crate::samples::Samples;

const KEY: &str = "sequential";
/// How long each message to and from the distant server takes. The timer adds up to 1 ms, to the floor too.
const LATENCY: Duration = Duration::from_micros(500);

pub(super) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    let mut readings = pairs(fixture, KEY, &fixture.url(), fixture.effort.of(20, 250)).await?;
    let line = at_a_distance(fixture.server.address(), LATENCY);
    let url = format!("redis://{}", line.address());
    let away = pairs(fixture, "sequential.away", &url, fixture.effort.of(2, 10)).await?;
    readings.extend(away);
    Ok(readings)
}

/// Times pairs at this URL, in blocks of this many.
async fn pairs(fixture: &Fixture, id: &str, url: &str, block: usize) -> Result<Vec<Reading>> {
    let locks = fixture.library.connect(url).await?;
    let ours = locks.mutex(KEY)?;
    let floor = Floor::connect(fixture.library, url).await?;
    let floor = FloorLock::new(&floor, KEY);
    let (mut own, mut least) = (Samples::default(), Samples::default());
    one_by_one(&ours, block).await?;
    one_by_one(&floor, block).await?;
    // The blocks are short, so that noise on the machine affects both.
    for _ in 0..fixture.effort.of(1, 16) {
        least.merge(one_by_one(&floor, block).await?);
        own.merge(one_by_one(&ours, block).await?);
    }
    locks.shutdown().await?;
    let at = |percent| Reading::percentile(id, percent, &own, &least);
    Ok(vec![at(50), at(99)])
}

//! Many tasks share one client. Each task has an uncontended lock.

use std::sync::Arc;
use std::time::Duration;

use leasehold::LockClient;
use tokio::runtime::Builder;
use tokio::task::block_in_place;

use crate::Result;
use crate::figures::measurement::{Fixture, Goal, Reading, median};
use crate::library::each_key;
use crate::load::side_by_side;
use crate::lock::FloorLock;
use crate::single::Single;

const TASKS: [usize; 4] = [1, 16, 64, 256];

pub(super) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    rates(fixture, &fixture.url(), "distinct_keys").await
}

pub(super) async fn measure_unix(fixture: &Fixture) -> Result<Vec<Reading>> {
    rates(fixture, &fixture.server.unix_url(), "distinct_keys_unix").await
}

/// On a runtime with a thread for each core, as `#[tokio::main]` makes it.
pub(super) async fn measure_threads(fixture: &Fixture) -> Result<Vec<Reading>> {
    // The runtime is dropped in there too, which blocks.
    block_in_place(|| {
        let runtime = Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(rates(fixture, &fixture.url(), "distinct_keys_threads"))
    })
}

/// Measures each operation in its own call, and operations in batches.
async fn rates(fixture: &Fixture, url: &str, name: &str) -> Result<Vec<Reading>> {
    let alone = LockClient::new(Single(fixture.library.backend(url).await?));
    let batched = fixture.library.connect(url).await?;
    let floor = fixture.library.floor(url).await?;
    let time = Duration::from_millis(fixture.effort.of(20, 250));
    let mut readings = Vec::new();
    for tasks in TASKS {
        let keys = |name| (0..tasks).map(move |task| format!("distinct-{name}-{task}"));
        // Each client has its own keys, because a key remembers its last session.
        let own = [each_key(&alone, keys("a"))?, each_key(&batched, keys("b"))?].map(Arc::new);
        let least = Arc::new(FloorLock::each(&floor, keys("c")));
        side_by_side(&least, time / 4).await?;
        for own in &own {
            side_by_side(own, time / 4).await?;
        }
        let (mut own_rates, mut rates) = ([Vec::new(), Vec::new()], Vec::new());
        for _ in 0..fixture.effort.of(1, 3) {
            rates.push(side_by_side(&least, time).await?);
            for (own, rates) in own.iter().zip(&mut own_rates) {
                rates.push(side_by_side(own, time).await?);
            }
        }
        let floor = median(rates);
        let goals = [("", 0.6), ("_batched", 0.9)];
        for ((end, goal), rates) in goals.into_iter().zip(own_rates) {
            let reading = Reading::new(format!("{name}{end}.{tasks}"), median(rates), "pairs/s");
            let reading = reading.over(floor);
            readings.push(match tasks {
                64 | 256 => reading.goal(Goal::RatioAtLeast(goal)),
                _ => reading,
            });
        }
    }
    alone.shutdown().await?;
    batched.shutdown().await?;
    Ok(readings)
}

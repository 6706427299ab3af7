//! Many tasks share one client. Each task has an uncontended lock.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{LockClient, Mutex};
use tokio::runtime::Builder;
use tokio::task::block_in_place;

use crate::Result;
use crate::figures::measurement::{Fixture, Goal, Reading, median};
use crate::load::side_by_side;
use crate::lock::FloorLock;
use crate::single::Single;

const TASKS: [usize; 4] = [1, 16, 64, 256];

pub(super) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    rates(fixture, ["distinct_keys", "distinct_keys_batched"]).await
}

pub(super) async fn measure_unix(fixture: &Fixture) -> Result<Vec<Reading>> {
    rates(
        fixture,
        ["distinct_keys_unix", "distinct_keys_unix_batched"],
    )
    .await
}

/// On a runtime with a thread for each core, as `#[tokio::main]` makes it.
pub(super) async fn measure_threads(fixture: &Fixture) -> Result<Vec<Reading>> {
    let names = ["distinct_keys_threads", "distinct_keys_threads_batched"];
    // The runtime is dropped in there too, which blocks.
    block_in_place(|| {
        let runtime = Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(rates(fixture, names))
    })
}

/// Measures each operation in its own call, and operations in batches.
async fn rates(fixture: &Fixture, names: [&str; 2]) -> Result<Vec<Reading>> {
    let url = fixture.url();
    let alone = LockClient::new(Single::new(fixture.library.backend(&url).await?));
    let batched = fixture.library.connect(&url).await?;
    let floor = fixture.library.floor(&url).await?;
    let time = Duration::from_millis(fixture.effort.of(20, 250));
    let mut readings = Vec::new();
    for tasks in TASKS {
        let keys = |name| (0..tasks).map(move |task| format!("distinct-{name}-{task}"));
        // Each client has its own keys, because a key remembers its last session.
        let own = [mutexes(&alone, keys("a"))?, mutexes(&batched, keys("b"))?];
        let least: Vec<_> = keys("c").map(|key| FloorLock::new(&floor, key)).collect();
        let least = Arc::new(least);
        side_by_side(&least, time / 4).await?;
        for own in &own {
            side_by_side(own, time / 4).await?;
        }
        let (mut own_rates, mut rates) = ([Vec::new(), Vec::new()], Vec::new());
        for _ in 0..fixture.effort.of(1, 3) {
            rates.push(side_by_side(&least, time).await?.per_second());
            for (own, rates) in own.iter().zip(&mut own_rates) {
                rates.push(side_by_side(own, time).await?.per_second());
            }
        }
        let floor = median(rates);
        for ((name, rates), goal) in names.iter().zip(own_rates).zip([0.6, 0.9]) {
            let reading = Reading::new(format!("{name}.{tasks}"), median(rates), "pairs/s");
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

fn mutexes(locks: &LockClient, keys: impl Iterator<Item = String>) -> Result<Arc<Vec<Mutex>>> {
    let mutexes: std::result::Result<Vec<_>, _> = keys.map(|key| locks.mutex(key)).collect();
    Ok(Arc::new(mutexes?))
}

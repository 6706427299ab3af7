//! Many tasks share one client. Each task has an uncontended lock.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::task::block_in_place;

use crate::Result;
use crate::figures::measurement::{Fixture, Reading, median};
use crate::floor::Floor;
use crate::library::each_key;
use crate::load::side_by_side;
use crate::lock::FloorLock;

const TASKS: [usize; 4] = [1, 16, 64, 256];

pub(super) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    rates(fixture, "distinct_keys").await
}

/// On a runtime with a thread for each core, as `#[tokio::main]` makes it.
pub(super) async fn measure_threads(fixture: &Fixture) -> Result<Vec<Reading>> {
    // The runtime is dropped in there too, which blocks.
    block_in_place(|| {
        let runtime = Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(rates(fixture, "threads"))
    })
}

async fn rates(fixture: &Fixture, name: &str) -> Result<Vec<Reading>> {
    let locks = fixture.library.connect(&fixture.url()).await?;
    let floor = Floor::connect(fixture.library, &fixture.url()).await?;
    let time = Duration::from_millis(fixture.effort.of(20, 250));
    let mut readings = Vec::new();
    for tasks in TASKS {
        let keys = |name| (0..tasks).map(move |task| format!("distinct-{name}-{task}"));
        let own = Arc::new(each_key(&locks, keys("own"))?);
        let least = Arc::new(FloorLock::each(&floor, keys("floor")));
        side_by_side(&least, time / 4).await?;
        side_by_side(&own, time / 4).await?;
        let (mut own_rates, mut floor_rates) = (Vec::new(), Vec::new());
        for _ in 0..fixture.effort.of(1, 3) {
            floor_rates.push(side_by_side(&least, time).await?);
            own_rates.push(side_by_side(&own, time).await?);
        }
        let rate = Reading::new(format!("{name}.{tasks}"), median(own_rates), "pairs/s");
        readings.push(rate.over(median(floor_rates)));
    }
    locks.shutdown().await?;
    Ok(readings)
}

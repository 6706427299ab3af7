//! Many tasks share one client, each with a lock that nobody else wants.

use std::sync::Arc;
use std::time::Duration;

use crate::Result;
use crate::figures::{Goal, Place, Reading, median};
use crate::load::side_by_side;
use crate::lock::FloorLock;

const TASKS: [usize; 4] = [1, 16, 64, 256];

pub(super) async fn measure(place: &Place) -> Result<Vec<Reading>> {
    rates(place, "distinct_keys").await
}

pub(super) async fn measure_unix(place: &Place) -> Result<Vec<Reading>> {
    rates(place, "distinct_keys_unix").await
}

async fn rates(place: &Place, name: &str) -> Result<Vec<Reading>> {
    let locks = place.library.connect(&place.url()).await?;
    let floor = place.library.floor(&place.url()).await?;
    let time = Duration::from_millis(place.effort.of(20, 250));
    let mut readings = Vec::new();
    for tasks in TASKS {
        let keys = || (0..tasks).map(|task| format!("distinct-{task}"));
        let ours = keys().map(|key| locks.mutex(key));
        let ours = Arc::new(ours.collect::<std::result::Result<Vec<_>, _>>()?);
        let least: Vec<_> = keys().map(|key| FloorLock::new(&floor, key)).collect();
        let least = Arc::new(least);
        side_by_side(&ours, time / 4).await?;
        side_by_side(&least, time / 4).await?;
        let (mut own_rates, mut rates) = (Vec::new(), Vec::new());
        for _ in 0..place.effort.of(1, 3) {
            rates.push(side_by_side(&least, time).await?.per_second());
            own_rates.push(side_by_side(&ours, time).await?.per_second());
        }
        let reading = Reading::new(format!("{name}.{tasks}"), median(own_rates), "pairs/s");
        let reading = reading.over(median(rates));
        readings.push(match tasks {
            64 | 256 => reading.goal(Goal::RatioAtLeast(0.6)),
            _ => reading,
        });
    }
    locks.shutdown().await?;
    Ok(readings)
}

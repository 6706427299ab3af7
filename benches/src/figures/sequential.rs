//! One task repeatedly acquires and releases a free lock.

use crate::Result;
use crate::figures::measurement::{Fixture, Reading};
use crate::floor::Floor;
use crate::load::one_by_one;
use crate::lock::FloorLock;
use crate::samples::Samples;

const KEY: &str = "sequential";

pub(super) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    let locks = fixture.library.connect(&fixture.url()).await?;
    let ours = locks.mutex(KEY)?;
    let floor = Floor::connect(fixture.library, &fixture.url()).await?;
    let floor = FloorLock::new(&floor, KEY);
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
    let at = |percent| Reading::percentile(KEY, percent, &own, &least);
    Ok(vec![at(50), at(99)])
}

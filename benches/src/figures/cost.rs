//! The client's cost of a pair above its floor: allocations and processor time.
//!
//! The floor is the client library's own work for two commands. The difference is leasehold's work:
//! requests, script arguments, replies, dynamic dispatch, guards and the renewal schedule.
//! Processor time is measured with many concurrent tasks, so that little of it is spent on sleeping
//! and waking up.

use std::alloc::System;
use std::sync::Arc;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use crate::Result;
use crate::figures::measurement::{Fixture, Goal, Reading, median, micros};
use crate::library::each_key;
use crate::load::{one_by_one, side_by_side_times};
use crate::lock::{FloorLock, Pair};
use crate::processor::Processor;

static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;
const TASKS: usize = 64;

/// The values of leasehold and its floor, one per block.
#[derive(Debug, Default)]
struct Compared {
    own: Vec<f64>,
    least: Vec<f64>,
}

impl Compared {
    /// The figure, and its difference from the floor, with the limit of that.
    fn readings(self, name: &str, units: [&'static str; 2], limit: f64) -> [Reading; 2] {
        let (own, least) = (median(self.own), median(self.least));
        let whole = Reading::new(format!("client.{name}"), own, units[0]);
        let extra = Reading::new(format!("client.extra_{name}"), own - least, units[1]);
        [whole.over(least), extra.goal(Goal::AtMost(limit))]
    }
}

async fn allocations(lock: &impl Pair, pairs: usize) -> Result<f64> {
    let region = Region::new(ALLOCATOR);
    one_by_one(lock, pairs).await?;
    let change = region.change();
    Ok((change.allocations + change.reallocations) as f64 / pairs as f64)
}

/// This program's processor time per pair, in microseconds.
async fn processor<L: Pair>(locks: &Arc<Vec<L>>, pairs: usize) -> Result<f64> {
    let before = Processor::now()?;
    side_by_side_times(locks, pairs).await?;
    let used = Processor::now()?.since(before).all;
    Ok(micros(used) / (pairs * locks.len()) as f64)
}

pub(super) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    let locks = fixture.library.connect(&fixture.url()).await?;
    let floor = fixture.library.floor(&fixture.url()).await?;
    let keys = || (0..TASKS).map(|task| format!("cost-{task}"));
    let ours = Arc::new(each_key(&locks, keys())?);
    let floors = Arc::new(FloorLock::each(&floor, keys()));
    let pairs = fixture.effort.of(2, 50);
    let (mut counted, mut timed) = (Compared::default(), Compared::default());
    side_by_side_times(&ours, pairs).await?;
    for _ in 0..fixture.effort.of(1, 8) {
        let least = allocations(&floors[0], 10 * pairs).await?;
        counted.least.push(least);
        counted.own.push(allocations(&ours[0], 10 * pairs).await?);
        timed.least.push(processor(&floors, pairs).await?);
        timed.own.push(processor(&ours, pairs).await?);
    }
    locks.shutdown().await?;
    if counted.least.contains(&0.0) {
        return Err("this program does not count its allocations".into());
    }
    let units = ["per pair", "per pair above the floor"];
    let allocations = counted.readings("allocations", units, 8.0);
    let units = ["µs per pair", "µs per pair above the floor"];
    Ok([allocations, timed.readings("processor", units, 2.0)].concat())
}

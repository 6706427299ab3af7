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
    /// The figure, and its difference from the floor.
    fn readings(self, name: &str, unit: &'static str, extra: Reading) -> [Reading; 2] {
        let (own, least) = (median(self.own), median(self.least));
        let whole = Reading::new(format!("client.{name}"), own, unit).over(least);
        let value = own - least;
        [whole, Reading { value, ..extra }]
    }
}

/// Allocations per pair.
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
    let ours: std::result::Result<Vec<_>, _> = keys().map(|key| locks.mutex(key)).collect();
    let floors: Vec<_> = keys().map(|key| FloorLock::new(&floor, key)).collect();
    let (ours, floors) = (Arc::new(ours?), Arc::new(floors));
    let pairs = fixture.effort.of(2, 50);
    let (mut counted, mut timed) = (Compared::default(), Compared::default());
    side_by_side_times(&ours, pairs).await?;
    for _ in 0..fixture.effort.of(1, 8) {
        counted
            .least
            .push(allocations(&floors[0], 10 * pairs).await?);
        counted.own.push(allocations(&ours[0], 10 * pairs).await?);
        timed.least.push(processor(&floors, pairs).await?);
        timed.own.push(processor(&ours, pairs).await?);
    }
    locks.shutdown().await?;
    if counted.least.contains(&0.0) {
        return Err("this program does not count its allocations".into());
    }
    let extra = |id, unit, limit| Reading::new(id, 0.0, unit).goal(Goal::AtMost(limit));
    let unit = "per pair above the floor";
    let allocations = extra("client.extra_allocations", unit, 8.0);
    let allocations = counted.readings("allocations", "per pair", allocations);
    let unit = "µs per pair above the floor";
    let processor = extra("client.extra_processor", unit, 2.0);
    let processor = timed.readings("processor", "µs per pair", processor);
    Ok([allocations, processor].concat())
}

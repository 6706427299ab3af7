//! What an uncontended acquire and its end cost the server, beside `SET NX PX` and a
//! compare-and-delete script.
//!
//! The server's own measure of a command is its wall-clock time. So commands come close behind each
//! other, in short blocks, and the median of the blocks counts: the server does not wake up for
//! each, with cold caches, and another program on the same core spoils a few blocks only.

use std::sync::Arc;

use futures_util::future::try_join_all;
use leasehold::LockClient;

use crate::Result;
use crate::figures::{Goal, Place, Reading, median};
use crate::load::{one_by_one, side_by_side_times};
use crate::lock::{FloorLock, Lock};
use crate::server_stats::ServerStats;
use crate::single::Single;

/// Microseconds of server time, block by block.
#[derive(Debug, Default)]
struct Blocks {
    /// Keys that were never used.
    fresh: Vec<f64>,
    /// Keys that were used a moment ago.
    again: Vec<f64>,
    ends: Vec<f64>,
}

pub(super) async fn measure(place: &Place) -> Result<Vec<Reading>> {
    let mut server = ServerStats::connect(&place.url()).await?;
    // Each operation in a call of its own: the server counts time by calls.
    let locks = LockClient::new(Single::new(place.library.backend(&place.url()).await?));
    let floor = place.library.floor(&place.url()).await?;
    one_by_one(&locks.mutex("warm-up")?, 10).await?;
    one_by_one(&FloorLock::new(&floor, "warm-up"), 10).await?;
    let (mut ours, mut least) = (Blocks::default(), Blocks::default());
    let size = place.effort.of(20, 100);
    for block in 0..place.effort.of(1, 20) {
        let keys = || (0..size).map(|key| format!("server-cpu-{block}-{key}"));
        let floors: Vec<_> = keys().map(|key| FloorLock::new(&floor, key)).collect();
        least.measure(&mut server, "set", &floors).await?;
        let mutexes = keys().map(|key| locks.mutex(key));
        let mutexes = mutexes.collect::<std::result::Result<Vec<_>, _>>()?;
        ours.measure(&mut server, "evalsha", &mutexes).await?;
    }
    let whole = whole_pairs(place, &mut server).await?;
    locks.shutdown().await?;
    let taking = median(least.again);
    let acquire = |id, own| {
        Reading::new(id, own, "µs of server time")
            .over(taking)
            .goal(Goal::RatioAtMost(3.5))
    };
    let end = Reading::new("server_cpu.end", median(ours.ends), "µs of server time");
    Ok(vec![
        acquire("server_cpu.acquire", median(ours.again)),
        acquire("server_cpu.acquire_new_key", median(ours.fresh)),
        end.over(median(least.ends)).goal(Goal::RatioAtMost(1.3)),
        whole,
    ])
}

impl Blocks {
    /// Takes all locks, gives all back, and once more. `taking`: the command that takes one.
    async fn measure<L: Lock>(
        &mut self,
        server: &mut ServerStats,
        taking: &str,
        locks: &[L],
    ) -> Result<()> {
        for acquires in [&mut self.fresh, &mut self.again] {
            let before = server.commands().await?;
            let held = try_join_all(locks.iter().map(Lock::take)).await?;
            let between = server.commands().await?;
            let ends = locks.iter().zip(held);
            try_join_all(ends.map(|(lock, held)| lock.give_back(held))).await?;
            let after = server.commands().await?;
            acquires.push(between.since(&before).of(taking).micros_each());
            self.ends
                .push(after.since(&between).scripts().micros_each());
        }
        Ok(())
    }
}

/// All that the server's main thread does for a pair: with the network, the parsing, the replies.
async fn whole_pairs(place: &Place, server: &mut ServerStats) -> Result<Reading> {
    const TASKS: usize = 64;
    let locks = place.library.connect(&place.url()).await?;
    let floor = place.library.floor(&place.url()).await?;
    let keys = || (0..TASKS).map(|task| format!("whole-{task}"));
    let ours: std::result::Result<Vec<_>, _> = keys().map(|key| locks.mutex(key)).collect();
    let ours = Arc::new(ours?);
    let floors: Vec<_> = keys().map(|key| FloorLock::new(&floor, key)).collect();
    let floors = Arc::new(floors);
    let pairs = place.effort.of(2, 50);
    side_by_side_times(&ours, pairs).await?;
    let (mut own, mut least) = (Vec::new(), Vec::new());
    for _ in 0..place.effort.of(1, 4) {
        let begun = server.processor_seconds().await?;
        side_by_side_times(&floors, pairs).await?;
        let between = server.processor_seconds().await?;
        side_by_side_times(&ours, pairs).await?;
        let over = server.processor_seconds().await?;
        let each = |seconds: f64| 1e6 * seconds / (pairs * TASKS) as f64;
        least.push(each(between - begun));
        own.push(each(over - between));
    }
    locks.shutdown().await?;
    let reading = Reading::new("server_cpu.whole_pair", median(own), "µs of processor time");
    Ok(reading.over(median(least)))
}

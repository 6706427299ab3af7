//! What an uncontended acquire and its end cost the server, beside `SET NX PX` and a
//! compare-and-delete script.
//!
//! Two measures. The processor time of the thread that executes commands is what an operation takes
//! of the server: reading it from the socket, parsing, executing, answering. It is taken one
//! operation after the other, each in a round trip of its own, as a lone caller's are. Apart from
//! that, and without a goal, stands what the server says that the command itself took. That is the
//! time by the clock between two points in the middle of it all: `SET` is a tenth of the work that a
//! `SET` causes, a script most of its own. Those commands come close behind each other, in short
//! blocks whose median counts, so that the server does not wake up for each, with cold caches.

use std::sync::Arc;

use futures_util::future::try_join_all;
use leasehold::{LockClient, Mutex};

use crate::Result;
use crate::figures::{Goal, Place, Reading, median};
use crate::load::{one_by_one, side_by_side_times};
use crate::lock::{FloorLock, Lock};
use crate::server_stats::ServerStats;
use crate::single::Single;

/// Microseconds of an operation, block by block.
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
    let keys = |what: &str, block: usize, size: usize| {
        let names = (0..size).map(|key| format!("{what}-{block}-{key}"));
        let floors: Vec<_> = names
            .clone()
            .map(|key| FloorLock::new(&floor, key))
            .collect();
        let mutexes = names.map(|key| locks.mutex(key));
        mutexes
            .collect::<std::result::Result<Vec<Mutex>, _>>()
            .map(|mutexes| (floors, mutexes))
    };
    let (mut own, mut least) = (Blocks::default(), Blocks::default());
    for block in 0..place.effort.of(1, 6) {
        let (floors, mutexes) = keys("processor", block, place.effort.of(20, 1_000))?;
        least.measure_processor(&mut server, &floors).await?;
        own.measure_processor(&mut server, &mutexes).await?;
    }
    let (mut own_script, mut least_script) = (Blocks::default(), Blocks::default());
    for block in 0..place.effort.of(1, 20) {
        let (floors, mutexes) = keys("script", block, place.effort.of(20, 100))?;
        least_script
            .measure_scripts(&mut server, "set", &floors)
            .await?;
        own_script
            .measure_scripts(&mut server, "evalsha", &mutexes)
            .await?;
    }
    let whole = whole_pairs(place, &mut server).await?;
    locks.shutdown().await?;
    let mut readings = own.beside(least, "", "µs of processor time");
    readings[..2]
        .iter_mut()
        .for_each(|acquire| acquire.goal = Some(Goal::RatioAtMost(3.5)));
    readings[2].goal = Some(Goal::RatioAtMost(1.3));
    readings.extend(own_script.beside(least_script, "_script", "µs of script time"));
    readings.push(whole);
    Ok(readings)
}

impl Blocks {
    /// Takes all locks one by one, gives all back, and once more.
    async fn measure_processor<L: Lock>(
        &mut self,
        server: &mut ServerStats,
        locks: &[L],
    ) -> Result<()> {
        for acquires in [&mut self.fresh, &mut self.again] {
            let mut all = Vec::with_capacity(locks.len());
            let before = server.processor_seconds().await?;
            for lock in locks {
                all.push(lock.take().await?);
            }
            let between = server.processor_seconds().await?;
            for (lock, held) in locks.iter().zip(all) {
                lock.give_back(held).await?;
            }
            let after = server.processor_seconds().await?;
            let each = |seconds: f64| 1e6 * seconds / locks.len() as f64;
            acquires.push(each(between - before));
            self.ends.push(each(after - between));
        }
        Ok(())
    }

    /// Takes all locks at once, gives all back, and once more. `taking`: the command that takes one.
    async fn measure_scripts<L: Lock>(
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

    /// The readings over those of the floor: an acquire, one of a new key, an end.
    fn beside(self, least: Self, suffix: &str, unit: &'static str) -> Vec<Reading> {
        let taking = median(least.again);
        let reading = |id: &str, own: Vec<f64>, least: f64| {
            Reading::new(format!("server_cpu.{id}{suffix}"), median(own), unit).over(least)
        };
        vec![
            reading("acquire", self.again, taking),
            reading("acquire_new_key", self.fresh, taking),
            reading("end", self.ends, median(least.ends)),
        ]
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

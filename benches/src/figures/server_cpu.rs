//! The server's cost of an uncontended acquire and release, next to `SET NX PX` and a
//! compare-and-delete script.
//!
//! There are two measures. The first is the processor time of the server's main thread: reading
//! from the socket, parsing, executing, and replying. Operations run one at a time, each in its own
//! round trip, like those of a single caller.
//!
//! The second has no goal. It is the execution time that the server reports for the command itself,
//! which is a tenth of the work of a `SET` but most of the work of a script. These commands are
//! sent close together in short blocks, so that the server does not wake up with cold caches for
//! each one. The median of the blocks counts.

use std::sync::Arc;

use futures_util::future::try_join_all;
use leasehold::LockClient;

use crate::Result;
use crate::figures::measurement::{Fixture, Goal, Reading, median};
use crate::library::each_key;
use crate::load::{one_by_one, side_by_side_times};
use crate::lock::{FloorLock, Lock};
use crate::server_stats::ServerStats;
use crate::single::Single;

/// Microseconds per operation, one value per block.
#[derive(Debug, Default)]
struct Blocks {
    /// Acquires of keys that were never used.
    fresh: Vec<f64>,
    /// Acquires of keys that were just used.
    again: Vec<f64>,
    releases: Vec<f64>,
}

pub(super) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    let mut server = ServerStats::connect(&fixture.url()).await?;
    // Each operation is one call, because the server counts time by call.
    let locks = LockClient::new(Single(fixture.library.backend(&fixture.url()).await?));
    let floor = fixture.library.floor(&fixture.url()).await?;
    one_by_one(&locks.mutex("warm-up")?, 10).await?;
    one_by_one(&FloorLock::new(&floor, "warm-up"), 10).await?;
    let keys = |prefix: &str, block: usize, size: usize| {
        let names = (0..size).map(|key| format!("{prefix}-{block}-{key}"));
        let floors = FloorLock::each(&floor, names.clone());
        Result::Ok((floors, each_key(&locks, names)?))
    };
    let (mut own, mut least) = (Blocks::default(), Blocks::default());
    for block in 0..fixture.effort.of(1, 6) {
        let (floors, mutexes) = keys("processor", block, fixture.effort.of(20, 1_000))?;
        least.measure_processor(&mut server, &floors).await?;
        own.measure_processor(&mut server, &mutexes).await?;
    }
    let (mut own_script, mut least_script) = (Blocks::default(), Blocks::default());
    for block in 0..fixture.effort.of(1, 20) {
        let (floors, mutexes) = keys("script", block, fixture.effort.of(20, 100))?;
        let server = &mut server;
        least_script.measure_scripts(server, "set", &floors).await?;
        own_script
            .measure_scripts(server, "evalsha", &mutexes)
            .await?;
    }
    let whole = whole_pairs(fixture, &mut server).await?;
    locks.shutdown().await?;
    let [again, fresh, release] = own.over(least, "", "µs of processor time");
    let mut readings = vec![
        again.goal(Goal::RatioAtMost(3.5)),
        fresh.goal(Goal::RatioAtMost(3.5)),
        release.goal(Goal::RatioAtMost(1.3)),
    ];
    readings.extend(own_script.over(least_script, "_script", "µs of script time"));
    readings.push(whole);
    Ok(readings)
}

impl Blocks {
    /// Acquires all locks one at a time, releases them, and repeats.
    async fn measure_processor<L: Lock>(
        &mut self,
        server: &mut ServerStats,
        locks: &[L],
    ) -> Result<()> {
        for acquires in [&mut self.fresh, &mut self.again] {
            let mut all = Vec::with_capacity(locks.len());
            let before = server.processor_seconds().await?;
            for lock in locks {
                all.push(lock.acquire().await?);
            }
            let between = server.processor_seconds().await?;
            for (lock, held) in locks.iter().zip(all) {
                lock.release(held).await?;
            }
            let after = server.processor_seconds().await?;
            let each = |seconds: f64| 1e6 * seconds / locks.len() as f64;
            acquires.push(each(between - before));
            self.releases.push(each(after - between));
        }
        Ok(())
    }

    /// Acquires all locks at once, releases them, and repeats. `acquiring` is the command that
    /// acquires.
    async fn measure_scripts<L: Lock>(
        &mut self,
        server: &mut ServerStats,
        acquiring: &str,
        locks: &[L],
    ) -> Result<()> {
        for acquires in [&mut self.fresh, &mut self.again] {
            let before = server.commands().await?;
            let held = try_join_all(locks.iter().map(Lock::acquire)).await?;
            let between = server.commands().await?;
            let releases = locks.iter().zip(held);
            try_join_all(releases.map(|(lock, held)| lock.release(held))).await?;
            let after = server.commands().await?;
            acquires.push(between.since(&before).of(acquiring).micros_each());
            let releases = after.since(&between).scripts();
            self.releases.push(releases.micros_each());
        }
        Ok(())
    }

    /// The readings over those of the floor: an acquire, an acquire of a new key, a release.
    fn over(self, least: Self, suffix: &str, unit: &'static str) -> [Reading; 3] {
        let acquiring = median(least.again);
        let reading = |id: &str, own: Vec<f64>, least: f64| {
            Reading::new(format!("server_cpu.{id}{suffix}"), median(own), unit).over(least)
        };
        [
            reading("acquire", self.again, acquiring),
            reading("acquire_new_key", self.fresh, acquiring),
            reading("release", self.releases, median(least.releases)),
        ]
    }
}

/// The processor time of the server's main thread per pair, including network, parsing and replies.
async fn whole_pairs(fixture: &Fixture, server: &mut ServerStats) -> Result<Reading> {
    const TASKS: usize = 64;
    let locks = fixture.library.connect(&fixture.url()).await?;
    let floor = fixture.library.floor(&fixture.url()).await?;
    let keys = || (0..TASKS).map(|task| format!("whole-{task}"));
    let ours = Arc::new(each_key(&locks, keys())?);
    let floors = Arc::new(FloorLock::each(&floor, keys()));
    let pairs = fixture.effort.of(2, 50);
    side_by_side_times(&ours, pairs).await?;
    let (mut own, mut least) = (Vec::new(), Vec::new());
    for _ in 0..fixture.effort.of(1, 4) {
        let begun = server.processor_seconds().await?;
        side_by_side_times(&floors, pairs).await?;
        let between = server.processor_seconds().await?;
        side_by_side_times(&ours, pairs).await?;
        let after = server.processor_seconds().await?;
        let each = |seconds: f64| 1e6 * seconds / (pairs * TASKS) as f64;
        least.push(each(between - begun));
        own.push(each(after - between));
    }
    locks.shutdown().await?;
    let reading = Reading::new("server_cpu.whole_pair", median(own), "µs of processor time");
    Ok(reading.over(median(least)))
}

//! Reader/writer locks: with many readers at once, and with an occasional writer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{join_all, try_join_all};
use leasehold::{ReadGuard, RwLock};

use crate::Result;
use crate::contend::{Pace, contend};
use crate::figures::hand_over::close;
use crate::figures::measurement::{Fixture, Goal, Reading, median, micros};
use crate::load::side_by_side_with;
use crate::lock::{Lock, Reader, Writer};
use crate::samples::Samples;
use crate::server_stats::ServerStats;

/// Long enough that no lease is renewed during the measurement.
const LEASE: Duration = Duration::from_secs(600);
/// The number of readers that acquire the lock at the same time.
const AT_ONCE: usize = 100;

/// The cost of one more reader.
#[derive(Debug, Default)]
struct Costs {
    /// The client's time for an acquire.
    acquire: Samples,
    /// The server's time for the script, in microseconds.
    acquire_script: Vec<f64>,
    release_script: Vec<f64>,
    scans: u64,
}

pub(super) async fn measure_many_readers(fixture: &Fixture) -> Result<Vec<Reading>> {
    let mut server = ServerStats::connect(&fixture.url()).await?;
    let locks = fixture.library.connect(&fixture.url()).await?;
    let lock = locks.rw_lock("readers")?.lease(LEASE);
    let rounds = fixture.effort.of(10, 200);
    let mut readers = vec![lock.read().await?];
    one_more(&lock, &mut server, rounds / 10).await?;
    let few = one_more(&lock, &mut server, rounds).await?;
    gather(&lock, &mut readers, fixture.effort.of(200, 10_000)).await?;
    one_more(&lock, &mut server, rounds / 10).await?;
    let many = one_more(&lock, &mut server, rounds).await?;
    for batch in readers.chunks(AT_ONCE) {
        try_join_all(batch.iter().map(ReadGuard::release)).await?;
    }
    locks.shutdown().await?;
    let script =
        |id, many, few| Reading::new(id, median(many), "µs of server time").over(median(few));
    let acquire = micros(many.acquire.percentile(50));
    let acquire = Reading::new("rw_many_readers.acquire_p50", acquire, "µs");
    let scans = many.scans as f64 / (2 * rounds) as f64;
    Ok(vec![
        script(
            "rw_many_readers.acquire",
            many.acquire_script,
            few.acquire_script,
        )
        .goal(Goal::RatioAtMost(3.0)),
        acquire
            .over(micros(few.acquire.percentile(50)))
            .goal(Goal::RatioAtMost(3.0)),
        script(
            "rw_many_readers.release",
            many.release_script,
            few.release_script,
        ),
        Reading::new(
            "rw_many_readers.scans",
            scans,
            "HSCAN or HGETALL per operation",
        ),
    ])
}

async fn gather(lock: &RwLock, readers: &mut Vec<ReadGuard>, size: usize) -> Result<()> {
    while readers.len() < size {
        for guard in join_all((0..AT_ONCE).map(|_| lock.read())).await {
            readers.push(guard?);
        }
    }
    Ok(())
}

/// One more reader acquires and releases the lock, `rounds` times.
async fn one_more(lock: &RwLock, server: &mut ServerStats, rounds: usize) -> Result<Costs> {
    let mut costs = Costs::default();
    let reader = Reader(lock.clone());
    for _ in 0..rounds {
        let before = server.commands().await?;
        let begun = Instant::now();
        let held = reader.acquire().await?;
        costs.acquire.add(begun.elapsed());
        let between = server.commands().await?;
        reader.release(held).await?;
        let after = server.commands().await?;
        let acquire = between.since(&before).scripts();
        let release = after.since(&between).scripts();
        costs.acquire_script.push(acquire.micros_each());
        costs.release_script.push(release.micros_each());
        costs.scans += after.since(&before).scans();
    }
    Ok(costs)
}

/// Measures readers that read without a pause, and one writer every 10 ms.
pub(super) async fn measure_mixed(fixture: &Fixture) -> Result<Vec<Reading>> {
    let time = Duration::from_millis(fixture.effort.of(50, 1_000));
    let pace = Pace {
        hold: Duration::ZERO,
        pause: Duration::from_millis(10),
    };
    let mut readings = Vec::new();
    for tasks in [1, 16, 256, 1_000] {
        let count = fixture.effort.of(tasks.min(256), tasks);
        let key = format!("mixed-{tasks}");
        let (mut clients, mut readers) = (Vec::new(), Vec::new());
        for _ in 0..count.min(8) {
            clients.push(fixture.library.connect(&fixture.url()).await?);
        }
        for number in 0..count {
            readers.push(Reader(clients[number % clients.len()].rw_lock(&key)?));
        }
        let own = fixture.library.connect(&fixture.url()).await?;
        let writer = Writer(own.rw_lock(&key)?);
        clients.push(own);
        let readers = Arc::new(readers);
        let writing = contend(vec![writer], pace, time);
        let (reads, writes) = side_by_side_with(&readers, writing).await?;
        let (reads, writes) = (reads.per_second(), writes?);
        close(clients).await?;
        let wait = micros(writes.wait.percentile(99)) / 1e3;
        readings.extend([
            Reading::new(format!("rw_mixed.{tasks}.reads"), reads, "reads/s"),
            Reading::new(
                format!("rw_mixed.{tasks}.writes"),
                writes.per_second(),
                "writes/s",
            ),
            Reading::new(format!("rw_mixed.{tasks}.write_wait_p99"), wait, "ms"),
        ]);
    }
    Ok(readings)
}

//! Reader/writer locks: with many readers at once, and with an occasional writer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use leasehold::{ReadGuard, RwLock};

use crate::Result;
use crate::contend::{Pace, contend};
use crate::figures::hand_over::close;
use crate::figures::measurement::{Fixture, Goal, Reading, median, micros, millis};
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
    while readers.len() < fixture.effort.of(200, 10_000) {
        readers.extend(try_join_all((0..AT_ONCE).map(|_| lock.read())).await?);
    }
    one_more(&lock, &mut server, rounds / 10).await?;
    let many = one_more(&lock, &mut server, rounds).await?;
    for batch in readers.chunks(AT_ONCE) {
        try_join_all(batch.iter().map(ReadGuard::release)).await?;
    }
    locks.shutdown().await?;
    let reading = |name, value, unit| Reading::new(format!("rw_many_readers.{name}"), value, unit);
    let script =
        |name, many, few| reading(name, median(many), "µs of server time").over(median(few));
    let p50 = |costs: &Costs| micros(costs.acquire.percentile(50));
    let acquire = reading("acquire_p50", p50(&many), "µs").over(p50(&few));
    let scans = many.scans as f64 / (2 * rounds) as f64;
    Ok(vec![
        script("acquire", many.acquire_script, few.acquire_script).goal(Goal::RatioAtMost(3.0)),
        acquire.goal(Goal::RatioAtMost(3.0)),
        script("release", many.release_script, few.release_script),
        reading("scans", scans, "HSCAN or HGETALL per operation"),
    ])
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
    let (url, mut readings) = (fixture.url(), Vec::new());
    for tasks in [1, 16, 256, 1_000] {
        let count = fixture.effort.of(tasks.min(256), tasks);
        let key = format!("mixed-{tasks}");
        // The last client writes.
        let last = count.min(8);
        let clients = fixture.library.connect_all(&url, last + 1).await?;
        let writer = Writer(clients[last].rw_lock(&key)?);
        let reader = |number: usize| Ok(Reader(clients[number % last].rw_lock(&key)?));
        let readers = Arc::new((0..count).map(reader).collect::<Result<Vec<_>>>()?);
        let writing = contend(vec![writer], pace, time);
        let (reads, writes) = side_by_side_with(&readers, writing).await?;
        let writes = writes?;
        close(clients).await?;
        let reading =
            |name, value, unit| Reading::new(format!("rw_mixed.{tasks}.{name}"), value, unit);
        readings.extend([
            reading("reads", reads, "reads/s"),
            reading("writes", writes.per_second(), "writes/s"),
            reading("write_wait_p99", millis(writes.wait.percentile(99)), "ms"),
        ]);
    }
    Ok(readings)
}

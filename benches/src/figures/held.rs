//! The memory of held locks, and the cost of renewing them.
//!
//! A lease of 30 s is renewed every 10 s, so each lock is renewed about once in ten seconds.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use leasehold::{LockClient, Mutex, MutexGuard};
use leasehold_test_servers::RedisServer;

use crate::Result;
use crate::figures::measurement::{Effort, Fixture, Reading};
use crate::floor::Floor;
use crate::library::each_key;
use crate::load::one_by_one;
use crate::lock::OWNER;
use crate::memory::{self, Peak};
use crate::processor::Processor;
use crate::server_stats::ServerStats;

/// The number of locks that are acquired at the same time.
const AT_ONCE: usize = 200;
/// Just before the first renewals of the default lease.
const BEFORE_RENEWALS: Duration = Duration::from_millis(8_500);
const ONE_THIRD: Duration = Duration::from_secs(10);
/// The default lease.
const LEASE: Duration = Duration::from_secs(30);
/// The memory that a client with 100,000 locks may take, in bytes.
const MOST_MEMORY: f64 = 150e6;
/// A lock is renewed before this much of its lease is over: a third, and half of a third for what is late.
const OLDEST: Duration = Duration::from_secs(15);
/// The client counts a lease as this much shorter, because clocks drift.
const DRIFT: Duration = Duration::from_millis(310);

/// A name of 24 bytes. The key on the server has a prefix of 10 bytes.
fn name(number: usize) -> String {
    format!("the-name-of-lock-{number:07}")
}

async fn hold(locks: &LockClient, count: usize) -> Result<Vec<MutexGuard>> {
    let mut guards = Vec::with_capacity(count);
    for first in (0..count).step_by(AT_ONCE) {
        let names = (first..count.min(first + AT_ONCE)).map(name);
        let mutexes = each_key(locks, names)?;
        guards.extend(try_join_all(mutexes.iter().map(Mutex::lock)).await?);
    }
    Ok(guards)
}

/// Measures 100,000 locks.
pub(super) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    // A quick run has few locks and no renewals: it only shows that the measurement works.
    let count = fixture.effort.of(2_000, 100_000);
    let mut server = ServerStats::connect(&fixture.url()).await?;
    let locks = fixture.library.connect(&fixture.url()).await?;
    one_by_one(&locks.mutex("warm-up")?, 10).await?;
    let (begun, empty) = (Instant::now(), used_memory(&mut server).await?);
    let guards = hold(&locks, count).await?;
    let memory = (used_memory(&mut server).await? - empty) / count as f64;
    if fixture.effort == Effort::Full {
        tokio::time::sleep(BEFORE_RENEWALS.saturating_sub(begun.elapsed())).await;
    }
    let mut readings = renewals(fixture, &mut server).await?;
    let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
    for batch in guards.chunks(AT_ONCE) {
        try_join_all(batch.iter().map(MutexGuard::release)).await?;
    }
    locks.shutdown().await?;
    readings.push(Reading::new("held.lost", lost as f64, "locks"));
    let floor = memory_of_floor(fixture, count).await?;
    readings.push(Reading::new("held.memory", memory, "B per lock").over(floor));
    Ok(readings)
}

/// Holds 100,000 locks for three leases. Fails if the client needs too much memory at any time, renews a lock late, or loses
/// one.
pub(super) async fn measure_leases(fixture: &Fixture) -> Result<Vec<Reading>> {
    let count = fixture.effort.of(2_000, 100_000);
    let (before, peak) = (memory::at_first()?, Peak::watch());
    let locks = fixture.library.connect(&fixture.url()).await?;
    let guards = hold(&locks, count).await?;
    let begun = Instant::now();
    let mut oldest = Duration::ZERO;
    while begun.elapsed() < fixture.effort.of(Duration::from_secs(1), LEASE * 3) {
        let left = guards.iter().map(MutexGuard::valid_for).min();
        let left = left.unwrap_or_default() + DRIFT;
        oldest = oldest.max(LEASE.saturating_sub(left));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
    for batch in guards.chunks(AT_ONCE) {
        try_join_all(batch.iter().map(MutexGuard::release)).await?;
    }
    let memory = peak.end()?.saturating_sub(before) as f64;
    locks.shutdown().await?;
    if memory > MOST_MEMORY || oldest > OLDEST || lost > 0 {
        let megabytes = memory / 1e6;
        let text = format!(
            "{count} locks took {megabytes:.0} MB, the oldest renewal was {oldest:.1?} old, {lost} were lost"
        );
        return Err(text.into());
    }
    Ok(vec![
        Reading::new("leases.memory", memory / 1e6, "MB"),
        Reading::new("leases.oldest", oldest.as_secs_f64(), "s"),
    ])
}

async fn used_memory(server: &mut ServerStats) -> Result<f64> {
    server.number("memory", "used_memory").await
}

/// The memory of the same number of keys, created by `SET NX PX`.
async fn memory_of_floor(fixture: &Fixture, count: usize) -> Result<f64> {
    let server = RedisServer::start();
    let mut stats = ServerStats::connect(&server.url()).await?;
    let floor = Floor::connect(fixture.library, &server.url()).await?;
    let empty = used_memory(&mut stats).await?;
    for first in (0..count).step_by(AT_ONCE) {
        let keys = (first..count.min(first + AT_ONCE)).map(|n| format!("leasehold:{}", name(n)));
        let keys: Vec<_> = keys.collect();
        try_join_all(keys.iter().map(|key| floor.acquire(key, OWNER))).await?;
    }
    Ok((used_memory(&mut stats).await? - empty) / count as f64)
}

/// The cost of one third of a lease, in which each lock is renewed once.
async fn renewals(fixture: &Fixture, server: &mut ServerStats) -> Result<Vec<Reading>> {
    let before = server.processor_seconds().await?;
    let (begun, used) = (Instant::now(), Processor::now()?);
    tokio::time::sleep(fixture.effort.of(Duration::from_millis(100), ONE_THIRD)).await;
    let used = Processor::now()?.since(used).as_secs_f64();
    let time = begun.elapsed().as_secs_f64();
    let busy = server.processor_seconds().await? - before;
    let share = |name, seconds: f64| Reading::new(name, 100.0 * seconds / time, "% of a core");
    Ok(vec![
        share("held.client_cpu", used),
        share("held.server_cpu", busy),
    ])
}

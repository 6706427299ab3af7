//! The memory of held locks, and the cost of renewing them.
//!
//! A lease of 30 s is renewed every 10 s, so each lock is renewed about once in ten seconds.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use leasehold::{LockClient, Mutex, MutexGuard};
use leasehold_test_servers::RedisServer;

use crate::Result;
use crate::counting::Counts;
use crate::figures::measurement::{Effort, Fixture, Goal, Reading};
use crate::library::each_key;
use crate::load::one_by_one;
use crate::lock::OWNER;
use crate::processor::Processor;
use crate::server_stats::ServerStats;

/// The number of locks that are acquired at the same time.
const AT_ONCE: usize = 200;
/// Just before the first renewals of the default lease.
const BEFORE_RENEWALS: Duration = Duration::from_millis(8_500);
const ONE_THIRD: Duration = Duration::from_secs(10);

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

/// Measures 1 and 1,000 locks.
pub(super) async fn measure_few(fixture: &Fixture) -> Result<Vec<Reading>> {
    let mut readings = Vec::new();
    for count in [1, 1_000] {
        readings.extend(measure_held(fixture, count).await?);
    }
    Ok(readings)
}

/// Measures 100,000 locks.
pub(super) async fn measure_many(fixture: &Fixture) -> Result<Vec<Reading>> {
    let mut readings = measure_held(fixture, 100_000).await?;
    let goals = [
        ("client_cpu", Goal::AtMost(10.0)),
        ("longest_script", Goal::AtMost(20.0)),
        ("memory", Goal::AtMost(350.0)),
        ("lost", Goal::AtMost(0.0)),
    ];
    for (name, goal) in goals {
        let mut readings = readings.iter_mut();
        let wanted = readings.find(|reading| reading.id.ends_with(name));
        wanted.ok_or("a figure with a goal is missing")?.goal = Some(goal);
    }
    Ok(readings)
}

async fn measure_held(fixture: &Fixture, count: usize) -> Result<Vec<Reading>> {
    // A quick run has few locks and no renewals: it only shows that the measurement works.
    let locks_held = fixture.effort.of(count.min(2_000), count);
    let (url, library) = (fixture.url(), fixture.library);
    let mut server = ServerStats::connect(&url).await?;
    let counts = Arc::new(Counts::default());
    let clients = library.connect_counted(&url, 1, &counts).await?;
    let locks = &clients[0];
    one_by_one(&locks.mutex("warm-up")?, 10).await?;
    let (begun, empty) = (Instant::now(), used_memory(&mut server).await?);
    let guards = hold(locks, locks_held).await?;
    let memory = (used_memory(&mut server).await? - empty) / locks_held as f64;
    if fixture.effort == Effort::Full {
        tokio::time::sleep(BEFORE_RENEWALS.saturating_sub(begun.elapsed())).await;
    }
    let mut readings = renewals(fixture, &mut server, &counts, count).await?;
    let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
    for batch in guards.chunks(AT_ONCE) {
        try_join_all(batch.iter().map(MutexGuard::release)).await?;
    }
    locks.shutdown().await?;
    let id = |name| format!("held.{count}.{name}");
    readings.push(Reading::new(id("lost"), lost as f64, "locks"));
    if count > 1 {
        let floor = memory_of_floor(fixture, locks_held).await?;
        readings.push(Reading::new(id("memory"), memory, "B per lock").over(floor));
    }
    Ok(readings)
}

async fn used_memory(server: &mut ServerStats) -> Result<f64> {
    server.number("memory", "used_memory").await
}

/// The memory of the same number of keys, created by `SET NX PX`.
async fn memory_of_floor(fixture: &Fixture, count: usize) -> Result<f64> {
    let server = RedisServer::start();
    let mut stats = ServerStats::connect(&server.url()).await?;
    let floor = fixture.library.floor(&server.url()).await?;
    let empty = used_memory(&mut stats).await?;
    for first in (0..count).step_by(AT_ONCE) {
        let keys = (first..count.min(first + AT_ONCE)).map(|n| format!("leasehold:{}", name(n)));
        let keys: Vec<_> = keys.collect();
        try_join_all(keys.iter().map(|key| floor.acquire(key, OWNER))).await?;
    }
    Ok((used_memory(&mut stats).await? - empty) / count as f64)
}

/// The cost of one third of a lease, in which each lock is renewed once.
async fn renewals(
    fixture: &Fixture,
    server: &mut ServerStats,
    counts: &Counts,
    count: usize,
) -> Result<Vec<Reading>> {
    server.log_slow_commands().await?;
    let before = server.processor_seconds().await?;
    let commands = server.commands().await?;
    let (begun, used) = (Instant::now(), Processor::now()?);
    let calls = counts.renewals.load(Relaxed);
    tokio::time::sleep(fixture.effort.of(Duration::from_millis(100), ONE_THIRD)).await;
    let used = Processor::now()?.since(used);
    let (time, calls) = (begun.elapsed(), counts.renewals.load(Relaxed) - calls);
    let scripts = server.commands().await?.since(&commands).scripts();
    let busy = server.processor_seconds().await? - before;
    let longest = server.longest_script().await? as f64 / 1e3;
    let in_scripts = scripts.micros as f64 / 1e6;
    let reading = |name, value, unit| Reading::new(format!("held.{count}.{name}"), value, unit);
    let each_second = |value: f64| value / time.as_secs_f64();
    let share = |name, seconds, unit| reading(name, 100.0 * each_second(seconds), unit);
    let (all, of_renewals) = (used.all.as_secs_f64(), used.renewal_threads.as_secs_f64());
    Ok(vec![
        share("client_cpu", all, "% of a core"),
        share("renewal_cpu", of_renewals, "% of a core"),
        share("server_cpu", busy, "% of a core"),
        share("script_time", in_scripts, "% of the server's time"),
        reading("longest_script", longest, "ms"),
        reading("renew_calls", each_second(calls as f64), "calls/s"),
    ])
}

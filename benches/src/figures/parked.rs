//! Many waiters of 100 clients, parked in the queue of one mutex that nobody releases.
//!
//! The figures are the server's processor time while the waiters only wait, and the busiest quarter
//! of a second when all start to wait, and after a restart of the server with and without its data.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use leasehold::{LockClient, Mutex};
use leasehold_test_servers::{Data, RedisServer};
use tokio::runtime::Builder;
use tokio::task::{JoinSet, block_in_place, spawn_blocking};

use crate::Result;
use crate::counting::Counts;
use crate::figures::measurement::{Effort, Fixture, Goal, Reading};
use crate::server_stats::ServerStats;

const CLIENTS: usize = 100;
const KEY: &str = "parked";
/// The length of one sample of the server's load.
const WINDOW: Duration = Duration::from_millis(250);
/// The samples of a start and of a restart, and of the time between them.
const WINDOWS_OF_BURST: usize = 24;
const WINDOWS_AT_REST: usize = 40;
const ALL_WAIT_WITHIN: Duration = Duration::from_secs(60);

pub(super) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    let mut readings = Vec::new();
    for (count, goal) in [(1_000, 1.0), (10_000, 5.0)] {
        readings.extend(measure_parked(fixture, count, goal).await?);
    }
    Ok(readings)
}

/// The clients, and the waiters in their queue.
struct Park {
    server: RedisServer,
    /// Makes the first hold, and inspects the queue.
    first: LockClient,
    clients: Vec<LockClient>,
    counts: Arc<Counts>,
    waiters: JoinSet<Result<()>>,
}

async fn measure_parked(fixture: &Fixture, count: usize, goal: f64) -> Result<Vec<Reading>> {
    // A quick run has few waiters and samples: it only shows that the measurement works.
    let waiting = fixture.effort.of(count.min(300), count);
    let mut park = Park::connect(fixture).await?;
    let held = park.first.mutex(KEY)?.lock().await?;
    park.enter(waiting)?;
    let start = park.load(fixture.effort, WINDOWS_OF_BURST).await?;
    park.all_wait(waiting).await?;
    let before = park.counts.polls.load(Relaxed);
    let begun = Instant::now();
    let rest = park.load(fixture.effort, WINDOWS_AT_REST).await?;
    let polls = (park.counts.polls.load(Relaxed) - before) as f64 / begun.elapsed().as_secs_f64();
    let kept = park.restart(fixture.effort, Data::Kept, waiting).await?;
    // The first hold is lost too, and one waiter gets the lock.
    let others = waiting - 1;
    let lost = park.restart(fixture.effort, Data::Lost, others).await?;
    drop(held);
    park.close().await?;
    let id = |name| format!("parked.{count}.{name}");
    let reading = |name, value| Reading::new(id(name), value, "% of a core");
    Ok(vec![
        reading("server_cpu", mean(&rest)).goal(Goal::AtMost(goal)),
        reading("peak", greatest(&rest)),
        Reading::new(id("poll_calls"), polls, "calls/s"),
        reading("start_peak", greatest(&start)),
        reading("start_mean", mean(&start)),
        reading("restart_peak", greatest(&kept)),
        reading("restart_mean", mean(&kept)),
        reading("lost_data_peak", greatest(&lost)),
        reading("lost_data_mean", mean(&lost)),
    ])
}

async fn sample(url: &str, windows: usize) -> Result<Vec<f64>> {
    let mut server = ServerStats::connect(url).await?;
    let mut samples = Vec::new();
    let mut before = (Instant::now(), server.processor_seconds().await?);
    for _ in 0..windows {
        tokio::time::sleep(WINDOW).await;
        let now = (Instant::now(), server.processor_seconds().await?);
        let time = now.0.duration_since(before.0).as_secs_f64();
        samples.push(100.0 * (now.1 - before.1) / time);
        before = now;
    }
    Ok(samples)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn greatest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

impl Park {
    async fn connect(fixture: &Fixture) -> Result<Self> {
        let server = block_in_place(RedisServer::start);
        let (url, library) = (server.url(), fixture.library);
        let counts = Arc::new(Counts::default());
        Ok(Self {
            first: library.connect(&url).await?,
            clients: library.connect_counted(&url, CLIENTS, &counts).await?,
            server,
            counts,
            waiters: JoinSet::new(),
        })
    }

    /// Starts all waiters at once. A waiter that gets the lock keeps it.
    fn enter(&mut self, waiting: usize) -> Result<()> {
        for number in 0..waiting {
            let mutex: Mutex = self.clients[number % CLIENTS].mutex(KEY)?;
            self.waiters.spawn(async move {
                let _held = mutex.lock().await?;
                pending().await
            });
        }
        Ok(())
    }

    /// Waits until this many wait.
    async fn all_wait(&mut self, waiting: usize) -> Result<()> {
        let begun = Instant::now();
        loop {
            // A busy client may have no answer in time.
            let found = self.first.inspect(KEY).await;
            let found = found.map_or(0, |found| found.waiter_count() as usize);
            if found == waiting {
                return Ok(());
            }
            if let Some(ended) = self.waiters.try_join_next() {
                ended??;
            }
            if begun.elapsed() > ALL_WAIT_WITHIN {
                return Err(format!("{found} instead of {waiting} wait").into());
            }
            tokio::time::sleep(WINDOW).await;
        }
    }

    /// The load of the server's main thread in several windows, in % of a core.
    async fn load(&self, effort: Effort, windows: usize) -> Result<Vec<f64>> {
        let (url, windows) = (self.server.url(), effort.of(2, windows));
        // The clients keep the thread of this runtime busy.
        let sampling = move || {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(sample(&url, windows))
        };
        spawn_blocking(sampling).await?
    }

    /// Restarts the server. Returns its load afterwards, until all wait again.
    async fn restart(&mut self, effort: Effort, data: Data, waiting: usize) -> Result<Vec<f64>> {
        block_in_place(|| self.server.restart(data));
        let load = self.load(effort, WINDOWS_OF_BURST).await?;
        self.all_wait(waiting).await?;
        Ok(load)
    }

    async fn close(mut self) -> Result<()> {
        self.waiters.shutdown().await;
        for client in self.clients.iter().chain([&self.first]) {
            client.shutdown().await?;
        }
        Ok(())
    }
}

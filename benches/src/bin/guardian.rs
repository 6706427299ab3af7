//! What it costs a client to keep many guards: the processor time of the thread that renews them.
//!
//! One client on a server of its own takes so many locks with the default lease. When all are
//! renewed in their rhythm, the time of each thread is read before and after the measurement from
//! `/proc`, so this needs Linux.

use std::error::Error;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use leasehold::fred::FredBackend;
use leasehold::redis_rs::RedisBackend;
use leasehold::{LockBackend, LockClient, Mutex, MutexGuard};
use leasehold_benches::counting::{Counting, Counts};
use leasehold_test_servers::RedisServer;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Longer than the interval between two renewals of the default lease.
const SETTLE: Duration = Duration::from_secs(11);
/// The name of the thread, cut to what the system keeps of it.
const GUARDIAN: &str = "leasehold-guard";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Library {
    RedisRs,
    Fred,
}

/// Measures what renewing many guards costs.
#[derive(Debug, Parser)]
struct Arguments {
    /// Client libraries to measure.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "redis-rs,fred"
    )]
    library: Vec<Library>,
    /// Guards of one client.
    #[arg(long, default_value_t = 10_000)]
    guards: usize,
    /// Seconds to measure.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let server = RedisServer::start();
    runtime.block_on(async {
        for library in &arguments.library {
            let url = server.url();
            println!("{library:?}");
            match library {
                Library::RedisRs => measure(RedisBackend::connect(&url).await?, &arguments).await?,
                Library::Fred => measure(FredBackend::connect(&url).await?, &arguments).await?,
            }
        }
        Ok(())
    })
}

async fn measure(backend: impl LockBackend, arguments: &Arguments) -> Result<()> {
    let counts = Arc::new(Counts::default());
    let locks = LockClient::new(Counting::new(backend, Arc::clone(&counts)));
    let guards = hold_all(&locks, arguments.guards).await?;
    tokio::time::sleep(SETTLE).await;
    let (begun, before, calls) = (Instant::now(), Used::now()?, counts.snapshot());
    tokio::time::sleep(Duration::from_secs(arguments.seconds)).await;
    let (time, after) = (begun.elapsed(), Used::now()?);
    let share = |used: Duration| 100.0 * used.as_secs_f64() / time.as_secs_f64();
    println!(
        "  {} guards: the guardian's thread took {:.2} % of a core, the whole program {:.2} %, \
         in {:.1} calls a second",
        guards.len(),
        share(after.guardian - before.guardian),
        share(after.all - before.all),
        counts.snapshot().since(calls).renewals as f64 / time.as_secs_f64(),
    );
    let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
    println!("  lost: {lost}");
    drop(guards);
    locks.shutdown().await?;
    Ok(())
}

/// Takes all locks, a few at a time.
async fn hold_all(locks: &LockClient, count: usize) -> Result<Vec<MutexGuard>> {
    let mut guards = Vec::with_capacity(count);
    for chunk in (0..count).collect::<Vec<_>>().chunks(100) {
        let mutexes: Vec<Mutex> = chunk
            .iter()
            .map(|n| locks.mutex(format!("guarded-{n}")))
            .collect::<std::result::Result<_, _>>()?;
        let taken = futures_util::future::join_all(mutexes.iter().map(Mutex::lock)).await;
        for guard in taken {
            guards.push(guard?);
        }
    }
    Ok(guards)
}

/// Processor time that was used.
struct Used {
    guardian: Duration,
    all: Duration,
}

impl Used {
    fn now() -> Result<Self> {
        let mut used = Self {
            guardian: Duration::ZERO,
            all: Duration::ZERO,
        };
        for task in fs::read_dir("/proc/self/task")? {
            let task = task?.path();
            let (Ok(name), Ok(stat)) = (
                fs::read_to_string(task.join("comm")),
                fs::read_to_string(task.join("schedstat")),
            ) else {
                // It has ended meanwhile.
                continue;
            };
            let running = stat.split_whitespace().next().unwrap_or_default();
            let running = Duration::from_nanos(running.parse()?);
            used.all += running;
            if name.trim_end() == GUARDIAN {
                used.guardian += running;
            }
        }
        if used.guardian.is_zero() {
            return Err(format!("no thread is called {GUARDIAN}, or it never ran").into());
        }
        Ok(used)
    }
}

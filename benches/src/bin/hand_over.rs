//! How long a lock takes from one client to the next, and what that costs the server.
//!
//! One run on a server of its own over loopback TCP, for each client library: the floor (one
//! message from a connection to another), hand-overs with several numbers of contenders that keep
//! the lock for no time, and a mixed load that leaves pauses. Each contender is a client with
//! connections of its own; all are tasks of one runtime. Only ratios within one run mean
//! anything.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use leasehold::fred::FredBackend;
use leasehold::redis_rs::RedisBackend;
use leasehold::{LockBackend, LockClient};
use leasehold_benches::contend::{Contention, Pace, contend};
use leasehold_benches::counting::{Counting, Counts};
use leasehold_benches::push_floor;
use leasehold_benches::samples::Samples;
use leasehold_test_servers::RedisServer;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Library {
    RedisRs,
    Fred,
}

/// Measures hand-overs of a contended mutex.
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
    /// Numbers of contenders for hand-overs without hold time.
    #[arg(long, value_delimiter = ',', default_value = "2,8,32")]
    contenders: Vec<usize>,
    /// Seconds for each measurement.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Messages of the floor.
    #[arg(long, default_value_t = 5_000)]
    messages: usize,
    /// Threads of the runtime that all contenders share.
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(arguments.threads)
        .enable_all()
        .build()?;
    let server = RedisServer::start();
    runtime.block_on(async {
        for library in &arguments.library {
            measure(*library, &arguments, &server.url()).await?;
        }
        Ok(())
    })
}

async fn measure(library: Library, arguments: &Arguments, url: &str) -> Result<()> {
    let floor = match library {
        Library::RedisRs => push_floor::through_redis_rs(url, arguments.messages).await?,
        Library::Fred => push_floor::through_fred(url, arguments.messages).await?,
    };
    println!("{library:?}, {} thread(s)", arguments.threads);
    println!("  floor, PUBLISH to receive: {floor}");
    let time = Duration::from_secs(arguments.seconds);
    for contenders in &arguments.contenders {
        let seen = run(library, url, *contenders, Pace::default(), time).await?;
        print_hand_overs(*contenders, &seen, &floor);
    }
    let pace = Pace {
        hold: Duration::from_millis(5),
        away: Duration::from_millis(20),
    };
    let seen = run(library, url, 8, pace, time).await?;
    print_mixed(&seen, &floor);
    Ok(())
}

async fn run(
    library: Library,
    url: &str,
    contenders: usize,
    pace: Pace,
    time: Duration,
) -> Result<Contention> {
    let counts = Arc::new(Counts::default());
    let clients = match library {
        Library::RedisRs => {
            let connect = || RedisBackend::connect(url);
            connect_all(contenders, &counts, connect).await?
        }
        Library::Fred => connect_all(contenders, &counts, || FredBackend::connect(url)).await?,
    };
    let mut server = redis::Client::open(url)?
        .get_multiplexed_async_connection()
        .await?;
    let key = format!("contended-{contenders}-{}", pace.hold.as_millis());
    let seen = contend(clients.clone(), &counts, &mut server, &key, pace, time).await?;
    for client in clients {
        client.shutdown().await?;
    }
    Ok(seen)
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn print_hand_overs(contenders: usize, seen: &Contention, floor: &Samples) {
    let ratio = micros(seen.hand_over.percentile(50)) / micros(floor.percentile(50));
    println!(
        "  {contenders} contenders, no hold: hand-over {} ({ratio:.2} of the floor's p50), \
         {:.0} acquisitions/s, {} of {} handed over",
        seen.hand_over,
        seen.per_second(),
        seen.hand_over.count(),
        seen.acquisitions(),
    );
    let (least, most) = (seen.by_client.iter().min(), seen.by_client.iter().max());
    println!(
        "    by client: {} to {} acquisitions",
        least.copied().unwrap_or_default(),
        most.copied().unwrap_or_default(),
    );
    print_calls(seen);
}

fn print_calls(seen: &Contention) {
    let each = |calls: u64| calls as f64 / seen.acquisitions() as f64;
    let calls = seen.calls;
    println!(
        "    calls an acquisition: acquire {:.3} + poll {:.3} + end {:.3} = {:.3}; \
         renew {:.3}; the server counted {:.3} scripts of {:.1} µs",
        each(calls.acquires),
        each(calls.polls),
        each(calls.ends),
        each(calls.acquires + calls.polls + calls.ends),
        each(calls.renewals),
        each(seen.scripts.calls),
        seen.scripts.micros as f64 / seen.scripts.calls as f64,
    );
}

fn print_mixed(seen: &Contention, floor: &Samples) {
    let hold = seen.hold.mean();
    let possible = 1.0 / (hold + floor.percentile(50)).as_secs_f64();
    println!(
        "  8 contenders, 5 ms hold (measured {:.0} µs), 20 ms away: {:.1} acquisitions/s, \
         {:.3} of 1/(hold + floor); wait p50 {:.1} ms, p99 {:.1} ms; hand-over {}",
        micros(hold),
        seen.per_second(),
        seen.per_second() / possible,
        micros(seen.wait.percentile(50)) / 1e3,
        micros(seen.wait.percentile(99)) / 1e3,
        seen.hand_over,
    );
    print_calls(seen);
}

async fn connect_all<B, E, F>(
    count: usize,
    counts: &Arc<Counts>,
    connect: impl Fn() -> F,
) -> Result<Vec<LockClient>>
where
    B: LockBackend,
    E: Error + 'static,
    F: Future<Output = std::result::Result<B, E>>,
{
    let mut clients = Vec::new();
    for _ in 0..count {
        let backend = Counting::new(connect().await?, Arc::clone(counts));
        clients.push(LockClient::new(backend));
    }
    Ok(clients)
}

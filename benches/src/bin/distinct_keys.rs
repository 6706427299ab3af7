//! What a pair of acquire and release costs the client and the server when many tasks of one
//! client take locks that nobody else wants: on the floor, with each operation in its own call,
//! and with those that are ready at the same time travelling together.
//!
//! All in turns on a server of its own over loopback TCP; only ratios within one run mean
//! anything.

use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use leasehold::{LockClient, Mutex};
use leasehold_benches::Result;
use leasehold_benches::figures::median;
use leasehold_benches::library::Library;
use leasehold_benches::load::side_by_side;
use leasehold_benches::lock::{FloorLock, Pair};
use leasehold_benches::processor::Processor;
use leasehold_benches::server_stats::ServerStats;
use leasehold_benches::single::Single;
use leasehold_test_servers::RedisServer;

/// Measures pairs on distinct keys.
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
    /// Numbers of tasks.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,64,256")]
    tasks: Vec<usize>,
    /// Rounds; the medians are told.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Milliseconds for each measurement.
    #[arg(long, default_value_t = 500)]
    millis: u64,
}

/// Figures of one measurement: pairs a second, then for each pair microseconds of the client, the
/// server, and its scripts, and the calls of scripts.
type Figures = [f64; 5];

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        for library in &arguments.library {
            println!("{}", library.name());
            for tasks in &arguments.tasks {
                measure(*library, *tasks, &arguments).await?;
            }
        }
        Ok(())
    })
}

async fn measure(library: Library, tasks: usize, arguments: &Arguments) -> Result<()> {
    let server = RedisServer::start();
    let url = server.url();
    let alone = LockClient::new(Single::new(library.backend(&url).await?));
    let together = library.connect(&url).await?;
    let floor = library.floor(&url).await?;
    let floors = (0..tasks).map(|task| FloorLock::new(&floor, format!("floor-{task}")));
    let floors = Arc::new(floors.collect::<Vec<_>>());
    let own = [
        ("each in its own call", mutexes(&alone, "alone", tasks)?),
        (
            "travelling together",
            mutexes(&together, "together", tasks)?,
        ),
    ];
    let time = Duration::from_millis(arguments.millis);
    let mut stats = ServerStats::connect(&url).await?;
    let mut seen: [Vec<Figures>; 3] = Default::default();
    for _ in 0..arguments.rounds {
        seen[0].push(once(&floors, &mut stats, time).await?);
        for ((_, own), seen) in own.iter().zip(&mut seen[1..]) {
            seen.push(once(own, &mut stats, time).await?);
        }
    }
    println!("  {tasks} task(s), medians of {} rounds", arguments.rounds);
    let names = ["floor", own[0].0, own[1].0];
    for (name, figures) in names.into_iter().zip(&seen) {
        let ratios = figures.iter().zip(&seen[0]);
        let ratio = median(ratios.map(|(own, floor)| own[0] / floor[0]).collect());
        let of = |index: usize| median(figures.iter().map(|figures| figures[index]).collect());
        println!(
            "    {name:<20} {:>7.0} pairs/s, {ratio:.2} of the floor; a pair: client {:.2} µs, \
             server {:.2} µs, of it scripts {:.2} µs in {:.3} calls",
            of(0),
            of(1),
            of(2),
            of(3),
            of(4),
        );
    }
    alone.shutdown().await?;
    together.shutdown().await?;
    Ok(())
}

fn mutexes(locks: &LockClient, name: &str, tasks: usize) -> Result<Arc<Vec<Mutex>>> {
    // Keys of its own for each: a key remembers who used it last.
    let mutexes = (0..tasks).map(|task| locks.mutex(format!("{name}-{task}")));
    let mutexes: std::result::Result<Vec<_>, _> = mutexes.collect();
    Ok(Arc::new(mutexes?))
}

async fn once<L: Pair>(
    locks: &Arc<Vec<L>>,
    stats: &mut ServerStats,
    time: Duration,
) -> Result<Figures> {
    side_by_side(locks, time / 10).await?;
    let (commands, server) = (stats.commands().await?, stats.processor_seconds().await?);
    let client = Processor::now()?;
    let load = side_by_side(locks, time).await?;
    let client = Processor::now()?.since(client).all;
    let server = stats.processor_seconds().await? - server;
    let scripts = stats.commands().await?.since(&commands).scripts();
    let each = |total: f64| total / load.pairs;
    Ok([
        load.per_second(),
        each(client.as_secs_f64() * 1e6),
        each(server * 1e6),
        each(scripts.micros as f64),
        each(scripts.calls as f64),
    ])
}

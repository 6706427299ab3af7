//! Stops and kills `leasehold run`, its keeper, its CMD and the server at random: does a CMD ever live beside another
//! one's, and is a lock ever taken for longer than its lease after both processes are dead? Linux only.
//!
//! ```sh
//! cargo build --workspace --bins --examples
//! target/debug/examples/torment --commands 40 --seed 7
//! ```
//!
//! The commands compete for a few locks on a Redis server that keeps its data. CMD is this program again: it writes down
//! every few milliseconds that it is alive, by the clock that all processes share. The seed chooses the faults; when they
//! hit, the machine decides too.
//!
//! Of a command and its keeper one is stopped or killed, not both, unless everything is killed, as when a machine dies: the
//! command promises nothing then.

#![expect(
    clippy::disallowed_methods,
    reason = "faults take their time, and CMD is alive for a while"
)]

mod command;
mod ledger;

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use clap::Parser;
use fastrand::Rng;
use leasehold::{ConnectOptions, RedisLibrary};
use leasehold_test_servers::{RedisServer, ServerOptions};
use rustix::time::{ClockId, clock_gettime};

use command::{Fate, Torment};
use ledger::{Seen, Stall};

/// How many commands run or wait at once.
const AT_ONCE: u64 = 8;
const KEYS: [&str; 4] = ["a", "b", "c", "d"];
const LEASE: Duration = Duration::from_secs(6);
/// How often a process says that it is alive.
const PAUSE: Duration = Duration::from_millis(5);
/// A pause that takes so much longer is a stall.
const STALL: Duration = Duration::from_millis(20);

#[derive(Parser)]
struct Arguments {
    /// How many commands are run.
    #[arg(long, default_value_t = 40)]
    commands: usize,
    /// Chooses the faults. Drawn and printed if it is left out.
    #[arg(long)]
    seed: Option<u64>,
    /// Be CMD: the file that it writes to.
    #[arg(long, hide = true)]
    alive: Option<std::path::PathBuf>,
}

/// The time now, which counts suspend.
fn now() -> Duration {
    let at = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(at.tv_sec).expect("not negative");
    Duration::new(seconds, u32::try_from(at.tv_nsec).expect("below a second"))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(file) = arguments.alive {
        be_alive(&file);
        return ExitCode::SUCCESS;
    }
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..));
    println!("--commands {} --seed {seed}", arguments.commands);
    let own = std::env::current_exe().expect("this program has a path");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = ServerOptions::default().with_append_only().start();
    let torment = Torment {
        program: own.ancestors().nth(2).expect("a folder").join("leasehold"),
        own,
        url: server.url(),
        file: folder.path().join("alive"),
    };
    let (begun, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (fates, seen, stalls) = std::thread::scope(|scope| {
        let watching = scope.spawn(|| watch(&torment.url, &over));
        let stalling = scope.spawn(|| stalls(&over));
        let serving = scope.spawn(|| torment_server(server, seed, &over));
        let worker = |worker| {
            let mut random = Rng::with_seed(seed.wrapping_add(worker));
            let (begun, torment) = (&begun, &torment);
            let next = move || begun.fetch_add(1, Ordering::Relaxed);
            let numbers = std::iter::from_fn(move || Some(next()));
            let numbers = numbers.take_while(move |number| *number < arguments.commands);
            numbers.map(move |number| torment.run(number, &mut random))
        };
        let workers = (1..=AT_ONCE).map(|n| scope.spawn(move || worker(n).collect::<Vec<Fate>>()));
        let workers: Vec<_> = workers.collect();
        let fates = workers.into_iter().map(|it| it.join().expect("no panic"));
        let fates: Vec<Fate> = fates.flatten().collect();
        over.store(true, Ordering::Relaxed);
        // The server lives until the last look at the locks.
        let seen = watching.join().expect("no panic");
        drop(serving.join().expect("no panic"));
        (fates, seen, stalling.join().expect("no panic"))
    });
    let text = std::fs::read_to_string(&torment.file).expect("CMD has run");
    match ledger::check(&text, &fates, &seen, &stalls) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// CMD: writes down that it is alive, again and again, for as long as the torment says.
fn be_alive(file: &Path) {
    let variable = |name: &str| std::env::var(name).expect("the torment sets it");
    let life = [
        variable("LEASEHOLD_KEY"),
        variable("NUMBER"),
        variable("LEASEHOLD_TOKEN"),
    ];
    if variable("STUBBORN") == "true" {
        let ignored = std::sync::Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGTERM, ignored).expect("a handler");
    }
    let file = File::options().append(true).create(true).open(file);
    let mut file = file.expect("a writable folder");
    let until = now() + Duration::from_millis(variable("MILLIS").parse().expect("a number"));
    while now() < until {
        // In one call, at the end of the file. The time is that of a moment before.
        let line = format!("{} {}\n", life.join(" "), now().as_nanos());
        file.write_all(line.as_bytes()).expect("room on the disk");
        std::thread::sleep(PAUSE);
    }
}

/// How long this thread had to wait for a processor, and until when.
fn stalls(over: &AtomicBool) -> Vec<Stall> {
    let mut stalls = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let before = now();
        std::thread::sleep(PAUSE);
        let (end, by) = (now(), (now() - before).saturating_sub(PAUSE));
        if by > STALL {
            stalls.push(Stall { end, by });
        }
    }
    stalls
}

/// Asks who holds the locks, until a while after the end: what is left must go.
fn watch(url: &str, over: &AtomicBool) -> Seen {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let options = ConnectOptions::new().redis_library(RedisLibrary::RedisRs);
        let locks = options.connect(url).await.expect("the server is there");
        let (mut seen, mut until) = (HashMap::new(), None);
        while until.is_none_or(|until| now() < until) {
            for key in KEYS {
                // The answer is of a later moment, and the server may be away.
                let asked = now();
                let Ok(state) = locks.inspect(key).await else {
                    continue;
                };
                for holder in state.holders() {
                    let label = holder.label.as_str().to_owned();
                    seen.entry(label).or_insert((asked, asked)).1 = asked;
                }
            }
            if over.load(Ordering::Relaxed) {
                until = until.or(Some(now() + LEASE * 2));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        seen
    })
}

/// Stops and kills the server, and starts it again with its data.
fn torment_server(mut server: RedisServer, seed: u64, over: &AtomicBool) -> RedisServer {
    let mut random = Rng::with_seed(seed);
    let sleep = |millis| std::thread::sleep(Duration::from_millis(millis));
    while !over.load(Ordering::Relaxed) {
        sleep(random.u64(1_000..8_000));
        if random.u8(..4) == 0 {
            server.kill();
            sleep(random.u64(..2_000));
            server.start_again();
        } else {
            server.pause();
            sleep(random.u64(10..5_000));
            server.resume();
        }
    }
    server
}

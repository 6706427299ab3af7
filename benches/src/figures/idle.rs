//! The cost of idle clients in a process: threads, tasks, connections and memory.
//!
//! The figures are the difference between one client and many, for each further client. A new
//! process measures them, because this one would reuse memory of earlier measurements.

use std::env;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use futures_util::future::try_join_all;
use leasehold::LockClient;
use leasehold_api::TokioRuntime;
use tokio::runtime::{Builder, Handle};
use tokio::task::block_in_place;

use crate::Result;
use crate::figures::measurement::{Fixture, Reading};
use crate::library::Library;
use crate::server_stats::ServerStats;

/// The option of the program that makes it measure idle clients. A library, a URL and the number of
/// clients follow it.
pub const OPTION: &str = "--idle-clients";

/// Time for a waiter to enter the queue, and to subscribe.
const ENTER: Duration = Duration::from_millis(100);
/// Time for connections and tasks that are no longer needed to end.
const SETTLE: Duration = Duration::from_millis(500);
/// The clients that connect or wait at the same time.
const AT_ONCE: usize = 10;

/// What is counted, with its unit for each client.
const COUNTED: [(&str, &str); 4] = [
    ("threads", "threads per client"),
    ("tasks", "tasks per client"),
    ("connections", "connections per client"),
    (
        "memory",
        "kB of resident memory per client, without the program",
    ),
];
/// When: after connecting, and after each client has waited for a lock and had it.
const STATES: [&str; 2] = ["connected", "used"];

pub(super) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    let further = fixture.effort.of(10, 100).to_string();
    let (library, url) = (fixture.library.name(), fixture.url());
    let mut program = Command::new(env::current_exe()?);
    program.args([OPTION, library, &url, &further]);
    program.stderr(Stdio::inherit());
    let output = block_in_place(|| program.output())?;
    if !output.status.success() {
        return Err(format!("the process with idle clients failed: {}", output.status).into());
    }
    let counts: [Counts; STATES.len()] = serde_json::from_slice(&output.stdout)?;
    let mut readings = Vec::new();
    for (state, counts) in STATES.into_iter().zip(counts) {
        for ((name, unit), count) in COUNTED.into_iter().zip(counts) {
            readings.push(Reading::new(format!("idle.{state}.{name}"), count, unit));
        }
    }
    Ok(readings)
}

/// Measures in this process, and prints the counts.
pub fn print(library: Library, url: &str, further: usize) -> Result<()> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        // Threads that look up names are shared by all clients. They end before they are counted.
        .thread_keep_alive(SETTLE / 5)
        .enable_all()
        .build()?;
    let url = url.to_owned();
    let counting = runtime.spawn(async move { count(library, &url, further).await });
    println!("{}", serde_json::to_string(&runtime.block_on(counting)??)?);
    Ok(())
}

/// What the process and the server have, in the order of [`COUNTED`].
type Counts = [f64; COUNTED.len()];

/// Counts in each of [`STATES`], for each further client.
async fn count(library: Library, url: &str, further: usize) -> Result<[Counts; STATES.len()]> {
    let mut server = ServerStats::connect(url).await?;
    let holder = library.connect(url).await?;
    let mut clients = vec![library.connect(url).await?];
    use_all(&holder, &clients).await?;
    let one = counts_now(&mut server).await?;
    while clients.len() <= further {
        let left = (1 + further - clients.len()).min(AT_ONCE);
        clients.extend(try_join_all((0..left).map(|_| library.connect(url))).await?);
    }
    let connected = counts_now(&mut server).await?;
    use_all(&holder, &clients).await?;
    let used = counts_now(&mut server).await?;
    let each = |index: usize, counts: Counts| (counts[index] - one[index]) / further as f64;
    Ok([connected, used].map(|counts| std::array::from_fn(|index| each(index, counts))))
}

/// Each client waits for a lock that `holder` has, gets it, and releases it.
async fn use_all(holder: &LockClient, clients: &[LockClient]) -> Result<()> {
    for batch in clients.chunks(AT_ONCE) {
        let uses = batch.iter().enumerate().map(async |(number, client)| {
            let key = format!("idle-{number}");
            let held = holder.mutex(&key)?.lock().await?;
            let mutex = client.mutex(&key)?;
            let waiting = tokio::spawn(async move { mutex.lock().await?.release().await });
            tokio::time::sleep(ENTER).await;
            held.release().await?;
            waiting.await??;
            Result::Ok(())
        });
        try_join_all(uses).await?;
    }
    Ok(())
}

async fn counts_now(server: &mut ServerStats) -> Result<Counts> {
    tokio::time::sleep(SETTLE).await;
    let status = fs::read_to_string("/proc/self/status")?;
    let of_status = |name: &str| -> Result<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next());
        Ok(number.ok_or("/proc/self/status lacks a line")?.parse()?)
    };
    // Renewals have a runtime of their own.
    let renewals = TokioRuntime::renewal_thread().into_iter();
    let runtimes = renewals.chain([Handle::current()]);
    let tasks = runtimes.map(|runtime| runtime.metrics().num_alive_tasks() as f64);
    Ok([
        of_status("Threads:")?,
        tasks.sum(),
        server.number("clients", "connected_clients").await?,
        of_status("RssAnon:")?,
    ])
}

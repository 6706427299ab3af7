//! Measures what a failover does to locks, with Sentinel and in a cluster, through both client
//! libraries.
//!
//! ```sh
//! cargo run -p leasehold-processes --example failover -- 5
//! ```
//!
//! The argument is the number of runs for each kind of failover and each library. Times are in ms from
//! the start of the failover. Each run starts its own servers: a primary, two replicas, and three
//! sentinels that act after 500 ms of silence; or a cluster of three primaries with a replica each,
//! whose `cluster-node-timeout` is 1 s.

#![expect(clippy::disallowed_methods, reason = "it measures for a while")]

mod cluster;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold_api::{LockClient, MutexGuard};
use leasehold_processes::{Failure, Library};
use leasehold_test_servers::SentinelServers;
use tokio::task::JoinSet;

const DOWN_AFTER: Duration = Duration::from_millis(500);
const LEASE: Duration = Duration::from_secs(4);
/// How long locks are taken before the failover, and after the first write to the new primary.
const BEFORE: Duration = Duration::from_secs(1);
const AFTER: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// The primary is killed.
    Killed,
    /// `SENTINEL FAILOVER`.
    ByHand,
    /// The sentinels can't reach the primary. Clients can.
    Isolated,
}

/// What a run has shown.
struct Run {
    /// When a server other than the old primary first took a write.
    raw: Duration,
    /// When most sentinels first named another server.
    named: Duration,
    /// When the new primary first granted a lock.
    granted: Duration,
    /// The locks that were granted, and those of them that the new primary doesn't know.
    grants: usize,
    lost: usize,
    /// The tokens that were not greater than the ones before.
    tokens_back: usize,
    /// Whether the lock that was held during the failover was still held after its lease.
    kept: bool,
}

/// A lock that was granted. It is never released.
struct Grant {
    at: Instant,
    guard: MutexGuard,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let runs = std::env::args().nth(1).map_or(Ok(5), |runs| runs.parse())?;
    println!(
        "| failover | client | raw write | named | first grant | lost grants | tokens back | kept |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for kind in [Kind::Killed, Kind::ByHand, Kind::Isolated] {
        for library in [Library::RedisRs, Library::Fred] {
            let mut all = Vec::new();
            for _ in 0..runs {
                let run = measure(kind, library).await?;
                print(kind, library, &run);
                all.push(run);
            }
            println!(
                "| **{kind:?}** | **{}** | **{}** | **{}** | **{}** | | | |",
                library.name(),
                median(&all, |run| run.raw),
                median(&all, |run| run.named),
                median(&all, |run| run.granted),
            );
        }
    }
    in_clusters(runs).await
}

async fn in_clusters(runs: usize) -> Result<(), Failure> {
    println!("\n| in a cluster | client | raw write | first grant | token grew | kept |");
    println!("|---|---|---|---|---|---|");
    for library in [Library::RedisRs, Library::Fred] {
        let name = library.name();
        let mut all = Vec::new();
        for _ in 0..runs {
            let run = cluster::measure(library).await?;
            let (raw, granted) = (run.raw.as_millis(), run.granted.as_millis());
            let (token_grew, kept) = (yes(run.token_grew), yes(run.kept));
            println!("| Killed | {name} | {raw} | {granted} | {token_grew} | {kept} |");
            all.push(run);
        }
        let (raw, granted) = (median(&all, |run| run.raw), median(&all, |run| run.granted));
        println!("| **Killed** | **{name}** | **{raw}** | **{granted}** | | |");
    }
    Ok(())
}

/// The median of a time, in ms.
fn median<R>(runs: &[R], of: impl Fn(&R) -> Duration) -> u128 {
    let mut times: Vec<u128> = runs.iter().map(|run| of(run).as_millis()).collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

fn print(kind: Kind, library: Library, run: &Run) {
    println!(
        "| {kind:?} | {} | {} | {} | {} | {} of {} | {} | {} |",
        library.name(),
        run.raw.as_millis(),
        run.named.as_millis(),
        run.granted.as_millis(),
        run.lost,
        run.grants,
        run.tokens_back,
        yes(run.kept),
    );
}

async fn connect(library: Library, url: &str) -> Result<LockClient, Failure> {
    Ok(LockClient::new(library.connect(url).await?))
}

async fn measure(kind: Kind, library: Library) -> Result<Run, Failure> {
    let mut servers = SentinelServers::start(DOWN_AFTER);
    let (old, url) = (servers.primary(), servers.url());
    let [holder, waiter, taker] = [(); 3].map(|()| connect(library, &url));
    let (holder, waiter, taker) = (holder.await?, waiter.await?, taker.await?);
    let held = holder.mutex("held")?.lease(LEASE).lock().await?;
    let mutex = waiter.mutex("held")?;
    let waiting = tokio::spawn(async move { mutex.lock().await });
    let grants = Arc::default();
    let mut takers = JoinSet::new();
    for number in 0..4 {
        takers.spawn(take(taker.clone(), number, Arc::clone(&grants)));
    }
    tokio::time::sleep(BEFORE).await;

    let raw = others(&servers, old).map(|url| first_write(url, "raw".into()));
    let old_port = servers.server(old).port();
    let named = [0, 1].map(|number| first_name(servers.sentinel(number).url(), old_port));
    let began = Instant::now();
    match kind {
        Kind::Killed => servers.server_mut(old).kill(),
        Kind::Isolated => servers.isolate(old),
        Kind::ByHand => {}
    }
    let [first, second] = raw.map(tokio::spawn);
    let named = named.map(tokio::spawn);
    let wait = tokio::task::spawn_blocking(move || {
        let new = match kind {
            Kind::ByHand => servers.fail_over(),
            _ => servers.wait_for_another_primary(old),
        };
        (servers, new)
    });
    let raw = tokio::select! { at = first => at?, at = second => at? };
    let [one, two] = named;
    let named = one.await?.max(two.await?);
    tokio::time::sleep(AFTER).await;
    let (servers, _new) = wait.await?;
    takers.shutdown().await;

    let kept = held.is_valid();
    let token = held.fencing_token();
    held.release().await?;
    let next = waiting.await??;
    let mut tokens_back = usize::from(next.fencing_token() <= token);
    let grants = std::mem::take(&mut *grants.lock().expect("no panic"));
    // Over a new connection, so only the new primary is asked.
    let asker = connect(library, &servers.url()).await?;
    let (mut lost, mut known) = (0, Vec::new());
    for Grant { at, guard } in &grants {
        if is_known(&asker, guard).await? {
            known.push(*at);
        } else {
            lost += 1;
            let again = asker.mutex(guard.key().as_str())?.lock().await?;
            tokens_back += usize::from(again.fencing_token() <= guard.fencing_token());
        }
    }
    let granted = known.into_iter().filter(|at| *at > raw).min();
    let granted = granted.ok_or("the new primary granted no lock")?;
    Ok(Run {
        raw: raw - began,
        named: named - began,
        granted: granted - began,
        grants: grants.len(),
        lost,
        tokens_back,
        kept,
    })
}

async fn is_known(asker: &LockClient, guard: &MutexGuard) -> Result<bool, Failure> {
    let seen = asker.inspect(guard.key().as_str()).await?;
    let token = guard.fencing_token();
    Ok(seen.holders().iter().any(|it| it.token == token))
}

/// Takes one lock after the other.
async fn take(client: LockClient, number: usize, grants: Arc<Mutex<Vec<Grant>>>) {
    for turn in 0.. {
        let mutex = client.mutex(format!("{number}-{turn}"));
        let mutex = mutex.expect("a good key");
        let guard = mutex.lease(Duration::from_secs(60)).lock().await;
        let guard = guard.expect("no permanent error");
        let at = Instant::now();
        grants.lock().expect("no panic").push(Grant { at, guard });
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The URLs of the servers that are not the primary.
fn others(servers: &SentinelServers, primary: usize) -> [String; 2] {
    let url = |turn| servers.server((primary + turn) % 3).url();
    [url(1), url(2)]
}

/// Waits until a server takes a write.
async fn first_write(url: String, key: String) -> Instant {
    let client = redis::Client::open(url).expect("a good URL");
    let mut set = redis::cmd("SET");
    set.arg(key).arg(1);
    loop {
        if let Ok(mut connection) = client.get_multiplexed_async_connection().await {
            loop {
                match set.query_async::<()>(&mut connection).await {
                    Ok(()) => return Instant::now(),
                    // A replica refuses.
                    Err(error) if error.code().is_some() => {}
                    Err(_) => break,
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a sentinel names a server with another port.
async fn first_name(url: String, old_port: u16) -> Instant {
    let client = redis::Client::open(url).expect("a good URL");
    let connection = client.get_multiplexed_async_connection().await;
    let mut connection = connection.expect("a sentinel");
    let mut question = redis::cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME");
    question.arg(SentinelServers::SERVICE);
    loop {
        if let Ok((_, port)) = question.query_async::<(String, u16)>(&mut connection).await
            && port != old_port
        {
            return Instant::now();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

//! Graceful failovers of a cluster under load: is there ever more than one holder, is a token ever
//! given twice, and are locks handed over as fast as before?
//!
//! ```sh
//! cargo run -p leasehold-processes --example cluster_failovers -- --clusters 2 --failovers 5 \
//!     --latency-ms 15 --client redis-rs
//! ```
//!
//! Each cluster is new: three primaries with a replica each. Four clients with ten tasks each compete for
//! three locks on one primary, which fails over to its replica (`CLUSTER FAILOVER`) and back. The median
//! hand-over, from the call of a release to the return of the next holder's `lock`, is measured before the
//! first failover, and in the second that begins `--settle-ms` after each.
//!
//! The clients have the default options, except that connecting may take a second: over a line with a
//! round trip of 120 ms, it takes about as long as the default, half a second.
//!
//! The program fails if two guards of one lock were valid at one instant, if two guards had one token, if
//! a call failed for good, or if the median after a failover is more than twice that before the first one,
//! plus 20 ms: a waiter that depends on its polls waits for longer.

#![expect(clippy::disallowed_methods, reason = "it measures for a while")]

mod load;

use std::time::{Duration, Instant};

use clap::Parser;
use leasehold_api::LockClient;
use leasehold_processes::{Failure, Library};
use leasehold_redis_rs::Options;
use leasehold_test_servers::RedisCluster;

use load::{HandOver, Load};

const CLIENTS: usize = 4;
const TASKS: usize = 10;
const KEYS: usize = 3;
/// How long hand-overs are measured before and after a failover.
const WINDOW: Duration = Duration::from_secs(1);
/// What a busy machine may add to a hand-over.
const ALLOWANCE: Duration = Duration::from_millis(20);

/// Fails clusters over under load, and checks what the clients see.
#[derive(Parser)]
struct Arguments {
    /// The number of clusters, one after the other.
    #[arg(long, default_value_t = 1)]
    clusters: usize,
    /// The number of failovers of each cluster.
    #[arg(long, default_value_t = 5)]
    failovers: usize,
    /// What the network adds to each message, in ms. A round trip takes twice that.
    #[arg(long, default_value_t = 0)]
    latency_ms: u64,
    /// The time after a failover until hand-overs must be as fast as before, in ms.
    #[arg(long, default_value_t = 5_000)]
    settle_ms: u64,
    /// The client library.
    #[arg(long)]
    client: Library,
}

/// What one cluster has shown.
#[derive(Default)]
struct Run {
    grants: usize,
    overlaps: usize,
    tokens_twice: usize,
    errors: usize,
    before: Duration,
    after: Vec<After>,
}

/// What followed a failover.
struct After {
    /// How long it took until the last slow hand-over had ended.
    slow_for: Duration,
    /// The median when hand-overs must be fast again. `None` if there was no hand-over.
    median: Option<Duration>,
}

impl Run {
    /// A hand-over that takes longer is slow.
    fn limit(&self) -> Duration {
        self.before * 2 + ALLOWANCE
    }

    fn slow(&self) -> usize {
        let limit = self.limit();
        let is_fast = |after: &&After| after.median.is_some_and(|median| median <= limit);
        self.after.len() - self.after.iter().filter(is_fast).count()
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let mut runs = Vec::new();
    for number in 1..=arguments.clusters {
        let run = measure(&arguments).await?;
        print!(
            "cluster {number}: {} grants, {} overlaps, {} tokens twice, {} errors, hand-over {:.1?}",
            run.grants, run.overlaps, run.tokens_twice, run.errors, run.before,
        );
        for After { slow_for, median } in &run.after {
            let median = median.unwrap_or_default();
            print!(", slow for {slow_for:.1?} then {median:.1?}");
        }
        println!();
        runs.push(run);
    }
    let sum = |of: fn(&Run) -> usize| runs.iter().map(of).sum::<usize>();
    let before = runs.iter().map(|run| run.before).collect();
    let after = || runs.iter().flat_map(|run| &run.after);
    let medians = after().filter_map(|it| it.median).collect();
    let slow_for = after().map(|it| it.slow_for).collect();
    let bad = [
        sum(|run| run.overlaps),
        sum(|run| run.tokens_twice),
        sum(|run| run.errors),
        sum(Run::slow),
    ];
    println!(
        "{}, {} ms: {} clusters, {} failovers, {} grants, {} overlaps, {} tokens twice, {} errors, \
         median hand-over {:.1?} before and {:.1?} after, slow for {:.1?} (median), slow after {} \
         failovers",
        arguments.client.name(),
        arguments.latency_ms,
        runs.len(),
        sum(|run| run.after.len()),
        sum(|run| run.grants),
        bad[0],
        bad[1],
        bad[2],
        median(before).unwrap_or_default(),
        median(medians).unwrap_or_default(),
        median(slow_for).unwrap_or_default(),
        bad[3],
    );
    match bad {
        [0, 0, 0, 0] => Ok(()),
        _ => Err("a check has failed, see above".into()),
    }
}

async fn measure(arguments: &Arguments) -> Result<Run, Failure> {
    let latency = Duration::from_millis(arguments.latency_ms);
    let settle = Duration::from_millis(arguments.settle_ms);
    let cluster = RedisCluster::start_at_a_distance(latency);
    let url = cluster.url();
    let mut clients = Vec::new();
    let options = Options::new().connect_timeout(Duration::from_secs(1));
    for _ in 0..CLIENTS {
        let backend = arguments.client.connect_with(&url, options.clone());
        clients.push(LockClient::new(backend.await?));
    }
    let keys = names_on_one_node(&cluster);
    let load = Load::start(&clients, TASKS, &keys);
    // The first subscriptions are open, and every client has waited.
    tokio::time::sleep(settle).await;
    let mut run = Run {
        before: median_from(&load, Instant::now())
            .await
            .ok_or("no hand-over before the first failover")?,
        ..Run::default()
    };
    for _ in 0..arguments.failovers {
        let primary = cluster.primary_of(&stored(&keys[0]));
        cluster.fail_over_to(cluster.replica_of(primary));
        let failed_over = Instant::now();
        tokio::time::sleep(settle).await;
        let median = median_from(&load, Instant::now()).await;
        let hand_overs = load.seen().hand_overs(failed_over, Instant::now());
        let slow = hand_overs.iter().filter(|it| it.took > run.limit());
        let slow_for = slow.map(|it| it.at - failed_over).max().unwrap_or_default();
        run.after.push(After { slow_for, median });
    }
    let seen = load.seen();
    let (overlaps, tokens_twice) = (seen.overlaps(), seen.tokens_twice());
    for (what, found) in [("overlap", &overlaps), ("token twice", &tokens_twice)] {
        found.iter().for_each(|it| println!("{what}: {it}"));
    }
    seen.errors.iter().for_each(|it| println!("error: {it}"));
    run.grants = seen.grants();
    (run.overlaps, run.tokens_twice) = (overlaps.len(), tokens_twice.len());
    run.errors = seen.errors.len();
    Ok(run)
}

/// The median hand-over in the next second.
async fn median_from(load: &Load, from: Instant) -> Option<Duration> {
    tokio::time::sleep(WINDOW).await;
    let hand_overs = load.seen().hand_overs(from, Instant::now());
    median(hand_overs.iter().map(|it: &HandOver| it.took).collect())
}

fn median(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

/// The Redis key of a lock.
fn stored(name: &str) -> String {
    format!("leasehold:{{{name}}}")
}

fn names_on_one_node(cluster: &RedisCluster) -> Vec<String> {
    let names = (0..).map(|number| format!("lock {number}"));
    let on_the_first = names.filter(|name| cluster.primary_of(&stored(name)) == 0);
    on_the_first.take(KEYS).collect()
}

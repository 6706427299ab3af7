//! Other lock libraries for Rust, used as their documentation recommends.

use std::sync::Arc;
use std::time::Duration;

use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use distributed_lock_redis::{RedisDistributedLock, RedisLockProvider};
use redis_lock::{LockAcrossOptions, lock_across};
use redis_of_redis_lock::aio::MultiplexedConnection;
use rslock::{LockGuard, LockManager};
use tokio::sync::Mutex;

use crate::contend::{Pace, contend};
use crate::figures::hand_over::close;
use crate::figures::measurement::{Fixture, Reading, median};
use crate::floor::Floor;
use crate::library::{Library, mutexes};
use crate::load::{one_by_one, side_by_side};
use crate::lock::{FloorLock, Lock, Pair};
use crate::samples::Samples;
use crate::server_stats::ServerStats;
use crate::{LEASE_MS, PEERS, Result};

const LEASE: Duration = Duration::from_millis(LEASE_MS.unsigned_abs());
const TASKS: [usize; 4] = [1, 16, 64, 256];

/// The clients of the contended lock, and what each does: as in real work, it holds the lock, then
/// works elsewhere.
const CLIENTS: usize = 8;
const PACE: Pace = Pace {
    hold: Duration::from_millis(5),
    pause: Duration::from_millis(20),
};
const WARM_UP: Duration = Duration::from_millis(300);

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// A lock of `rslock`.
#[derive(Clone, Debug)]
struct Rslock {
    manager: LockManager,
    key: String,
}

impl Lock for Rslock {
    type Held = LockGuard;

    async fn acquire(&self) -> Result<LockGuard> {
        Ok(self.manager.acquire(self.key.as_str(), LEASE).await?)
    }

    async fn release(&self, held: LockGuard) -> Result<()> {
        held.release().await;
        Ok(())
    }
}

/// How long a lock by hand waits before it asks again.
const POLL: Duration = Duration::from_millis(100);

/// A lock by hand: `SET NX PX`, repeated until the key is free, and a compare-and-delete script.
#[derive(Clone, Debug)]
struct ByHand {
    floor: Floor,
    owner: String,
}

impl Lock for ByHand {
    type Held = ();

    async fn acquire(&self) -> Result<()> {
        while !self.floor.acquire("by-hand", &self.owner).await? {
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    async fn release(&self, (): ()) -> Result<()> {
        match self.floor.release("by-hand", &self.owner).await? {
            true => Ok(()),
            false => Err("the lock by hand was lost".into()),
        }
    }
}

/// A lock of any of them, or of their floor.
enum Peer {
    Floor(FloorLock),
    Rslock(Rslock),
    /// It needs one connection per task.
    RedisLock([Arc<Mutex<MultiplexedConnection>>; 1], String),
    DistributedLockRedis(RedisDistributedLock),
}

impl Pair for Peer {
    async fn pair(&self) -> Result<()> {
        match self {
            Self::Floor(lock) => lock.pair().await,
            Self::Rslock(lock) => lock.pair().await,
            Self::RedisLock(connections, key) => {
                let options = LockAcrossOptions {
                    ttl: LEASE,
                    ..LockAcrossOptions::default()
                };
                let locked = lock_across(connections, key, async {}, options);
                Ok(locked.await.map_err(|error| error.to_string())?)
            }
            Self::DistributedLockRedis(lock) => Ok(lock.acquire(None).await?.release().await?),
        }
    }
}

/// The locks of one library, and its name in the figures.
type Named<L> = (&'static str, Arc<Vec<L>>);

/// Creates `count` locks of the floor on the `redis` crate, and then of each other library. They use as
/// few connections as each library allows.
pub async fn locks(url: &str, count: usize) -> Result<[Named<impl Pair + use<>>; 1 + PEERS.len()]> {
    let keys = |peer| (0..count).map(move |number| format!("{peer}-{number}"));
    let floor = Floor::connect(Library::RedisRs, url).await?;
    let floors = keys("floor").map(|key| Peer::Floor(FloorLock::new(&floor, key)));
    let manager = LockManager::new(vec![url]);
    let rslock = keys("rslock").map(|key| {
        let manager = manager.clone();
        Peer::Rslock(Rslock { manager, key })
    });
    let client = redis_of_redis_lock::Client::open(url)?;
    let mut redis_lock = Vec::new();
    for key in keys("redis-lock") {
        let connection = client.get_multiplexed_async_connection().await?;
        redis_lock.push(Peer::RedisLock([Arc::new(Mutex::new(connection))], key));
    }
    let provider = RedisLockProvider::new(url).await?;
    let distributed = keys("distributed-lock-redis")
        .map(|key| Peer::DistributedLockRedis(provider.create_lock(&key)));
    let named = |name, locks: Vec<Peer>| (name, Arc::new(locks));
    Ok([
        named("floor", floors.collect()),
        named("rslock", rslock.collect()),
        named("redis-lock", redis_lock),
        named("distributed-lock-redis", distributed.collect()),
    ])
}

/// Measures sequential and concurrent pairs, next to the floor on the `redis` crate, and a contended
/// lock.
pub(crate) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    let mut readings = sequential(fixture).await?;
    for tasks in TASKS {
        readings.extend(distinct_keys(fixture, tasks).await?);
    }
    readings.extend(contended(fixture).await?);
    Ok(readings)
}

/// Clients contend for one lock. Each has its own connections.
async fn contended(fixture: &Fixture) -> Result<Vec<Reading>> {
    let url = fixture.url();
    let (clients, own) = mutexes(Library::RedisRs, &url, "leasehold", CLIENTS).await?;
    let mut readings = contend_for("leasehold", fixture, own).await?;
    close(clients).await?;
    let mut rslock = Vec::new();
    let mut by_hand = Vec::new();
    for owner in 0..CLIENTS {
        rslock.push(Rslock {
            manager: LockManager::new(vec![url.as_str()]),
            key: "rslock".into(),
        });
        by_hand.push(ByHand {
            floor: Floor::connect(Library::RedisRs, &url).await?,
            owner: owner.to_string(),
        });
    }
    readings.extend(contend_for("rslock", fixture, rslock).await?);
    readings.extend(contend_for("by-hand", fixture, by_hand).await?);
    Ok(readings)
}

async fn contend_for<L: Lock + Clone>(
    name: &str,
    fixture: &Fixture,
    locks: Vec<L>,
) -> Result<Vec<Reading>> {
    let mut server = ServerStats::connect(&fixture.url()).await?;
    contend(locks.clone(), PACE, WARM_UP).await?;
    let before = server.commands().await?;
    let time = Duration::from_millis(fixture.effort.of(200, 4_000));
    let seen = contend(locks, PACE, time).await?;
    let used = server.commands().await?.since(&before);
    // leasehold's scripts call SET themselves; the others send it.
    let sent = match name {
        "leasehold" => 0,
        _ => used.of("set"),
    };
    let commands = (used.scripts() + sent) as f64 / seen.all as f64;
    let figures = [
        ("rate", seen.per_second(), "acquisitions/s"),
        ("wait_p50", millis(seen.wait.percentile(50)), "ms"),
        ("wait_p99", millis(seen.wait.percentile(99)), "ms"),
        ("hand_over_p50", millis(seen.hand_over.percentile(50)), "ms"),
        ("commands", commands, "calls per acquisition"),
    ];
    let reading =
        |(figure, value, unit)| Reading::new(format!("peer.{name}.steady.{figure}"), value, unit);
    Ok(figures.map(reading).into())
}

async fn sequential(fixture: &Fixture) -> Result<Vec<Reading>> {
    let locks = locks(&fixture.url(), 1).await?;
    let block = fixture.effort.of(10, 250);
    let mut seen = locks.map(|(name, locks)| (name, locks, Samples::default()));
    for _ in 0..fixture.effort.of(1, 8) {
        for (_, locks, samples) in &mut seen {
            samples.merge(one_by_one(&locks[0], block).await?);
        }
    }
    let [(_, _, floor), own @ ..] = &seen;
    let readings = own.iter().map(|(name, _, samples)| {
        Reading::percentile(&format!("peer.{name}.sequential"), 50, samples, floor)
    });
    Ok(readings.collect())
}

async fn distinct_keys(fixture: &Fixture, tasks: usize) -> Result<Vec<Reading>> {
    let locks = locks(&fixture.url(), tasks).await?;
    let time = Duration::from_millis(fixture.effort.of(20, 200));
    let mut seen = locks.map(|(name, locks)| (name, locks, Vec::new()));
    for _ in 0..fixture.effort.of(1, 3) {
        for (_, locks, rates) in &mut seen {
            rates.push(side_by_side(locks, time).await?);
        }
    }
    let [(_, floor), own @ ..] = seen.map(|(name, _, rates)| (name, median(rates)));
    let reading = |(name, rate)| {
        let id = format!("peer.{name}.distinct_keys.{tasks}");
        Reading::new(id, rate, "pairs/s").over(floor)
    };
    Ok(own.map(reading).into())
}

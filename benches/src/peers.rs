//! Other lock libraries for Rust, used as their documentation recommends.

use std::sync::Arc;
use std::time::Duration;

use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use distributed_lock_redis::{RedisDistributedLock, RedisLockProvider};
use redis_lock::{LockAcrossOptions, lock_across};
use redis_of_redis_lock::aio::MultiplexedConnection;
use rslock::{LockGuard, LockManager};
use tokio::sync::Mutex;

use crate::contend::contend;
use crate::figures::hand_over::close;
use crate::figures::measurement::{Fixture, Reading, median};
use crate::figures::steady;
use crate::floor::Floor;
use crate::library::{Library, mutexes};
use crate::load::{one_by_one, side_by_side};
use crate::lock::{FloorLock, Lock, Pair};
use crate::samples::Samples;
use crate::server_stats::ServerStats;
use crate::{LEASE_MS, Result};

const LEASE: Duration = Duration::from_millis(LEASE_MS.unsigned_abs());
const TASKS: [usize; 4] = [1, 16, 64, 256];

/// A lock of `rslock`.
#[derive(Clone, Debug)]
pub struct Rslock {
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

/// A lock of `redis-lock`, which needs one connection per task.
#[derive(Debug)]
pub struct RedisLock {
    connections: [Arc<Mutex<MultiplexedConnection>>; 1],
    key: String,
}

impl Pair for RedisLock {
    async fn pair(&self) -> Result<()> {
        let options = LockAcrossOptions {
            ttl: LEASE,
            ..LockAcrossOptions::default()
        };
        let locked = lock_across(&self.connections, &self.key, async {}, options);
        locked.await.map_err(|error| error.to_string())?;
        Ok(())
    }
}

/// A lock of `distributed-lock-redis`.
pub struct DistributedLockRedis(RedisDistributedLock);

impl Pair for DistributedLockRedis {
    async fn pair(&self) -> Result<()> {
        let handle = self.0.acquire(None).await?;
        Ok(handle.release().await?)
    }
}

/// How long a lock by hand waits before it asks again.
const POLL: Duration = Duration::from_millis(100);

/// A lock by hand: `SET NX PX`, repeated until the key is free, and a compare-and-delete script.
#[derive(Clone, Debug)]
struct ByHand {
    floor: Floor,
    owner: u64,
}

impl Lock for ByHand {
    type Held = ();

    async fn acquire(&self) -> Result<()> {
        while !self.floor.acquire("by-hand", self.owner).await? {
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    async fn release(&self, (): ()) -> Result<()> {
        match self.floor.release("by-hand", self.owner).await? {
            true => Ok(()),
            false => Err("the lock by hand was lost".into()),
        }
    }
}

/// Locks of all peers, over as few connections as each library allows.
pub struct Peers {
    /// Locks of `rslock`.
    pub rslock: Arc<Vec<Rslock>>,
    /// Locks of `redis-lock`.
    pub redis_lock: Arc<Vec<RedisLock>>,
    /// Locks of `distributed-lock-redis`.
    pub distributed_lock_redis: Arc<Vec<DistributedLockRedis>>,
}

impl Peers {
    /// Connects and creates `count` locks of each library.
    ///
    /// # Errors
    /// Those of the libraries.
    pub async fn connect(url: &str, count: usize) -> Result<Self> {
        let keys = |peer| (0..count).map(move |number| format!("{peer}-{number}"));
        let manager = LockManager::new(vec![url]);
        let rslock = |key| Rslock {
            manager: manager.clone(),
            key,
        };
        let client = redis_of_redis_lock::Client::open(url)?;
        let mut redis_lock = Vec::new();
        for key in keys("redis-lock") {
            let connection = client.get_multiplexed_async_connection().await?;
            let connections = [Arc::new(Mutex::new(connection))];
            redis_lock.push(RedisLock { connections, key });
        }
        let provider = RedisLockProvider::new(url).await?;
        let distributed = |key: String| DistributedLockRedis(provider.create_lock(&key));
        Ok(Self {
            rslock: Arc::new(keys("rslock").map(rslock).collect()),
            redis_lock: Arc::new(redis_lock),
            distributed_lock_redis: Arc::new(
                keys("distributed-lock-redis").map(distributed).collect(),
            ),
        })
    }
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

/// Contends for one lock as `steady` does. Each client has its own connections.
async fn contended(fixture: &Fixture) -> Result<Vec<Reading>> {
    let url = fixture.url();
    let (clients, own) = mutexes(Library::RedisRs, &url, "leasehold", steady::CLIENTS).await?;
    let mut readings = contend_for("leasehold", fixture, own).await?;
    close(clients).await?;
    let mut rslock = Vec::new();
    let mut by_hand = Vec::new();
    for owner in 0..steady::CLIENTS {
        rslock.push(Rslock {
            manager: LockManager::new(vec![url.as_str()]),
            key: "rslock".into(),
        });
        by_hand.push(ByHand {
            floor: Library::RedisRs.floor(&url).await?,
            owner: owner as u64,
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
    contend(locks.clone(), steady::PACE, steady::WARM_UP).await?;
    let before = server.commands().await?;
    let time = Duration::from_millis(fixture.effort.of(200, 4_000));
    let seen = contend(locks, steady::PACE, time).await?;
    let used = server.commands().await?.since(&before);
    // leasehold's scripts call SET themselves; the others send it.
    let sent = if name == "leasehold" {
        0
    } else {
        used.of("set").calls
    };
    let commands = (used.scripts().calls + sent) as f64 / seen.all as f64;
    let milliseconds = |samples: &Samples, percent| samples.percentile(percent).as_secs_f64() * 1e3;
    let figures = [
        ("rate", seen.per_second(), "acquisitions/s"),
        ("wait_p99", milliseconds(&seen.wait, 99), "ms"),
        ("hand_over_p50", milliseconds(&seen.hand_over, 50), "ms"),
        ("commands", commands, "calls per acquisition"),
    ];
    let reading =
        |(figure, value, unit)| Reading::new(format!("peer.{name}.steady.{figure}"), value, unit);
    Ok(figures.map(reading).into())
}

async fn sequential(fixture: &Fixture) -> Result<Vec<Reading>> {
    let peers = Peers::connect(&fixture.url(), 1).await?;
    let floor = FloorLock::new(&Library::RedisRs.floor(&fixture.url()).await?, "floor");
    let block = fixture.effort.of(10, 250);
    let mut seen: [Samples; 4] = Default::default();
    for _ in 0..fixture.effort.of(1, 8) {
        seen[0].merge(one_by_one(&floor, block).await?);
        seen[1].merge(one_by_one(&peers.rslock[0], block).await?);
        seen[2].merge(one_by_one(&peers.redis_lock[0], block).await?);
        seen[3].merge(one_by_one(&peers.distributed_lock_redis[0], block).await?);
    }
    let p50 = |samples: &Samples| samples.percentile(50).as_secs_f64() * 1e6;
    let names = ["rslock", "redis-lock", "distributed-lock-redis"];
    let reading = |(name, samples): (&str, &Samples)| {
        Reading::new(format!("peer.{name}.sequential.p50"), p50(samples), "µs").over(p50(&seen[0]))
    };
    Ok(names.into_iter().zip(&seen[1..]).map(reading).collect())
}

async fn distinct_keys(fixture: &Fixture, tasks: usize) -> Result<Vec<Reading>> {
    let peers = Peers::connect(&fixture.url(), tasks).await?;
    let floor = Library::RedisRs.floor(&fixture.url()).await?;
    let floors = (0..tasks).map(|number| FloorLock::new(&floor, format!("floor-{number}")));
    let floors = Arc::new(floors.collect::<Vec<_>>());
    let time = Duration::from_millis(fixture.effort.of(20, 200));
    let mut rates: [Vec<f64>; 4] = Default::default();
    for _ in 0..fixture.effort.of(1, 3) {
        rates[0].push(side_by_side(&floors, time).await?.per_second());
        rates[1].push(side_by_side(&peers.rslock, time).await?.per_second());
        rates[2].push(side_by_side(&peers.redis_lock, time).await?.per_second());
        rates[3].push(
            side_by_side(&peers.distributed_lock_redis, time)
                .await?
                .per_second(),
        );
    }
    let [floor, own @ ..] = rates.map(median);
    let names = ["rslock", "redis-lock", "distributed-lock-redis"];
    let reading = |(name, rate): (&str, f64)| {
        let id = format!("peer.{name}.distinct_keys.{tasks}");
        Reading::new(id, rate, "pairs/s").over(floor)
    };
    Ok(names.into_iter().zip(own).map(reading).collect())
}

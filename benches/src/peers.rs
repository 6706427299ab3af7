//! Other lock libraries for Rust, used as their documentation recommends.

use std::sync::Arc;
use std::time::Duration;

use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use distributed_lock_redis::{RedisDistributedLock, RedisLockProvider};
use redis_lock::{LockAcrossOptions, lock_across};
use redis_of_redis_lock::aio::MultiplexedConnection;
use rslock::LockManager;
use tokio::sync::Mutex;

use crate::figures::{Fixture, Reading, median};
use crate::library::Library;
use crate::load::{one_by_one, side_by_side};
use crate::lock::{FloorLock, Pair};
use crate::samples::Samples;
use crate::{LEASE_MS, Result};

const LEASE: Duration = Duration::from_millis(LEASE_MS.unsigned_abs());
const TASKS: [usize; 4] = [1, 16, 64, 256];

/// A lock of `rslock`.
#[derive(Debug)]
pub struct Rslock {
    manager: LockManager,
    key: String,
}

impl Pair for Rslock {
    async fn pair(&self) -> Result<()> {
        let guard = self.manager.acquire(self.key.as_str(), LEASE).await?;
        guard.release().await;
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

/// Measures sequential and concurrent pairs, next to the floor on the `redis` crate.
pub(crate) async fn measure(fixture: &Fixture) -> Result<Vec<Reading>> {
    let mut readings = sequential(fixture).await?;
    for tasks in TASKS {
        readings.extend(distinct_keys(fixture, tasks).await?);
    }
    Ok(readings)
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

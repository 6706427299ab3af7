//! The adapters of other lock libraries for Rust. Each is used as its documentation shows.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use distkit::lock::{LockGuardState, LockOptions, Mutex, MutexGuard};
use distkit::{DistkitError, DistkitRedisKey};
use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use distributed_lock_redis::{RedisLockHandle, RedisLockProvider};
use redis::aio::ConnectionManager;
use redlock::RedLock;
use rslock::{LockError, LockManager};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgAdvisoryLock, PgAdvisoryLockGuard, PgPool};
use sqlx::{Connection, Either, Postgres};

use super::{Adapter, serve};
use crate::Failure;
use crate::protocol::Acquire;

/// How long a caller pauses between two attempts, where that is up to the caller.
const RETRY: Duration = Duration::from_millis(100);

pub(crate) async fn run(peer: &str, lease: Duration, urls: Vec<String>) -> Result<(), Failure> {
    match peer {
        "rslock" => serve(Rslock(LockManager::new(urls))).await,
        "redlock-rs" => serve(Redlock(Box::leak(Box::new(RedLock::new(urls))))).await,
        "distributed-lock-redis" => {
            // The same parts of the expiry as the defaults are.
            let provider = RedisLockProvider::builder()
                .urls(&urls)
                .expiry(lease)
                .min_validity(lease * 9 / 10)
                .extension_cadence(lease / 3)
                .build()
                .await?;
            serve(DistributedLockRedis(provider)).await
        }
        "distkit" => {
            let client = redis::Client::open(urls[0].as_str())?;
            serve(Distkit(client.get_connection_manager().await?)).await
        }
        "sqlx" => serve(Sqlx(PgPool::connect_lazy(&urls[0])?)).await,
        _ => Err(format!("no adapter for {peer}").into()),
    }
}

fn attempts(wait: Duration) -> u32 {
    let retries = wait.as_millis() / RETRY.as_millis();
    1 + u32::try_from(retries).expect("a short wait")
}

struct Rslock(LockManager);

impl Adapter for Rslock {
    type Held = (rslock::Lock, Instant);

    async fn acquire(&self, ask: &Acquire) -> Result<Option<Self::Held>, Failure> {
        // Retries are delayed by half of this time on average.
        let mut manager = self.0.clone();
        manager.set_retry(attempts(ask.wait()), 2 * RETRY);
        match manager.lock(ask.key.as_str(), ask.lease()).await {
            Ok(lock) => {
                let until = Instant::now() + Duration::from_millis(lock.validity_time as u64);
                Ok(Some((lock, until)))
            }
            Err(LockError::Unavailable) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn check(&self, (_, until): &Self::Held) -> Result<bool, Failure> {
        Ok(Instant::now() < *until)
    }

    async fn release(&self, (lock, until): Self::Held) -> Result<bool, Failure> {
        lock.release().await;
        Ok(Instant::now() < until)
    }
}

/// For as long as the process runs, because its locks borrow it.
struct Redlock(&'static RedLock);

impl Adapter for Redlock {
    type Held = (redlock::Lock<'static>, Instant);

    async fn acquire(&self, ask: &Acquire) -> Result<Option<Self::Held>, Failure> {
        let began = Instant::now();
        loop {
            // It tries three times.
            let lock = self
                .0
                .lock(ask.key.as_bytes(), usize::try_from(ask.lease_ms)?)?;
            if let Some(lock) = lock {
                let until = Instant::now() + Duration::from_millis(lock.validity_time as u64);
                return Ok(Some((lock, until)));
            }
            if began.elapsed() >= ask.wait() {
                return Ok(None);
            }
        }
    }

    async fn check(&self, (_, until): &Self::Held) -> Result<bool, Failure> {
        Ok(Instant::now() < *until)
    }

    async fn release(&self, (lock, until): Self::Held) -> Result<bool, Failure> {
        self.0.unlock(&lock);
        Ok(Instant::now() < until)
    }
}

struct DistributedLockRedis(RedisLockProvider);

impl Adapter for DistributedLockRedis {
    type Held = RedisLockHandle;

    async fn acquire(&self, ask: &Acquire) -> Result<Option<RedisLockHandle>, Failure> {
        let lock = self.0.create_lock(&ask.key);
        if ask.wait().is_zero() {
            return Ok(lock.try_acquire().await?);
        }
        match lock.acquire(Some(ask.wait())).await {
            Ok(handle) => Ok(Some(handle)),
            Err(distributed_lock_core::error::LockError::Timeout(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn check(&self, handle: &RedisLockHandle) -> Result<bool, Failure> {
        Ok(!*handle.lost_token().borrow())
    }

    async fn release(&self, handle: RedisLockHandle) -> Result<bool, Failure> {
        let held = !*handle.lost_token().borrow();
        handle.release().await?;
        Ok(held)
    }
}

struct Distkit(ConnectionManager);

impl Adapter for Distkit {
    type Held = MutexGuard;

    async fn acquire(&self, ask: &Acquire) -> Result<Option<MutexGuard>, Failure> {
        let key = DistkitRedisKey::try_from(ask.key.clone())?;
        let options = LockOptions::builder(key, self.0.clone())
            .ttl(ask.lease())
            .build();
        let mutex = Mutex::new(options);
        let locked = match ask.wait() {
            Duration::ZERO => mutex.try_lock().await,
            wait => mutex.try_lock_with_timeout(wait).await,
        };
        match locked {
            Ok(guard) => Ok(Some(guard)),
            Err(DistkitError::LockError(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn check(&self, guard: &MutexGuard) -> Result<bool, Failure> {
        Ok(guard.get_state() == LockGuardState::Acquired)
    }

    async fn release(&self, guard: MutexGuard) -> Result<bool, Failure> {
        Ok(guard.release().await? == LockGuardState::Released)
    }
}

struct Sqlx(PgPool);

impl Adapter for Sqlx {
    /// The check needs the connection for itself.
    type Held = RefCell<Option<PgAdvisoryLockGuard<'static, PoolConnection<Postgres>>>>;

    async fn acquire(&self, ask: &Acquire) -> Result<Option<Self::Held>, Failure> {
        // The guard borrows it, and lives as long as this process.
        let lock = Box::leak(Box::new(PgAdvisoryLock::new(&ask.key)));
        let connection = self.0.acquire().await?;
        if ask.wait().is_zero() {
            return Ok(match lock.try_acquire(connection).await? {
                Either::Left(guard) => Some(RefCell::new(Some(guard))),
                Either::Right(_) => None,
            });
        }
        // It is cancel safe, and has no limit of its own.
        match tokio::time::timeout(ask.wait(), lock.acquire(connection)).await {
            Ok(guard) => Ok(Some(RefCell::new(Some(guard?)))),
            Err(_) => Ok(None),
        }
    }

    async fn check(&self, held: &Self::Held) -> Result<bool, Failure> {
        let Some(mut guard) = held.take() else {
            return Ok(false);
        };
        let lives = guard.ping().await.is_ok();
        held.replace(Some(guard));
        Ok(lives)
    }

    async fn release(&self, held: Self::Held) -> Result<bool, Failure> {
        match held.into_inner() {
            Some(guard) => Ok(guard.release_now().await.is_ok()),
            None => Ok(false),
        }
    }
}

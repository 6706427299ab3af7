//! Reader/writer locks.

use std::time::Duration;

use async_trait::async_trait;
use redis::{RedisError, cmd};

use crate::lock::{Attempt, Freed, HandWritten};
use crate::store::Seen;

/// The time after which a reader counts as crashed. One value for all readers.
const LONGEST_READ_MS: u64 = 30_000;

/// The lease of the lock that guards the others, and the pause between two tries to get it.
const META_LEASE_MS: u64 = 200;
const META_PAUSE: Duration = Duration::from_millis(5);
const META_TRIES: u32 = 100;

/// Readers in a sorted set, scored by their own clocks; a writer's key; a lock around both.
#[derive(Debug)]
pub(crate) struct SortedSet;

impl SortedSet {
    async fn lock_meta(attempt: &Attempt) -> Result<bool, RedisError> {
        let mut set = cmd("SET");
        set.arg(attempt.key_of("meta")).arg(&attempt.id);
        set.arg("NX").arg("PX").arg(META_LEASE_MS);
        for _ in 0..META_TRIES {
            if attempt.store.ask::<Option<String>>(&set).await?.is_some() {
                return Ok(true);
            }
            tokio::time::sleep(META_PAUSE).await;
        }
        Ok(false)
    }

    async fn read(attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let seen: Seen<u32> = attempt.see(cmd("EXISTS").arg(&attempt.key)).await?;
        if seen.value == 1 {
            return Ok(seen.map(|_| None));
        }
        let mut add = cmd("ZADD");
        add.arg(attempt.key_of("readers"));
        add.arg(attempt.store.own_clock_ms()).arg(&attempt.id);
        Ok(attempt.see::<u32>(&add).await?.map(|_| Some(1)))
    }

    async fn write(attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let readers = attempt.key_of("readers");
        let crashed = attempt.store.own_clock_ms().saturating_sub(LONGEST_READ_MS);
        let mut remove = cmd("ZREMRANGEBYSCORE");
        remove.arg(&readers).arg("-inf").arg(crashed);
        let () = attempt.store.ask(&remove).await?;
        let seen: Seen<u32> = attempt.see(cmd("ZCARD").arg(&readers)).await?;
        if seen.value > 0 {
            return Ok(seen.map(|_| None));
        }
        attempt.set_nx_px().await
    }
}

#[async_trait]
impl HandWritten for SortedSet {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        if !Self::lock_meta(attempt).await? {
            let seen: Seen<()> = attempt.see(cmd("ECHO").arg("")).await?;
            return Ok(seen.map(|()| None));
        }
        let seen = match attempt.reads {
            true => Self::read(attempt).await?,
            false => Self::write(attempt).await?,
        };
        let Attempt { store, id, .. } = attempt;
        store
            .compare_and_delete(&attempt.key_of("meta"), id)
            .await?;
        Ok(seen)
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        let Attempt { store, key, id, .. } = attempt;
        let mut remove = cmd("ZREM");
        remove.arg(attempt.key_of("readers")).arg(id);
        let was_reader = store.ask::<u32>(&remove).await? == 1;
        let was_writer = store.compare_and_delete(key, id).await?;
        Ok(Freed::if_true(was_reader || was_writer))
    }
}

const READ: &str = "
    if redis.call('GET', KEYS[1]) then
        return 0
    end
    redis.call('HSET', KEYS[2], ARGV[1], 1)
    return 1";

const WRITE_IF_HLEN: &str = "
    if redis.call('GET', KEYS[1]) then
        return 0
    end
    if redis.call('HLEN', KEYS[2]) then
        return 0
    end
    redis.call('SET', KEYS[1], ARGV[1])
    return 1";

const WRITE_IF_HLEN_IS_NOT_0: &str = "
    if redis.call('GET', KEYS[1]) then
        return 0
    end
    if redis.call('HLEN', KEYS[2]) > 0 then
        return 0
    end
    redis.call('SET', KEYS[1], ARGV[1])
    return 1";

const UNLOCK: &str = "
    if redis.call('HDEL', KEYS[2], ARGV[1]) == 1 then
        return 1
    end
    if redis.call('GET', KEYS[1]) == ARGV[1] then
        return redis.call('DEL', KEYS[1])
    end
    return 0";

/// A writer's flag and a hash of readers, in scripts.
#[derive(Debug)]
pub(crate) struct ReadersInHash {
    write: &'static str,
}

impl ReadersInHash {
    /// As in the tutorial: `if redis.call('HLEN', …) then`.
    pub(crate) const AS_PUBLISHED: Self = Self {
        write: WRITE_IF_HLEN,
    };

    /// With `HLEN` compared to 0.
    pub(crate) const WITH_COMPARISON: Self = Self {
        write: WRITE_IF_HLEN_IS_NOT_0,
    };
}

/// Runs a script. Returns whether it answers 1.
async fn run(script: &str, attempt: &Attempt) -> Result<Seen<bool>, RedisError> {
    let mut eval = cmd("EVAL");
    eval.arg(script).arg(2);
    eval.arg(&attempt.key).arg(attempt.key_of("readers"));
    eval.arg(&attempt.id);
    let seen: Seen<u32> = attempt.see(&eval).await?;
    Ok(seen.map(|it| it == 1))
}

#[async_trait]
impl HandWritten for ReadersInHash {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let script = if attempt.reads { READ } else { self.write };
        let seen = run(script, attempt).await?;
        Ok(seen.map(|granted| granted.then_some(1)))
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        Ok(Freed::if_true(run(UNLOCK, attempt).await?.value))
    }
}

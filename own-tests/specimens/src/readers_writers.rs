//! Reader/writer locks.

use std::time::Duration;

use async_trait::async_trait;
use redis::{RedisError, cmd};

use crate::lock::{Attempt, Freed, HandWritten};
use crate::store::{Seen, Store};

/// The time after which a reader counts as crashed. One value for all readers.
const LONGEST_READ_MS: u64 = 30_000;

/// The lease of the lock that guards the others, and the pause between two tries to get it.
const META_LEASE_MS: u64 = 200;
const META_PAUSE: Duration = Duration::from_millis(5);
const META_TRIES: u32 = 100;

/// Readers in a sorted set, scored by their own clocks; a writer's key; a lock around both.
#[derive(Debug)]
pub(crate) struct SortedSet(pub(crate) Store);

impl SortedSet {
    async fn lock_meta(&self, attempt: &Attempt) -> Result<bool, RedisError> {
        let mut set = cmd("SET");
        set.arg(attempt.key_of("meta")).arg(&attempt.id);
        set.arg("NX").arg("PX").arg(META_LEASE_MS);
        for _ in 0..META_TRIES {
            if self.0.ask::<Option<String>>(&set).await?.is_some() {
                return Ok(true);
            }
            tokio::time::sleep(META_PAUSE).await;
        }
        Ok(false)
    }

    async fn read(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let seen: Seen<u32> = self
            .0
            .see(&attempt.key, cmd("EXISTS").arg(&attempt.key))
            .await?;
        if seen.value == 1 {
            return Ok(seen.map(|_| None));
        }
        let mut add = cmd("ZADD");
        add.arg(attempt.key_of("readers"));
        add.arg(self.0.own_clock_ms()).arg(&attempt.id);
        Ok(self
            .0
            .see::<u32>(&attempt.key, &add)
            .await?
            .map(|_| Some(1)))
    }

    async fn write(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let readers = attempt.key_of("readers");
        let crashed = self.0.own_clock_ms().saturating_sub(LONGEST_READ_MS);
        let mut remove = cmd("ZREMRANGEBYSCORE");
        let () = self
            .0
            .ask(remove.arg(&readers).arg("-inf").arg(crashed))
            .await?;
        let seen: Seen<u32> = self.0.see(&attempt.key, cmd("ZCARD").arg(&readers)).await?;
        if seen.value > 0 {
            return Ok(seen.map(|_| None));
        }
        let mut set = cmd("SET");
        set.arg(&attempt.key).arg(&attempt.id);
        set.arg("NX").arg("PX").arg(attempt.lease_ms());
        let seen: Seen<Option<String>> = self.0.see(&attempt.key, &set).await?;
        Ok(seen.map(|ok| ok.map(|_| 1)))
    }
}

#[async_trait]
impl HandWritten for SortedSet {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        if !self.lock_meta(attempt).await? {
            let seen: Seen<()> = self.0.see(&attempt.key, cmd("ECHO").arg("")).await?;
            return Ok(seen.map(|()| None));
        }
        let seen = if attempt.reads {
            self.read(attempt).await?
        } else {
            self.write(attempt).await?
        };
        let meta = attempt.key_of("meta");
        self.0.compare_and_delete(&meta, &attempt.id).await?;
        Ok(seen)
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        let mut remove = cmd("ZREM");
        remove.arg(attempt.key_of("readers")).arg(&attempt.id);
        let was_reader = self.0.ask::<u32>(&remove).await? == 1;
        let was_writer = self.0.compare_and_delete(&attempt.key, &attempt.id).await?;
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
    store: Store,
    write: &'static str,
}

impl ReadersInHash {
    /// As in the tutorial: `if redis.call('HLEN', …) then`.
    pub(crate) const fn as_published(store: Store) -> Self {
        let write = WRITE_IF_HLEN;
        Self { store, write }
    }

    /// With `HLEN` compared to 0.
    pub(crate) const fn with_comparison(store: Store) -> Self {
        let write = WRITE_IF_HLEN_IS_NOT_0;
        Self { store, write }
    }

    async fn run(&self, script: &str, attempt: &Attempt) -> Result<Seen<u32>, RedisError> {
        let mut eval = cmd("EVAL");
        eval.arg(script).arg(2);
        eval.arg(&attempt.key).arg(attempt.key_of("readers"));
        eval.arg(&attempt.id);
        self.store.see(&attempt.key, &eval).await
    }
}

#[async_trait]
impl HandWritten for ReadersInHash {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let script = if attempt.reads { READ } else { self.write };
        let seen = self.run(script, attempt).await?;
        Ok(seen.map(|it| (it == 1).then_some(1)))
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        Ok(Freed::if_true(self.run(UNLOCK, attempt).await?.value == 1))
    }
}

//! Locks that count the holds of a reentrant owner.

use async_trait::async_trait;
use redis::{RedisError, cmd};

use crate::lock::{Attempt, Freed, HandWritten};
use crate::store::{COMPARE_AND_EXTEND, Seen};

/// `INCR key:count`, then `SETNX key id`. Each call has a new identifier.
#[derive(Debug)]
pub(crate) struct CounterKey;

#[async_trait]
impl HandWritten for CounterKey {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let count = attempt.key_of("count");
        let holds: u32 = attempt.store.ask(cmd("INCR").arg(count)).await?;
        let mut setnx = cmd("SETNX");
        setnx.arg(&attempt.key).arg(&attempt.id);
        let seen: Seen<u32> = attempt.see(&setnx).await?;
        Ok(seen.map(|set| (set == 1).then_some(holds)))
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        let Attempt { store, key, id, .. } = attempt;
        let found: Option<String> = store.ask(cmd("GET").arg(key)).await?;
        if found.as_ref() != Some(id) {
            return Ok(Freed::NotMine);
        }
        let count = attempt.key_of("count");
        let left: i64 = store.ask(cmd("DECR").arg(&count)).await?;
        if let Ok(left @ 1..) = u32::try_from(left) {
            return Ok(Freed::StillHeld(left));
        }
        let () = store.ask(cmd("DEL").arg(key).arg(&count)).await?;
        Ok(Freed::Yes)
    }
}

/// `SETNX key owner`, then `HSET key counter 1` on the same key.
#[derive(Debug)]
pub(crate) struct HashUnderTheString;

#[async_trait]
impl HandWritten for HashUnderTheString {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let Attempt {
            store, key, owner, ..
        } = attempt;
        let seen: Seen<u32> = attempt.see(cmd("SETNX").arg(key).arg(owner)).await?;
        if seen.value == 1 {
            let mut hset = cmd("HSET");
            let () = store.ask(hset.arg(key).arg("counter").arg(1)).await?;
            return Ok(seen.map(Some));
        }
        let found: Option<String> = store.ask(cmd("GET").arg(key)).await?;
        if found.as_ref() != Some(owner) {
            return Ok(seen.map(|_| None));
        }
        let mut count = cmd("HINCRBY");
        count.arg(key).arg("counter").arg(1);
        Ok(attempt.see::<u32>(&count).await?.map(Some))
    }

    async fn release(&self, Attempt { store, key, .. }: &Attempt) -> Result<Freed, RedisError> {
        let mut count = cmd("HINCRBY");
        let left: i64 = store.ask(count.arg(key).arg("counter").arg(-1)).await?;
        if let Ok(left @ 1..) = u32::try_from(left) {
            return Ok(Freed::StillHeld(left));
        }
        let () = store.ask(cmd("DEL").arg(key)).await?;
        Ok(Freed::Yes)
    }
}

const COUNT_AND_SET_NX: &str = "
    local owner = redis.call('GET', KEYS[1])
    if owner and owner ~= ARGV[1] then
        return 0
    end
    local holds = redis.call('INCRBY', KEYS[2], 1)
    redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
    return holds";

/// The same, but the counter and the lease are those of the holder.
const COUNT_AND_EXTEND: &str = "
    local owner = redis.call('GET', KEYS[1])
    if owner and owner ~= ARGV[1] then
        return 0
    end
    if not owner then
        redis.call('DEL', KEYS[2])
        redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    end
    local holds = redis.call('INCRBY', KEYS[2], 1)
    if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
        redis.call('PEXPIRE', KEYS[1], ARGV[2])
    end
    redis.call('PEXPIRE', KEYS[2], redis.call('PTTL', KEYS[1]))
    return holds";

const COUNT_DOWN: &str = "
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then
        return -1
    end
    if redis.call('DECRBY', KEYS[2], 1) > 0 then
        return 0
    end
    redis.call('DEL', KEYS[1], KEYS[2])
    return 1";

/// `GET`, a comparison and `INCRBY` in a script.
#[derive(Debug)]
pub(crate) struct CountInLua {
    acquire: &'static str,
    /// Whether the caller sees only whether the release answered 1.
    release_as_bool: bool,
}

impl CountInLua {
    /// The lease is set by `SET NX`.
    pub(crate) const SET_NX: Self = Self {
        acquire: COUNT_AND_SET_NX,
        release_as_bool: false,
    };

    /// A release that answers 1, 0 or −1, of which the caller sees only whether it is 1.
    pub(crate) const RELEASE_AS_BOOL: Self = Self {
        acquire: COUNT_AND_EXTEND,
        release_as_bool: true,
    };
}

async fn run(script: &str, attempt: &Attempt) -> Result<Seen<i64>, RedisError> {
    let mut eval = cmd("EVAL");
    eval.arg(script).arg(2);
    eval.arg(&attempt.key).arg(attempt.key_of("count"));
    eval.arg(&attempt.owner).arg(attempt.lease_ms());
    attempt.see(&eval).await
}

#[async_trait]
impl HandWritten for CountInLua {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let seen = run(self.acquire, attempt).await?;
        Ok(seen.map(|holds| u32::try_from(holds).ok().filter(|it| *it > 0)))
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        Ok(match run(COUNT_DOWN, attempt).await?.value {
            1 => Freed::Yes,
            0 if !self.release_as_bool => {
                Freed::StillHeld(self.find(attempt).await?.map_or(0, |it| it.value))
            }
            _ => Freed::NotMine,
        })
    }

    /// How many holds the owner has, if the key is the owner's.
    async fn find(&self, attempt: &Attempt) -> Result<Option<Seen<u32>>, RedisError> {
        let mut mget = cmd("MGET");
        mget.arg(&attempt.key).arg(attempt.key_of("count"));
        let seen: Seen<(Option<String>, Option<u32>)> = attempt.see(&mget).await?;
        let mine = seen.value.0.as_ref() == Some(&attempt.owner);
        Ok(mine.then(|| seen.map(|(_, count)| count.unwrap_or_default())))
    }

    async fn renew(&self, attempt: &Attempt) -> Result<Option<Seen<bool>>, RedisError> {
        let seen = run(COMPARE_AND_EXTEND, attempt).await?;
        Ok(Some(seen.map(|it| it == 1)))
    }
}

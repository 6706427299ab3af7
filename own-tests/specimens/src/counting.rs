//! Locks that count the holds of a reentrant owner.

use async_trait::async_trait;
use redis::{RedisError, cmd};

use crate::lock::{Attempt, Freed, HandWritten};
use crate::store::{COMPARE_AND_EXTEND, Seen, Store};

/// `INCR key:count`, then `SETNX key id`. Each call has a new identifier.
#[derive(Debug)]
pub(crate) struct CounterKey(pub(crate) Store);

#[async_trait]
impl HandWritten for CounterKey {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let count = attempt.key_of("count");
        let holds: u32 = self.0.ask(cmd("INCR").arg(count)).await?;
        let mut setnx = cmd("SETNX");
        setnx.arg(&attempt.key).arg(&attempt.id);
        let seen: Seen<u32> = self.0.see(&attempt.key, &setnx).await?;
        Ok(seen.map(|set| (set == 1).then_some(holds)))
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        let found: Option<String> = self.0.ask(cmd("GET").arg(&attempt.key)).await?;
        if found.as_ref() != Some(&attempt.id) {
            return Ok(Freed::NotMine);
        }
        let count = attempt.key_of("count");
        let left: i64 = self.0.ask(cmd("DECR").arg(&count)).await?;
        if let Ok(left @ 1..) = u32::try_from(left) {
            return Ok(Freed::StillHeld(left));
        }
        let () = self.0.ask(cmd("DEL").arg(&attempt.key).arg(&count)).await?;
        Ok(Freed::Yes)
    }
}

/// `SETNX key owner`, then `HSET key counter 1` on the same key.
#[derive(Debug)]
pub(crate) struct HashUnderTheString(pub(crate) Store);

#[async_trait]
impl HandWritten for HashUnderTheString {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let mut setnx = cmd("SETNX");
        setnx.arg(&attempt.key).arg(&attempt.owner);
        let seen: Seen<u32> = self.0.see(&attempt.key, &setnx).await?;
        if seen.value == 1 {
            let mut hset = cmd("HSET");
            let () = self
                .0
                .ask(hset.arg(&attempt.key).arg("counter").arg(1))
                .await?;
            return Ok(seen.map(Some));
        }
        let found: Option<String> = self.0.ask(cmd("GET").arg(&attempt.key)).await?;
        if found.as_ref() != Some(&attempt.owner) {
            return Ok(seen.map(|_| None));
        }
        let mut count = cmd("HINCRBY");
        count.arg(&attempt.key).arg("counter").arg(1);
        Ok(self.0.see::<u32>(&attempt.key, &count).await?.map(Some))
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        let mut count = cmd("HINCRBY");
        count.arg(&attempt.key).arg("counter").arg(-1);
        let left: i64 = self.0.ask(&count).await?;
        if let Ok(left @ 1..) = u32::try_from(left) {
            return Ok(Freed::StillHeld(left));
        }
        let () = self.0.ask(cmd("DEL").arg(&attempt.key)).await?;
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

async fn run(store: &Store, script: &str, attempt: &Attempt) -> Result<Seen<i64>, RedisError> {
    let mut eval = cmd("EVAL");
    eval.arg(script).arg(2);
    eval.arg(&attempt.key).arg(attempt.key_of("count"));
    eval.arg(&attempt.owner).arg(attempt.lease_ms());
    store.see(&attempt.key, &eval).await
}

fn holds(seen: Seen<i64>) -> Seen<Option<u32>> {
    seen.map(|holds| u32::try_from(holds).ok().filter(|it| *it > 0))
}

/// How many holds the owner has, if the key is the owner's.
async fn find(store: &Store, attempt: &Attempt) -> Result<Option<Seen<u32>>, RedisError> {
    let mut mget = cmd("MGET");
    mget.arg(&attempt.key).arg(attempt.key_of("count"));
    let seen: Seen<(Option<String>, Option<u32>)> = store.see(&attempt.key, &mget).await?;
    let mine = seen.value.0.as_ref() == Some(&attempt.owner);
    Ok(mine.then(|| seen.map(|(_, count)| count.unwrap_or_default())))
}

/// `GET`, `INCRBY` and `SET NX` in a script.
#[derive(Debug)]
pub(crate) struct CountInLua(pub(crate) Store);

#[async_trait]
impl HandWritten for CountInLua {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        run(&self.0, COUNT_AND_SET_NX, attempt).await.map(holds)
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        Ok(match run(&self.0, COUNT_DOWN, attempt).await?.value {
            1 => Freed::Yes,
            0 => Freed::StillHeld(find(&self.0, attempt).await?.map_or(0, |it| it.value)),
            _ => Freed::NotMine,
        })
    }

    async fn find(&self, attempt: &Attempt) -> Result<Option<Seen<u32>>, RedisError> {
        find(&self.0, attempt).await
    }

    async fn renew(&self, attempt: &Attempt) -> Result<Option<Seen<bool>>, RedisError> {
        Ok(Some(
            run(&self.0, COMPARE_AND_EXTEND, attempt)
                .await?
                .map(|it| it == 1),
        ))
    }
}

/// A release that answers 1, 0 or −1, of which the caller sees only whether it is 1.
#[derive(Debug)]
pub(crate) struct ReleaseAsBool(pub(crate) Store);

#[async_trait]
impl HandWritten for ReleaseAsBool {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        run(&self.0, COUNT_AND_EXTEND, attempt).await.map(holds)
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        let freed = run(&self.0, COUNT_DOWN, attempt).await?.value == 1;
        Ok(Freed::if_true(freed))
    }

    async fn find(&self, attempt: &Attempt) -> Result<Option<Seen<u32>>, RedisError> {
        find(&self.0, attempt).await
    }

    async fn renew(&self, attempt: &Attempt) -> Result<Option<Seen<bool>>, RedisError> {
        Ok(Some(
            run(&self.0, COMPARE_AND_EXTEND, attempt)
                .await?
                .map(|it| it == 1),
        ))
    }
}

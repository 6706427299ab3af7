//! Mutexes under one key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use redis::{RedisError, cmd, pipe};

use crate::lock::{Attempt, Freed, HandWritten};
use crate::store::{COMPARE_AND_EXTEND, Seen};

/// What most of these locks consist of.
impl Attempt {
    async fn get(&self) -> Result<Seen<Option<String>>, RedisError> {
        self.see(cmd("GET").arg(&self.key)).await
    }

    /// Whether the key has the attempt's identifier.
    async fn find(&self) -> Result<Option<Seen<u32>>, RedisError> {
        let seen = self.get().await?;
        let mine = seen.value.as_ref() == Some(&self.id);
        Ok(mine.then(|| seen.map(|_| 1)))
    }

    /// `PEXPIRE key lease`.
    async fn expire(&self) -> Result<Seen<bool>, RedisError> {
        let mut expire = cmd("PEXPIRE");
        expire.arg(&self.key).arg(self.lease_ms());
        let seen: Seen<u32> = self.see(&expire).await?;
        Ok(seen.map(|it| it == 1))
    }

    /// `GET`, a comparison, and `PEXPIRE`.
    async fn compare_then_extend(&self) -> Result<Seen<bool>, RedisError> {
        let found = self.get().await?;
        if found.value.as_ref() != Some(&self.id) {
            return Ok(found.map(|_| false));
        }
        self.expire().await
    }

    /// Runs a script on the key, the identifier and the lease. Returns whether it answers 1.
    async fn run(&self, script: &str) -> Result<Seen<bool>, RedisError> {
        let mut eval = cmd("EVAL");
        eval.arg(script).arg(1).arg(&self.key);
        eval.arg(&self.id).arg(self.lease_ms());
        let seen: Seen<u32> = self.see(&eval).await?;
        Ok(seen.map(|it| it == 1))
    }

    /// `DEL key`.
    async fn delete(&self) -> Result<Freed, RedisError> {
        let deleted: u32 = self.store.ask(cmd("DEL").arg(&self.key)).await?;
        Ok(Freed::if_true(deleted == 1))
    }
}

/// `SET key "" NX`, and `DEL key`.
#[derive(Debug)]
pub(crate) struct Basic;

#[async_trait]
impl HandWritten for Basic {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let mut set = cmd("SET");
        set.arg(&attempt.key).arg("").arg("NX");
        let seen: Seen<Option<String>> = attempt.see(&set).await?;
        Ok(seen.map(|ok| ok.map(|_| 1)))
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        attempt.delete().await
    }
}

/// `SET key "" NX PX lease`, and `DEL key`.
#[derive(Debug)]
pub(crate) struct AutoRelease;

#[async_trait]
impl HandWritten for AutoRelease {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let nobody = Attempt {
            id: String::new(),
            ..attempt.clone()
        };
        nobody.set_nx_px().await
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        attempt.delete().await
    }
}

/// `SETNX key id`, then `PEXPIRE key lease`. It releases in a transaction that watches the key.
#[derive(Debug)]
pub(crate) struct SetnxThenExpire;

#[async_trait]
impl HandWritten for SetnxThenExpire {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let mut setnx = cmd("SETNX");
        setnx.arg(&attempt.key).arg(&attempt.id);
        let seen: Seen<u32> = attempt.see(&setnx).await?;
        if seen.value == 0 {
            return Ok(seen.map(|_| None));
        }
        Ok(attempt.expire().await?.map(|_| Some(1)))
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        let mut transaction = pipe();
        transaction.atomic().cmd("DEL").arg(&attempt.key);
        let Attempt { store, key, id, .. } = attempt;
        let done = store.if_unchanged(key, id, &transaction).await?;
        Ok(Freed::if_true(done))
    }

    async fn find(&self, attempt: &Attempt) -> Result<Option<Seen<u32>>, RedisError> {
        attempt.find().await
    }
}

/// `SET key id NX PX lease`. It releases with `GET`, a comparison, and `DEL`.
#[derive(Debug)]
pub(crate) struct CompareThenDelete;

#[async_trait]
impl HandWritten for CompareThenDelete {
    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        let found: Option<String> = attempt.store.ask(cmd("GET").arg(&attempt.key)).await?;
        if found.as_ref() == Some(&attempt.id) {
            return attempt.delete().await;
        }
        Ok(Freed::NotMine)
    }

    async fn find(&self, attempt: &Attempt) -> Result<Option<Seen<u32>>, RedisError> {
        attempt.find().await
    }
}

/// `SET key id NX PX lease`. It compares and deletes, or extends, in a script. A
/// blocked caller tries again.
#[derive(Debug)]
pub(crate) struct CompareAndDelete;

#[async_trait]
impl HandWritten for CompareAndDelete {
    async fn find(&self, attempt: &Attempt) -> Result<Option<Seen<u32>>, RedisError> {
        attempt.find().await
    }

    async fn renew(&self, attempt: &Attempt) -> Result<Option<Seen<bool>>, RedisError> {
        attempt.run(COMPARE_AND_EXTEND).await.map(Some)
    }
}

/// `GET key`, then `SET key id PX lease` if it has no value.
#[derive(Debug)]
pub(crate) struct GetThenSet;

#[async_trait]
impl HandWritten for GetThenSet {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let found = attempt.get().await?;
        if found.value.is_some() {
            return Ok(found.map(|_| None));
        }
        let mut set = cmd("SET");
        set.arg(&attempt.key).arg(&attempt.id);
        set.arg("PX").arg(attempt.lease_ms());
        let seen: Seen<()> = attempt.see(&set).await?;
        Ok(seen.map(|()| Some(1)))
    }

    async fn find(&self, attempt: &Attempt) -> Result<Option<Seen<u32>>, RedisError> {
        attempt.find().await
    }
}

/// `SETNX key end`, where `end` is a time on the client's clock. Past that time, `GETSET` takes over.
#[derive(Debug)]
pub(crate) struct GetSet;

impl GetSet {
    async fn take_over(Attempt { store, key, .. }: &Attempt, end: u64) -> Result<bool, RedisError> {
        let now = store.own_clock_ms();
        let over = |found: Option<u64>| found.is_none_or(|end| end < now);
        if !over(store.ask(cmd("GET").arg(key)).await?) {
            return Ok(false);
        }
        // Another client may have taken over since, and its value is overwritten.
        Ok(over(store.ask(cmd("GETSET").arg(key).arg(end)).await?))
    }
}

#[async_trait]
impl HandWritten for GetSet {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let end = attempt.store.own_clock_ms() + attempt.lease_ms();
        let mut setnx = cmd("SETNX");
        setnx.arg(&attempt.key).arg(end);
        let seen: Seen<u32> = attempt.see(&setnx).await?;
        let taken = seen.value == 1 || Self::take_over(attempt, end).await?;
        Ok(seen.map(|_| taken.then_some(1)))
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        let end: Option<u64> = attempt.store.ask(cmd("GET").arg(&attempt.key)).await?;
        if end.is_some_and(|end| end > attempt.store.own_clock_ms()) {
            return attempt.delete().await;
        }
        Ok(Freed::NotMine)
    }
}

/// A renewal in two commands.
#[derive(Debug)]
pub(crate) struct CompareThenExtend;

#[async_trait]
impl HandWritten for CompareThenExtend {
    async fn find(&self, attempt: &Attempt) -> Result<Option<Seen<u32>>, RedisError> {
        attempt.find().await
    }

    async fn renew(&self, attempt: &Attempt) -> Result<Option<Seen<bool>>, RedisError> {
        attempt.compare_then_extend().await.map(Some)
    }
}

/// The same renewal, by a task that runs until the release.
#[derive(Debug, Default)]
pub(crate) struct RenewingTask {
    /// The number of acquires and releases so far. A task ends when it changes.
    turn: Arc<AtomicU64>,
}

impl RenewingTask {
    fn begin(&self, attempt: Attempt) {
        let (turn, mine) = (Arc::clone(&self.turn), self.next_turn());
        tokio::spawn(async move {
            while turn.load(Ordering::Relaxed) == mine {
                tokio::time::sleep(attempt.lease / 3).await;
                // The tutorial's thread tells nobody when it fails.
                let _ = attempt.compare_then_extend().await;
            }
        });
    }

    fn next_turn(&self) -> u64 {
        self.turn.fetch_add(1, Ordering::Relaxed) + 1
    }
}

#[async_trait]
impl HandWritten for RenewingTask {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let seen = attempt.set_nx_px().await?;
        if seen.value.is_some() {
            self.begin(attempt.clone());
        }
        Ok(seen)
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        self.next_turn();
        attempt.compare_and_delete().await
    }

    async fn find(&self, attempt: &Attempt) -> Result<Option<Seen<u32>>, RedisError> {
        attempt.find().await
    }
}

const GET_IS_NIL: &str = "
    if redis.call('GET', KEYS[1]) == nil then
        redis.call('SETNX', KEYS[1], ARGV[1])
        redis.call('PEXPIRE', KEYS[1], ARGV[2])
        return 1
    end
    return 0";

/// `GET`, `SETNX` and `PEXPIRE` in a script.
#[derive(Debug)]
pub(crate) struct NilInLua;

#[async_trait]
impl HandWritten for NilInLua {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let seen = attempt.run(GET_IS_NIL).await?;
        Ok(seen.map(|set| set.then_some(1)))
    }
}

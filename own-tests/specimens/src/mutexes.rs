//! Mutexes under one key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use redis::{RedisError, cmd, pipe};

use crate::lock::{Attempt, Freed, HandWritten};
use crate::store::{COMPARE_AND_EXTEND, Seen, Store};

/// `SET key id NX PX lease`.
async fn set_nx_px(store: &Store, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
    let mut set = cmd("SET");
    set.arg(&attempt.key).arg(&attempt.id);
    set.arg("NX").arg("PX").arg(attempt.lease_ms());
    let seen: Seen<Option<String>> = store.see(&attempt.key, &set).await?;
    Ok(seen.map(|ok| ok.map(|_| 1)))
}

/// Whether the key has the attempt's identifier.
async fn find(store: &Store, attempt: &Attempt) -> Result<Option<Seen<u32>>, RedisError> {
    let seen: Seen<Option<String>> = store
        .see(&attempt.key, cmd("GET").arg(&attempt.key))
        .await?;
    let mine = seen.value.as_ref() == Some(&attempt.id);
    Ok(mine.then(|| seen.map(|_| 1)))
}

async fn is_mine(store: &Store, attempt: &Attempt) -> Result<bool, RedisError> {
    let found: Option<String> = store.ask(cmd("GET").arg(&attempt.key)).await?;
    Ok(found.as_ref() == Some(&attempt.id))
}

async fn delete(store: &Store, attempt: &Attempt) -> Result<Freed, RedisError> {
    let deleted: u32 = store.ask(cmd("DEL").arg(&attempt.key)).await?;
    Ok(Freed::if_true(deleted == 1))
}

async fn compare_and_delete(store: &Store, attempt: &Attempt) -> Result<Freed, RedisError> {
    let deleted = store.compare_and_delete(&attempt.key, &attempt.id).await?;
    Ok(Freed::if_true(deleted))
}

/// `SET key "" NX`, and `DEL key`.
#[derive(Debug)]
pub(crate) struct Basic(pub(crate) Store);

#[async_trait]
impl HandWritten for Basic {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let mut set = cmd("SET");
        set.arg(&attempt.key).arg("").arg("NX");
        let seen: Seen<Option<String>> = self.0.see(&attempt.key, &set).await?;
        Ok(seen.map(|ok| ok.map(|_| 1)))
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        delete(&self.0, attempt).await
    }
}

/// `SET key "" NX PX lease`, and `DEL key`.
#[derive(Debug)]
pub(crate) struct AutoRelease(pub(crate) Store);

#[async_trait]
impl HandWritten for AutoRelease {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let nobody = Attempt {
            id: String::new(),
            ..attempt.clone()
        };
        set_nx_px(&self.0, &nobody).await
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        delete(&self.0, attempt).await
    }
}

/// `SETNX key id`, then `PEXPIRE key lease`. It releases in a transaction that watches the key.
#[derive(Debug)]
pub(crate) struct SetnxThenExpire(pub(crate) Store);

#[async_trait]
impl HandWritten for SetnxThenExpire {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let mut setnx = cmd("SETNX");
        let seen: Seen<u32> = self
            .0
            .see(&attempt.key, setnx.arg(&attempt.key).arg(&attempt.id))
            .await?;
        if seen.value == 0 {
            return Ok(seen.map(|_| None));
        }
        let mut expire = cmd("PEXPIRE");
        expire.arg(&attempt.key).arg(attempt.lease_ms());
        let seen: Seen<u32> = self.0.see(&attempt.key, &expire).await?;
        Ok(seen.map(|_| Some(1)))
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        let mut transaction = pipe();
        transaction.atomic().cmd("DEL").arg(&attempt.key);
        let done = self.0.if_unchanged(&attempt.key, &attempt.id, &transaction);
        Ok(Freed::if_true(done.await?))
    }

    async fn find(&self, attempt: &Attempt) -> Result<Option<Seen<u32>>, RedisError> {
        find(&self.0, attempt).await
    }
}

/// `SET key id NX PX lease`. It releases with `GET`, a comparison, and `DEL`.
#[derive(Debug)]
pub(crate) struct CompareThenDelete(pub(crate) Store);

#[async_trait]
impl HandWritten for CompareThenDelete {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        set_nx_px(&self.0, attempt).await
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        if is_mine(&self.0, attempt).await? {
            return delete(&self.0, attempt).await;
        }
        Ok(Freed::NotMine)
    }

    async fn find(&self, attempt: &Attempt) -> Result<Option<Seen<u32>>, RedisError> {
        find(&self.0, attempt).await
    }
}

/// `SET key id NX PX lease`. It compares and deletes, or extends, in a script. A
/// blocked caller tries again.
#[derive(Debug)]
pub(crate) struct CompareAndDelete(pub(crate) Store);

#[async_trait]
impl HandWritten for CompareAndDelete {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        set_nx_px(&self.0, attempt).await
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        compare_and_delete(&self.0, attempt).await
    }

    async fn find(&self, attempt: &Attempt) -> Result<Option<Seen<u32>>, RedisError> {
        find(&self.0, attempt).await
    }

    async fn renew(&self, attempt: &Attempt) -> Result<Option<Seen<bool>>, RedisError> {
        let mut eval = cmd("EVAL");
        eval.arg(COMPARE_AND_EXTEND).arg(1).arg(&attempt.key);
        eval.arg(&attempt.id).arg(attempt.lease_ms());
        let seen: Seen<u32> = self.0.see(&attempt.key, &eval).await?;
        Ok(Some(seen.map(|it| it == 1)))
    }
}

/// `GET key`, then `SET key id PX lease` if it has no value.
#[derive(Debug)]
pub(crate) struct GetThenSet(pub(crate) Store);

#[async_trait]
impl HandWritten for GetThenSet {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let found: Seen<Option<String>> = self
            .0
            .see(&attempt.key, cmd("GET").arg(&attempt.key))
            .await?;
        if found.value.is_some() {
            return Ok(found.map(|_| None));
        }
        let mut set = cmd("SET");
        set.arg(&attempt.key).arg(&attempt.id);
        set.arg("PX").arg(attempt.lease_ms());
        let seen: Seen<()> = self.0.see(&attempt.key, &set).await?;
        Ok(seen.map(|()| Some(1)))
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        compare_and_delete(&self.0, attempt).await
    }

    async fn find(&self, attempt: &Attempt) -> Result<Option<Seen<u32>>, RedisError> {
        find(&self.0, attempt).await
    }
}

/// `SETNX key end`, where `end` is a time on the client's clock. Past that time, `GETSET` takes over.
#[derive(Debug)]
pub(crate) struct GetSet(pub(crate) Store);

impl GetSet {
    async fn take_over(&self, attempt: &Attempt, end: u64) -> Result<bool, RedisError> {
        let now = self.0.own_clock_ms();
        let over = |found: Option<u64>| found.is_none_or(|end| end < now);
        if !over(self.0.ask(cmd("GET").arg(&attempt.key)).await?) {
            return Ok(false);
        }
        // Another client may have taken over since, and its value is overwritten.
        let mut getset = cmd("GETSET");
        Ok(over(self.0.ask(getset.arg(&attempt.key).arg(end)).await?))
    }
}

#[async_trait]
impl HandWritten for GetSet {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let end = self.0.own_clock_ms() + attempt.lease_ms();
        let mut setnx = cmd("SETNX");
        setnx.arg(&attempt.key).arg(end);
        let seen: Seen<u32> = self.0.see(&attempt.key, &setnx).await?;
        let taken = seen.value == 1 || self.take_over(attempt, end).await?;
        Ok(seen.map(|_| taken.then_some(1)))
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        let end: Option<u64> = self.0.ask(cmd("GET").arg(&attempt.key)).await?;
        if end.is_some_and(|end| end > self.0.own_clock_ms()) {
            return delete(&self.0, attempt).await;
        }
        Ok(Freed::NotMine)
    }
}

/// `GET`, a comparison, and `PEXPIRE`.
async fn compare_then_extend(store: &Store, attempt: &Attempt) -> Result<Seen<bool>, RedisError> {
    let found: Seen<Option<String>> = store
        .see(&attempt.key, cmd("GET").arg(&attempt.key))
        .await?;
    if found.value.as_ref() != Some(&attempt.id) {
        return Ok(found.map(|_| false));
    }
    let mut expire = cmd("PEXPIRE");
    expire.arg(&attempt.key).arg(attempt.lease_ms());
    let seen: Seen<u32> = store.see(&attempt.key, &expire).await?;
    Ok(seen.map(|it| it == 1))
}

/// A renewal in two commands.
#[derive(Debug)]
pub(crate) struct CompareThenExtend(pub(crate) Store);

#[async_trait]
impl HandWritten for CompareThenExtend {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        set_nx_px(&self.0, attempt).await
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        compare_and_delete(&self.0, attempt).await
    }

    async fn find(&self, attempt: &Attempt) -> Result<Option<Seen<u32>>, RedisError> {
        find(&self.0, attempt).await
    }

    async fn renew(&self, attempt: &Attempt) -> Result<Option<Seen<bool>>, RedisError> {
        compare_then_extend(&self.0, attempt).await.map(Some)
    }
}

/// The same renewal, by a task that runs until the release.
#[derive(Debug)]
pub(crate) struct RenewingTask {
    store: Store,
    /// The number of acquires and releases so far. A task ends when it changes.
    turn: Arc<AtomicU64>,
}

impl RenewingTask {
    pub(crate) fn new(store: Store) -> Self {
        let turn = Arc::default();
        Self { store, turn }
    }

    fn begin(&self, attempt: &Attempt) {
        let (turn, mine) = (Arc::clone(&self.turn), self.next_turn());
        let (store, attempt) = (self.store.clone(), attempt.clone());
        tokio::spawn(async move {
            while turn.load(Ordering::Relaxed) == mine {
                tokio::time::sleep(attempt.lease / 3).await;
                // The tutorial's thread tells nobody when it fails.
                let _ = compare_then_extend(&store, &attempt).await;
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
        let seen = set_nx_px(&self.store, attempt).await?;
        if seen.value.is_some() {
            self.begin(attempt);
        }
        Ok(seen)
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        self.next_turn();
        compare_and_delete(&self.store, attempt).await
    }

    async fn find(&self, attempt: &Attempt) -> Result<Option<Seen<u32>>, RedisError> {
        find(&self.store, attempt).await
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
pub(crate) struct NilInLua(pub(crate) Store);

#[async_trait]
impl HandWritten for NilInLua {
    async fn acquire(&self, attempt: &Attempt) -> Result<Seen<Option<u32>>, RedisError> {
        let mut eval = cmd("EVAL");
        eval.arg(GET_IS_NIL).arg(1).arg(&attempt.key);
        eval.arg(&attempt.id).arg(attempt.lease_ms());
        let seen: Seen<u32> = self.0.see(&attempt.key, &eval).await?;
        Ok(seen.map(|it| (it == 1).then_some(1)))
    }

    async fn release(&self, attempt: &Attempt) -> Result<Freed, RedisError> {
        compare_and_delete(&self.0, attempt).await
    }
}

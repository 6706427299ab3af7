//! A lock that renews by a plain `SET`, as one might write it by hand: `SET NX PX`, a task that sets the key again, and a
//! script that deletes it if it has the own value.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::ConnectionManager;
use redis::{Script, cmd};
use tokio::task::JoinHandle;

use super::Adapter;
use crate::Failure;
use crate::protocol::Acquire;

const RETRY: Duration = Duration::from_millis(50);
const DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

pub(crate) struct ByHand {
    redis: ConnectionManager,
    taken: Cell<u64>,
}

pub(crate) struct Held {
    key: String,
    value: String,
    /// Until when the last answer says that the lock is held.
    until: Arc<Mutex<Instant>>,
    renewals: JoinHandle<()>,
}

impl Held {
    fn is_valid(&self) -> bool {
        Instant::now() < *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ByHand {
    pub(crate) async fn connect(url: &str) -> Result<Self, Failure> {
        let client = redis::Client::open(url)?;
        Ok(Self {
            redis: client.get_connection_manager().await?,
            taken: Cell::new(0),
        })
    }
}

/// Sets the key, whoever has it, and counts the lease from the answer.
async fn renew(
    mut redis: ConnectionManager,
    (key, value): (String, String),
    lease: Duration,
    until: Arc<Mutex<Instant>>,
) {
    let mut set = cmd("SET");
    set.arg(key).arg(value).arg("PX").arg(millis(lease));
    loop {
        tokio::time::sleep(lease / 3).await;
        if set.exec_async(&mut redis).await.is_ok() {
            *until.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + lease;
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).expect("a short time")
}

impl Adapter for ByHand {
    type Held = Held;

    async fn acquire(&self, ask: &Acquire) -> Result<Option<Held>, Failure> {
        self.taken.set(self.taken.get() + 1);
        let value = format!("{}-{}", std::process::id(), self.taken.get());
        let (key, lease) = (ask.key.clone(), ask.lease());
        let mut set = cmd("SET");
        set.arg(&key)
            .arg(&value)
            .arg("NX")
            .arg("PX")
            .arg(ask.lease_ms);
        let give_up_at = Instant::now() + ask.wait();
        let until = loop {
            let until = Instant::now() + lease;
            let answer: Option<String> = set.query_async(&mut self.redis.clone()).await?;
            if answer.is_some() {
                break Arc::new(Mutex::new(until));
            }
            if Instant::now() + RETRY >= give_up_at {
                return Ok(None);
            }
            tokio::time::sleep(RETRY).await;
        };
        let own = (key.clone(), value.clone());
        let renewals = renew(self.redis.clone(), own, lease, Arc::clone(&until));
        Ok(Some(Held {
            key,
            value,
            until,
            renewals: tokio::spawn(renewals),
        }))
    }

    async fn check(&self, held: &Held) -> Result<bool, Failure> {
        Ok(held.is_valid())
    }

    async fn release(&self, held: Held) -> Result<bool, Failure> {
        held.renewals.abort();
        let delete = Script::new(DELETE);
        let mut delete = delete.key(&held.key);
        let deleted: u32 = delete
            .arg(&held.value)
            .invoke_async(&mut self.redis.clone())
            .await?;
        Ok(deleted == 1)
    }
}

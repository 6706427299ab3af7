//! Locks that wait with `BLPOP`, to compare hand-overs with.
//!
//! [`SignalLock`] uses python-redis-lock's protocol. A release pushes a signal to a list, and the
//! waiter that pops it tries `SET NX PX` again. A hand-over takes two round trips, and another
//! client may acquire the lock in between.
//!
//! [`TokenLock`] is the fastest lock on `BLPOP` that we know. The release creates the next holder's
//! token, starts its lease, and pushes it to the list. The waiter that pops the token holds the
//! lock, so a hand-over takes one round trip.
//!
//! Neither has fencing tokens, reentrancy, renewal, or a release that survives a lost reply. Each
//! lock has a connection, which it blocks while it waits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::connection::Connection;
use crate::library::Library;
use crate::lock::Lock;
use crate::{LEASE_MS, Result};

/// Deletes the lock and pushes one signal, if the caller holds the lock.
const SIGNAL: &str = "\
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[2])
redis.call('RPUSH', KEYS[2], 1)
redis.call('PEXPIRE', KEYS[2], ARGV[2])
redis.call('DEL', KEYS[1])
return 1";

/// Acquires the lock if its token is in the list, or if nobody holds it.
const TRY: &str = "\
if redis.call('LPOP', KEYS[2]) then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return 1
end
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
return 0";

/// Makes the next token the holder, if the caller holds the lock. A token expires from the list
/// after half a lease, so the waiter that pops it has at least the other half.
const PASS: &str = "\
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('RPUSH', KEYS[2], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[3] / 2)
return 1";

#[derive(Debug)]
struct Handle {
    connection: Connection,
    key: String,
    list: String,
    owner: String,
}

impl Handle {
    fn new(connection: Connection, key: &str, number: usize) -> Self {
        Self {
            connection,
            key: key.to_owned(),
            list: format!("{key}:list"),
            owner: format!("owner-{number}"),
        }
    }

    async fn run(&self, script: &str, arguments: &[&str]) -> Result<bool> {
        let keys = [self.key.as_str(), &self.list];
        self.connection.run(script, keys, arguments).await
    }

    async fn release(&self, script: &str, arguments: &[&str]) -> Result<()> {
        match self.run(script, arguments).await? {
            true => Ok(()),
            false => Err("the lock was lost".into()),
        }
    }
}

/// A lock whose release pushes a signal; the waiter that pops it tries again.
#[derive(Debug)]
pub(crate) struct SignalLock {
    handle: Handle,
    signal: String,
}

impl SignalLock {
    pub(crate) async fn new(connection: Connection, key: &str, number: usize) -> Result<Self> {
        Ok(Self {
            signal: connection.load(SIGNAL).await?,
            handle: Handle::new(connection, key, number),
        })
    }
}

impl Lock for SignalLock {
    type Held = ();

    async fn acquire(&self) -> Result<()> {
        let Handle {
            connection,
            key,
            list,
            owner,
        } = &self.handle;
        while !connection.set_if_free(key, owner).await? {
            connection.pop(list).await?;
        }
        Ok(())
    }

    async fn release(&self, (): ()) -> Result<()> {
        let arguments = [self.handle.owner.as_str(), &LEASE_MS.to_string()];
        self.handle.release(&self.signal, &arguments).await
    }
}

/// A lock whose release creates the next holder's token; the waiter that pops it holds the lock.
#[derive(Debug)]
pub(crate) struct TokenLock {
    handle: Handle,
    attempt: String,
    pass: String,
    next: AtomicU64,
    /// Whether the last acquisition had to wait. If so, the next one pops without trying first.
    /// That costs one timeout if the token has expired.
    waited: AtomicBool,
}

impl TokenLock {
    pub(crate) async fn new(connection: Connection, key: &str, number: usize) -> Result<Self> {
        Ok(Self {
            attempt: connection.load(TRY).await?,
            pass: connection.load(PASS).await?,
            handle: Handle::new(connection, key, number),
            next: AtomicU64::new(0),
            waited: AtomicBool::new(false),
        })
    }

    fn fresh(&self) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        format!("{}-{number}", self.handle.owner)
    }
}

impl Lock for TokenLock {
    type Held = String;

    async fn acquire(&self) -> Result<String> {
        let mut try_first = !self.waited.load(Ordering::Relaxed);
        loop {
            let own = self.fresh();
            let arguments = [own.as_str(), &LEASE_MS.to_string()];
            if try_first && self.handle.run(&self.attempt, &arguments).await? {
                self.waited.store(false, Ordering::Relaxed);
                return Ok(own);
            }
            if let Some(token) = self.handle.connection.pop(&self.handle.list).await? {
                self.waited.store(true, Ordering::Relaxed);
                return Ok(token);
            }
            try_first = true;
        }
    }

    async fn release(&self, held: String) -> Result<()> {
        let arguments = [held.as_str(), &self.fresh(), &LEASE_MS.to_string()];
        self.handle.release(&self.pass, &arguments).await
    }
}

/// Connects `count` clients, and creates with `new` each one's handle to the lock `key`.
pub(crate) async fn locks<L>(
    library: Library,
    url: &str,
    key: &str,
    count: usize,
    new: impl AsyncFn(Connection, &str, usize) -> Result<L>,
) -> Result<Vec<L>> {
    let mut locks = Vec::new();
    for number in 0..count {
        locks.push(new(Connection::blocking(library, url).await?, key, number).await?);
    }
    Ok(locks)
}

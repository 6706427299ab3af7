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

use fred::error::ErrorKind;
use fred::prelude::{
    Client, ClientLike, Config, Expiration, KeysInterface, ListInterface, LuaInterface, SetOptions,
};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue};

use crate::floor::set_if_free;
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

/// The timeout of one `BLPOP`, in seconds.
const BLPOP_TIMEOUT: f64 = 1.0;

/// A connection that `BLPOP` may block.
#[derive(Clone, Debug)]
pub enum Connection {
    /// From the `redis` crate.
    RedisRs(MultiplexedConnection),
    /// From the `fred` crate.
    Fred(Client),
}

impl Connection {
    /// Connects through the `redis` crate.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn through_redis_rs(url: &str) -> Result<Self> {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let client = redis::Client::open(url)?;
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        Ok(Self::RedisRs(connection.await?))
    }

    /// Connects through `fred`.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn through_fred(url: &str) -> Result<Self> {
        let client = Client::new(Config::from_url(url)?, None, None, None);
        client.init().await?;
        Ok(Self::Fred(client))
    }

    async fn load(&self, script: &str) -> Result<String> {
        Ok(match self {
            Self::RedisRs(connection) => {
                let mut command = redis::cmd("SCRIPT");
                command.arg("LOAD").arg(script);
                command.query_async(&mut connection.clone()).await?
            }
            Self::Fred(client) => client.script_load(script).await?,
        })
    }

    async fn run(&self, script: &str, keys: [&str; 2], arguments: &[&str]) -> Result<bool> {
        Ok(match self {
            Self::RedisRs(connection) => {
                let mut command = redis::cmd("EVALSHA");
                command.arg(script).arg(2).arg(&keys).arg(arguments);
                command.query_async(&mut connection.clone()).await?
            }
            Self::Fred(client) => {
                let (keys, arguments) = (keys.to_vec(), arguments.to_vec());
                let answer: i64 = client.evalsha(script, keys, arguments).await?;
                answer == 1
            }
        })
    }

    async fn set_if_free(&self, key: &str, owner: &str) -> Result<bool> {
        Ok(match self {
            Self::RedisRs(connection) => {
                let set = set_if_free(key, owner);
                set.query_async(&mut connection.clone()).await?
            }
            Self::Fred(client) => {
                let lease = Some(Expiration::PX(LEASE_MS));
                let set = client.set(key, owner, lease, Some(SetOptions::NX), false);
                set.await.map(|set: Option<String>| set.is_some())?
            }
        })
    }

    /// Pops an element, or returns `None` after the timeout.
    async fn pop(&self, list: &str) -> Result<Option<String>> {
        let popped: Option<(String, String)> = match self {
            Self::RedisRs(connection) => {
                let mut command = redis::cmd("BLPOP");
                command.arg(list).arg(BLPOP_TIMEOUT);
                let value: redis::Value = command.query_async(&mut connection.clone()).await?;
                FromRedisValue::from_redis_value(value)?
            }
            Self::Fred(client) => match client.blpop(list, BLPOP_TIMEOUT).await {
                // The library reports the end of the wait as an error.
                Err(error) if matches!(error.kind(), ErrorKind::Timeout) => None,
                popped => popped?,
            },
        };
        Ok(popped.map(|(_, token)| token))
    }
}

/// The state that both kinds of lock share.
#[derive(Debug)]
struct Names {
    connection: Connection,
    key: String,
    list: String,
    owner: String,
}

impl Names {
    fn new(connection: Connection, key: &str, number: usize) -> Self {
        Self {
            connection,
            key: key.to_owned(),
            list: format!("{key}:list"),
            owner: format!("owner-{number}"),
        }
    }

    const fn keys(&self) -> [&str; 2] {
        [self.key.as_str(), self.list.as_str()]
    }
}

/// A lock whose release pushes a signal; the waiter that pops it tries again.
#[derive(Debug)]
pub struct SignalLock {
    names: Names,
    signal: String,
}

impl SignalLock {
    /// Creates the handle of client `number` to the lock `key`.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn new(connection: Connection, key: &str, number: usize) -> Result<Self> {
        let signal = connection.load(SIGNAL).await?;
        let names = Names::new(connection, key, number);
        Ok(Self { names, signal })
    }
}

impl Lock for SignalLock {
    type Held = ();

    async fn acquire(&self) -> Result<()> {
        let Names {
            connection,
            key,
            list,
            owner,
        } = &self.names;
        while !connection.set_if_free(key, owner).await? {
            connection.pop(list).await?;
        }
        Ok(())
    }

    async fn release(&self, (): ()) -> Result<()> {
        let arguments = [self.names.owner.as_str(), &LEASE_MS.to_string()];
        let own = self
            .names
            .connection
            .run(&self.signal, self.names.keys(), &arguments);
        match own.await? {
            true => Ok(()),
            false => Err("the lock was lost".into()),
        }
    }
}

/// A lock whose release creates the next holder's token; the waiter that pops it holds the lock.
#[derive(Debug)]
pub struct TokenLock {
    names: Names,
    attempt: String,
    pass: String,
    next: AtomicU64,
    /// Whether the last acquisition had to wait. If so, the next one pops without trying first.
    /// That costs one timeout if the token has expired.
    waited: AtomicBool,
}

impl TokenLock {
    /// Creates the handle of client `number` to the lock `key`.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn new(connection: Connection, key: &str, number: usize) -> Result<Self> {
        Ok(Self {
            attempt: connection.load(TRY).await?,
            pass: connection.load(PASS).await?,
            names: Names::new(connection, key, number),
            next: AtomicU64::new(0),
            waited: AtomicBool::new(false),
        })
    }

    fn fresh(&self) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        format!("{}-{number}", self.names.owner)
    }
}

impl Lock for TokenLock {
    type Held = String;

    async fn acquire(&self) -> Result<String> {
        let (connection, keys) = (&self.names.connection, self.names.keys());
        let mut try_first = !self.waited.load(Ordering::Relaxed);
        loop {
            let own = self.fresh();
            let arguments = [own.as_str(), &LEASE_MS.to_string()];
            if try_first && connection.run(&self.attempt, keys, &arguments).await? {
                self.waited.store(false, Ordering::Relaxed);
                return Ok(own);
            }
            if let Some(token) = connection.pop(&self.names.list).await? {
                self.waited.store(true, Ordering::Relaxed);
                return Ok(token);
            }
            try_first = true;
        }
    }

    async fn release(&self, held: String) -> Result<()> {
        let (next, lease) = (self.fresh(), LEASE_MS.to_string());
        let arguments = [held.as_str(), &next, &lease];
        let own = self
            .names
            .connection
            .run(&self.pass, self.names.keys(), &arguments);
        match own.await? {
            true => Ok(()),
            false => Err("the lock was lost".into()),
        }
    }
}

/// Connects `count` clients, and creates with `new` each one's handle to the lock `key`.
///
/// # Errors
/// Those of connecting.
pub async fn locks<L>(
    library: Library,
    url: &str,
    key: &str,
    count: usize,
    new: impl AsyncFn(Connection, &str, usize) -> Result<L>,
) -> Result<Vec<L>> {
    let mut locks = Vec::new();
    for number in 0..count {
        let connection = match library {
            Library::RedisRs => Connection::through_redis_rs(url).await?,
            Library::Fred => Connection::through_fred(url).await?,
        };
        locks.push(new(connection, key, number).await?);
    }
    Ok(locks)
}

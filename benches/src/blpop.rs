//! Locks that wait with `BLPOP`, to compare hand-overs with.
//!
//! [`SignalLock`] is python-redis-lock's protocol. A release leaves a signal in a list, and the
//! waiter that pops it tries `SET NX PX` again; so a hand-over is two trips, and a newcomer may
//! come in between.
//!
//! [`TokenLock`] is the fastest that we know to do with `BLPOP`. The release itself makes the next
//! holder's token and puts it into the list, with its lease running, so that who pops it has the
//! lock: a hand-over is one trip. Neither has fencing tokens, reentrancy, renewal, or a release
//! that survives a lost reply.
//!
//! Each lock has a connection of its own, which it blocks while it waits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fred::prelude::{
    Client, ClientLike, Config, Expiration, KeysInterface, ListInterface, LuaInterface, SetOptions,
};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue};

use crate::lock::Lock;
use crate::{LEASE_MS, Result};

/// Deletes the lock and leaves one signal, if the lock is the caller's.
const SIGNAL: &str = "\
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[2])
redis.call('RPUSH', KEYS[2], 1)
redis.call('PEXPIRE', KEYS[2], ARGV[2])
redis.call('DEL', KEYS[1])
return 1";

/// Takes the lock if it was never held, has expired, or if its token lies there.
const TRY: &str = "\
if redis.call('LPOP', KEYS[2]) then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return 1
end
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
return 0";

/// Makes the next token the holder, if the lock is the caller's. What lies there for half a lease
/// is gone, so that who pops it has at least the other half.
const PASS: &str = "\
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('RPUSH', KEYS[2], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[3] / 2)
return 1";

/// How long one `BLPOP` waits, in seconds.
const PATIENCE: f64 = 1.0;

/// A connection that may be blocked.
#[derive(Clone, Debug)]
pub enum Line {
    /// Of the `redis` crate.
    RedisRs(MultiplexedConnection),
    /// Of the `fred` crate.
    Fred(Client),
}

impl Line {
    /// Through the `redis` crate.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn through_redis_rs(url: &str) -> Result<Self> {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let client = redis::Client::open(url)?;
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        Ok(Self::RedisRs(connection.await?))
    }

    /// Through `fred`.
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
                let mut command = redis::cmd("SET");
                command
                    .arg(key)
                    .arg(owner)
                    .arg("NX")
                    .arg("PX")
                    .arg(LEASE_MS);
                command.query_async(&mut connection.clone()).await?
            }
            Self::Fred(client) => {
                let lease = Some(Expiration::PX(LEASE_MS));
                let set = client.set(key, owner, lease, Some(SetOptions::NX), false);
                set.await.map(|set: Option<String>| set.is_some())?
            }
        })
    }

    /// What was popped; nothing if nothing came in time.
    async fn pop(&self, list: &str) -> Result<Option<String>> {
        let popped: Option<(String, String)> = match self {
            Self::RedisRs(connection) => {
                let mut command = redis::cmd("BLPOP");
                command.arg(list).arg(PATIENCE);
                let value: redis::Value = command.query_async(&mut connection.clone()).await?;
                FromRedisValue::from_redis_value(value)?
            }
            Self::Fred(client) => client.blpop(list, PATIENCE).await?,
        };
        Ok(popped.map(|(_, token)| token))
    }
}

/// What both kinds of lock have.
#[derive(Debug)]
struct Names {
    line: Line,
    key: String,
    list: String,
    owner: String,
}

impl Names {
    fn new(line: Line, key: &str, number: usize) -> Self {
        Self {
            line,
            key: key.to_owned(),
            list: format!("{key}:list"),
            owner: format!("owner-{number}"),
        }
    }

    const fn keys(&self) -> [&str; 2] {
        [self.key.as_str(), self.list.as_str()]
    }
}

/// A release leaves a signal, and who finds it tries again.
#[derive(Debug)]
pub struct SignalLock {
    names: Names,
    signal: String,
}

impl SignalLock {
    /// The way of contender `number` to the lock `key`.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn new(line: Line, key: &str, number: usize) -> Result<Self> {
        let signal = line.load(SIGNAL).await?;
        let names = Names::new(line, key, number);
        Ok(Self { names, signal })
    }
}

impl Lock for SignalLock {
    type Held = ();

    async fn take(&self) -> Result<()> {
        let Names {
            line,
            key,
            list,
            owner,
        } = &self.names;
        while !line.set_if_free(key, owner).await? {
            line.pop(list).await?;
        }
        Ok(())
    }

    async fn give_back(&self, (): ()) -> Result<()> {
        let arguments = [self.names.owner.as_str(), &LEASE_MS.to_string()];
        let own = self
            .names
            .line
            .run(&self.signal, self.names.keys(), &arguments);
        match own.await? {
            true => Ok(()),
            false => Err("the lock was not held any more".into()),
        }
    }
}

/// A release makes the next holder's token, and who finds it holds.
#[derive(Debug)]
pub struct TokenLock {
    names: Names,
    attempt: String,
    pass: String,
    next: AtomicU64,
    /// Whether the last acquisition had to wait. Then the next one does not try first: what
    /// comes of it if nobody holds the lock is a second lost when the token has expired.
    waited: AtomicBool,
}

impl TokenLock {
    /// The way of contender `number` to the lock `key`.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn new(line: Line, key: &str, number: usize) -> Result<Self> {
        Ok(Self {
            attempt: line.load(TRY).await?,
            pass: line.load(PASS).await?,
            names: Names::new(line, key, number),
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

    async fn take(&self) -> Result<String> {
        let (line, keys) = (&self.names.line, self.names.keys());
        let mut try_first = !self.waited.load(Ordering::Relaxed);
        loop {
            let own = self.fresh();
            let arguments = [own.as_str(), &LEASE_MS.to_string()];
            if try_first && line.run(&self.attempt, keys, &arguments).await? {
                self.waited.store(false, Ordering::Relaxed);
                return Ok(own);
            }
            if let Some(token) = line.pop(&self.names.list).await? {
                self.waited.store(true, Ordering::Relaxed);
                return Ok(token);
            }
            try_first = true;
        }
    }

    async fn give_back(&self, held: String) -> Result<()> {
        let (next, lease) = (self.fresh(), LEASE_MS.to_string());
        let arguments = [held.as_str(), &next, &lease];
        let own = self
            .names
            .line
            .run(&self.pass, self.names.keys(), &arguments);
        match own.await? {
            true => Ok(()),
            false => Err("the lock was not held any more".into()),
        }
    }
}

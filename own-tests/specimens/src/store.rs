//! A client's connections to the Redis server, and what each command reports.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leasehold_api::{BackendError, ServerTime};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, Pipeline, RedisError, cmd};
use tokio::sync::Mutex;

/// A machine that runs many specimens at once may stall for a while.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A reply, the server's time when it was computed, and how long the key lasts then.
///
/// Redis counts expiry in whole milliseconds, and a key expires in the millisecond *after* its last
/// one. So `at` is a whole millisecond, and `lasts` includes the last one: `at + lasts` is the first
/// instant at which the key is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<T> {
    /// The reply was computed between these two times: usually in one millisecond.
    pub(crate) began: ServerTime,
    pub(crate) at: ServerTime,
    pub(crate) value: T,
    /// `None` if the key does not exist or does not expire.
    pub(crate) lasts: Option<Duration>,
}

impl<T> Seen<T> {
    pub(crate) fn map<U>(self, to: impl FnOnce(T) -> U) -> Seen<U> {
        Seen {
            began: self.began,
            at: self.at,
            value: to(self.value),
            lasts: self.lasts,
        }
    }
}

/// The reply to `TIME`: seconds and microseconds.
type Clock = (u64, u64);

fn milliseconds((seconds, micros): Clock) -> ServerTime {
    ServerTime::from_micros(seconds * 1_000_000 + micros / 1_000 * 1_000)
}

/// Deletes the key if it has this value.
const COMPARE_AND_DELETE: &str = "
    if redis.call('GET', KEYS[1]) == ARGV[1] then
        return redis.call('DEL', KEYS[1])
    end
    return 0";

/// Extends the key's time to live, and never shortens it, if the key has this value.
pub(crate) const COMPARE_AND_EXTEND: &str = "
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then
        return 0
    end
    if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
        redis.call('PEXPIRE', KEYS[1], ARGV[2])
    end
    return 1";

/// One client of the server.
#[derive(Clone)]
pub(crate) struct Store {
    connection: MultiplexedConnection,
    /// `WATCH` concerns a whole connection, so transactions that watch have a separate one.
    watching: Arc<Mutex<MultiplexedConnection>>,
    clock_ahead: Duration,
}

impl Store {
    /// Connects. `clock_ahead` says how far this client's own clock is ahead of the server's.
    pub(crate) async fn connect(url: &str, clock_ahead: Duration) -> Result<Self, RedisError> {
        let client = redis::Client::open(url)?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(RESPONSE_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_TIMEOUT));
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let watching = client.get_multiplexed_async_connection_with_config(&config);
        Ok(Self {
            connection: connection.await?,
            watching: Arc::new(Mutex::new(watching.await?)),
            clock_ahead,
        })
    }

    /// This client's clock, in milliseconds since 1970.
    pub(crate) fn own_clock_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = since.unwrap_or_default() + self.clock_ahead;
        u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
    }

    /// Sends a command.
    pub(crate) async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, RedisError> {
        command.query_async(&mut self.connection.clone()).await
    }

    /// Sends a command, and reads the clock and the key's time to live in the same step.
    ///
    /// The clock runs on within a transaction. If it has moved, the time to live may belong to either
    /// millisecond, so it is read again.
    pub(crate) async fn see<T: FromRedisValue>(
        &self,
        key: &str,
        command: &Cmd,
    ) -> Result<Seen<T>, RedisError> {
        let (began, value, mut lasts, at) = self.step(key, command).await?;
        let (mut before, mut after) = (began, at);
        while before != after {
            (before, (), lasts, after) = self.step(key, cmd("ECHO").arg("")).await?;
        }
        let end = lasts.map(|lasts| after.saturating_add(lasts));
        Ok(Seen {
            began,
            at,
            value,
            lasts: end.map(|end| end.saturating_since(at)),
        })
    }

    /// A command, between two readings of the clock. The first one is outside of the transaction,
    /// because the server decides by the time at which a transaction begins.
    async fn step<T: FromRedisValue>(
        &self,
        key: &str,
        command: &Cmd,
    ) -> Result<(ServerTime, T, Option<Duration>, ServerTime), RedisError> {
        let mut step = redis::pipe();
        step.cmd("TIME").cmd("MULTI").ignore();
        step.add_command(command.clone()).ignore();
        step.cmd("PTTL").arg(key).ignore().cmd("TIME").ignore();
        let (began, (value, lasts, at)): (Clock, (T, i64, Clock)) = step
            .cmd("EXEC")
            .query_async(&mut self.connection.clone())
            .await?;
        // A key is gone a millisecond after its time to live is 0.
        let lasts = u64::try_from(lasts).ok();
        let lasts = lasts.map(|ms| Duration::from_millis(ms + 1));
        Ok((milliseconds(began), value, lasts, milliseconds(at)))
    }

    /// The server's time. One command, because the cases that stall a call count the commands before
    /// the one that they are after.
    pub(crate) async fn time(&self) -> Result<ServerTime, RedisError> {
        Ok(milliseconds(self.ask(&cmd("TIME")).await?))
    }

    /// Deletes the key if it has this value, in one step.
    pub(crate) async fn compare_and_delete(
        &self,
        key: &str,
        value: &str,
    ) -> Result<bool, RedisError> {
        let mut eval = cmd("EVAL");
        eval.arg(COMPARE_AND_DELETE).arg(1).arg(key).arg(value);
        Ok(self.ask::<u32>(&eval).await? == 1)
    }

    /// Sends the transaction if the key has this value, and does not change meanwhile. Tries again
    /// if it does.
    pub(crate) async fn if_unchanged(
        &self,
        key: &str,
        value: &str,
        transaction: &Pipeline,
    ) -> Result<bool, RedisError> {
        let mut connection = self.watching.lock().await;
        loop {
            let () = cmd("WATCH").arg(key).query_async(&mut *connection).await?;
            let found: Option<String> = cmd("GET").arg(key).query_async(&mut *connection).await?;
            if found.as_deref() != Some(value) {
                let () = cmd("UNWATCH").query_async(&mut *connection).await?;
                return Ok(false);
            }
            let done: Option<redis::Value> = transaction.query_async(&mut *connection).await?;
            if done.is_some() {
                return Ok(true);
            }
        }
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Store")
    }
}

/// The server's word for it, such as `WRONGTYPE`, is part of what a specimen shows.
pub(crate) fn failed(error: RedisError) -> BackendError {
    match error.code() {
        Some(_) => BackendError::rejected(error.to_string()).with_source(error),
        None => BackendError::outcome_unknown("no answer").with_source(error),
    }
}

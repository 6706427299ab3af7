//! A connection of either client library, for locks that are made by hand.

use fred::error::ErrorKind;
use fred::prelude::{
    Client, ClientLike, Config, Expiration, KeysInterface, ListInterface, LuaInterface, SetOptions,
    Value,
};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue};

use crate::library::Library;
use crate::{LEASE_MS, Result};

/// The timeout of one `BLPOP`, in seconds.
const BLPOP_TIMEOUT: f64 = 1.0;

/// A connection that clones share.
#[derive(Clone, Debug)]
pub(crate) enum Connection {
    RedisRs(MultiplexedConnection),
    Fred(Client),
}

impl Connection {
    pub(crate) async fn new(library: Library, url: &str) -> Result<Self> {
        Self::with_config(library, url, &AsyncConnectionConfig::new()).await
    }

    /// Connects so that `BLPOP` may block the connection.
    pub(crate) async fn blocking(library: Library, url: &str) -> Result<Self> {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        Self::with_config(library, url, &config).await
    }

    /// Only the `redis` crate needs the configuration.
    async fn with_config(
        library: Library,
        url: &str,
        config: &AsyncConnectionConfig,
    ) -> Result<Self> {
        Ok(match library {
            Library::RedisRs => {
                let client = redis::Client::open(url)?;
                let connection = client.get_multiplexed_async_connection_with_config(config);
                Self::RedisRs(connection.await?)
            }
            Library::Fred => {
                let client = Client::new(Config::from_url(url)?, None, None, None);
                client.init().await?;
                Self::Fred(client)
            }
        })
    }

    /// Loads a script. Returns its hash.
    pub(crate) async fn load(&self, script: &str) -> Result<String> {
        Ok(match self {
            Self::RedisRs(connection) => {
                let mut command = redis::cmd("SCRIPT");
                command.arg("LOAD").arg(script);
                command.query_async(&mut connection.clone()).await?
            }
            Self::Fred(client) => client.script_load(script).await?,
        })
    }

    /// Runs a loaded script. Returns whether its answer is 1.
    pub(crate) async fn run<const KEYS: usize>(
        &self,
        hash: &str,
        keys: [&str; KEYS],
        arguments: &[&str],
    ) -> Result<bool> {
        Ok(match self {
            Self::RedisRs(connection) => {
                // `Script` sends the same command, but copies its arguments once more.
                let mut command = redis::cmd("EVALSHA");
                command.arg(hash).arg(KEYS).arg(&keys).arg(arguments);
                command.query_async(&mut connection.clone()).await?
            }
            Self::Fred(client) => {
                let arguments = arguments.iter().map(|it| Value::from(*it)).collect();
                let answer: i64 = client.evalsha(hash, &keys, Value::Array(arguments)).await?;
                answer == 1
            }
        })
    }

    /// `SET key owner NX PX lease`. Returns whether the key was free.
    pub(crate) async fn set_if_free(&self, key: &str, owner: &str) -> Result<bool> {
        Ok(match self {
            Self::RedisRs(connection) => {
                let mut set = redis::cmd("SET");
                set.arg(key).arg(owner).arg("NX").arg("PX").arg(LEASE_MS);
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
    pub(crate) async fn pop(&self, list: &str) -> Result<Option<String>> {
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

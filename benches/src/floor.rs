//! The floors: the minimum cost of a lock and of a hand-over on each client library.
//!
//! The floor of a lock is `SET key value NX PX lease` and a compare-and-delete script, over one
//! connection that clones share. The floor of a hand-over is one message from one connection to
//! another.

use std::time::{Duration, Instant};

use fred::prelude::{
    Client, ClientLike, Config, EventInterface, Expiration, KeysInterface, LuaInterface,
    PubsubInterface, SetOptions,
};
use fred::types::{Builder, RespVersion};
use futures_util::future::join;
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, AsyncConnectionConfig, ProtocolVersion, PushKind, Script};
use tokio::sync::mpsc::unbounded_channel;

use crate::samples::Samples;
use crate::{COMPARE_AND_DELETE, LEASE_MS, Result};

/// A lock made of `SET NX PX` and a script that the server has already loaded.
#[derive(Clone, Debug)]
pub struct Floor {
    connection: Connection,
    /// The hash of the script.
    release: String,
}

#[derive(Clone, Debug)]
enum Connection {
    RedisRs(MultiplexedConnection),
    Fred(Client),
}

impl Floor {
    /// Connects through the `redis` crate and loads the script.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn through_redis_rs(url: &str) -> Result<Self> {
        let client = redis::Client::open(url)?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let release = Script::new(COMPARE_AND_DELETE);
        let release = release.prepare_invoke().load_async(&mut connection).await?;
        Ok(Self {
            connection: Connection::RedisRs(connection),
            release,
        })
    }

    /// Connects through `fred` and loads the script.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn through_fred(url: &str) -> Result<Self> {
        let client = Client::new(Config::from_url(url)?, None, None, None);
        client.init().await?;
        let release = client.script_load(COMPARE_AND_DELETE).await?;
        Ok(Self {
            connection: Connection::Fred(client),
            release,
        })
    }

    /// Acquires the lock. Returns whether it was free.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn acquire(&self, key: &str, owner: u64) -> Result<bool> {
        match &self.connection {
            Connection::RedisRs(connection) => {
                let mut connection = connection.clone();
                let set = set_if_free(key, owner);
                Ok(set.query_async(&mut connection).await?)
            }
            Connection::Fred(client) => {
                let lease = Some(Expiration::PX(LEASE_MS));
                let only_if_free = Some(SetOptions::NX);
                let set = client.set(key, owner.to_string(), lease, only_if_free, false);
                let set: Option<String> = set.await?;
                Ok(set.is_some())
            }
        }
    }

    /// Releases the lock. Returns whether `owner` held it.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn release(&self, key: &str, owner: u64) -> Result<bool> {
        match &self.connection {
            Connection::RedisRs(connection) => {
                let mut connection = connection.clone();
                // `Script` sends the same command, but copies its arguments once more.
                let mut command = redis::cmd("EVALSHA");
                command.arg(&self.release).arg(1).arg(key).arg(owner);
                Ok(command.query_async(&mut connection).await?)
            }
            Connection::Fred(client) => {
                let deleted = client.evalsha(&*self.release, key, owner.to_string());
                let deleted: i64 = deleted.await?;
                Ok(deleted == 1)
            }
        }
    }
}

/// `SET key owner NX PX lease`.
pub(crate) fn set_if_free(key: &str, owner: impl redis::ToRedisArgs) -> redis::Cmd {
    let mut set = redis::cmd("SET");
    set.arg(key).arg(owner).arg("NX").arg("PX").arg(LEASE_MS);
    set
}

const CHANNEL: &str = "floor";
/// About as long as a pushed grant.
const MESSAGE: &str = "0123456789012345678901234567890123456789";
const WARM_UP: usize = 200;

/// Times `rounds` messages through the `redis` crate, from just before `PUBLISH` is sent until the
/// subscriber has the message. Publisher and subscriber run in one task and use RESP3, like
/// leasehold.
///
/// # Errors
/// Those of the client library.
///
/// # Panics
/// If the server drops the connection.
pub async fn message_through_redis_rs(url: &str, rounds: usize) -> Result<Samples> {
    let info = redis::Client::open(url)?.get_connection_info().clone();
    let settings = info.redis_settings().clone();
    let settings = settings.set_protocol(ProtocolVersion::RESP3);
    let client = redis::Client::open(info.set_redis_settings(settings))?;
    let (sender, mut pushes) = unbounded_channel();
    let config = AsyncConnectionConfig::new().set_push_sender(sender);
    let subscriber = client.get_multiplexed_async_connection_with_config(&config);
    let mut subscriber = subscriber.await?;
    subscriber.subscribe(CHANNEL).await?;
    let mut publisher = client.get_multiplexed_async_connection().await?;
    let mut samples = Samples::default();
    for round in 0..WARM_UP + rounds {
        let begun = Instant::now();
        let received = async {
            while pushes.recv().await.expect("connected").kind != PushKind::Message {}
            begun.elapsed()
        };
        let published = publisher.publish::<_, _, ()>(CHANNEL, MESSAGE);
        let (published, took) = join(published, received).await;
        published?;
        keep(&mut samples, round, took);
    }
    Ok(samples)
}

/// Times `rounds` messages through `fred`, like [`message_through_redis_rs`].
///
/// # Errors
/// Those of the client library.
///
/// # Panics
/// If the server drops the connection.
pub async fn message_through_fred(url: &str, rounds: usize) -> Result<Samples> {
    let connect = async || -> Result<Client> {
        let client = Builder::from_config(Config::from_url(url)?)
            .with_config(|config| config.version = RespVersion::RESP3)
            .build()?;
        client.init().await?;
        Ok(client)
    };
    let subscriber = connect().await?;
    let mut messages = subscriber.message_rx();
    subscriber.subscribe(CHANNEL).await?;
    let publisher = connect().await?;
    // `subscribe` returns before the server has confirmed the subscription.
    while publisher.publish::<i64, _, _>(CHANNEL, MESSAGE).await? == 0 {}
    messages.recv().await?;
    let mut samples = Samples::default();
    for round in 0..WARM_UP + rounds {
        let begun = Instant::now();
        let received = async {
            messages.recv().await.expect("connected");
            begun.elapsed()
        };
        let published = publisher.publish::<i64, _, _>(CHANNEL, MESSAGE);
        let (published, took) = join(published, received).await;
        published?;
        keep(&mut samples, round, took);
    }
    Ok(samples)
}

fn keep(samples: &mut Samples, round: usize, took: Duration) {
    if round >= WARM_UP {
        samples.add(took);
    }
}

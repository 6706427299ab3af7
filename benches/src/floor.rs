//! The floors: the minimum cost of a lock and of a hand-over on each client library.

use std::time::{Duration, Instant};

use fred::prelude::{Client, ClientLike, Config, EventInterface, PubsubInterface};
use fred::types::{Builder, RespVersion};
use futures_util::future::join;
use redis::{AsyncCommands, AsyncConnectionConfig, ProtocolVersion, PushKind};
use tokio::sync::mpsc::unbounded_channel;

use crate::Result;
use crate::connection::Connection;
use crate::library::Library;
use crate::samples::Samples;

/// Deletes the key if it still holds the caller's value. Returns 1 if it did.
const COMPARE_AND_DELETE: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

/// Locks made of `SET NX PX` and a script that the server has already loaded, over one connection.
#[derive(Clone, Debug)]
pub struct Floor {
    connection: Connection,
    /// The hash of the script.
    release: String,
}

impl Floor {
    /// Connects the floor of a lock.
    pub async fn connect(library: Library, url: &str) -> Result<Self> {
        let connection = Connection::new(library, url).await?;
        let release = connection.load(COMPARE_AND_DELETE).await?;
        Ok(Self {
            connection,
            release,
        })
    }

    /// Acquires the lock. Returns whether it was free.
    pub(crate) async fn acquire(&self, key: &str, owner: &str) -> Result<bool> {
        self.connection.set_if_free(key, owner).await
    }

    /// Releases the lock. Returns whether `owner` held it.
    pub(crate) async fn release(&self, key: &str, owner: &str) -> Result<bool> {
        self.connection.run(&self.release, [key], &[owner]).await
    }
}

const CHANNEL: &str = "floor";
/// About as long as a pushed grant.
const MESSAGE: &str = "0123456789012345678901234567890123456789";
const WARM_UP: usize = 200;

/// Times `messages` messages, from `PUBLISH` on one connection to the message on another.
pub(crate) async fn time_messages(library: Library, url: &str, messages: usize) -> Result<Samples> {
    match library {
        Library::RedisRs => message_through_redis_rs(url, messages).await,
        Library::Fred => message_through_fred(url, messages).await,
    }
}

/// Times `rounds` messages through the `redis` crate. Publisher and subscriber use RESP3, like leasehold.
async fn message_through_redis_rs(url: &str, rounds: usize) -> Result<Samples> {
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
        let publish = async { Ok(publisher.publish(CHANNEL, MESSAGE).await?) };
        let receive =
            async { while pushes.recv().await.expect("connected").kind != PushKind::Message {} };
        let took = time_message(publish, receive).await?;
        if round >= WARM_UP {
            samples.add(took);
        }
    }
    Ok(samples)
}

/// Times `rounds` messages through `fred`, like [`message_through_redis_rs`].
async fn message_through_fred(url: &str, rounds: usize) -> Result<Samples> {
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
        let publish = async { Ok(publisher.publish(CHANNEL, MESSAGE).await?) };
        let receive = async { drop(messages.recv().await.expect("connected")) };
        let took = time_message(publish, receive).await?;
        if round >= WARM_UP {
            samples.add(took);
        }
    }
    Ok(samples)
}

/// The time from just before `PUBLISH` is sent until the subscriber has the message. Both run in one task.
async fn time_message(
    publish: impl Future<Output = Result<()>>,
    receive: impl Future<Output = ()>,
) -> Result<Duration> {
    let begun = Instant::now();
    let received = async {
        receive.await;
        begun.elapsed()
    };
    let (published, took) = join(publish, received).await;
    published?;
    Ok(took)
}

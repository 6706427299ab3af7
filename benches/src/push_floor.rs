//! The floor of a hand-over: one message from a connection to another, with nothing around it.
//!
//! The time goes from just before `PUBLISH` is sent until the subscriber has the message, both in
//! one task of one program. Each client library does it by the same means as leasehold on it:
//! RESP3, messages pushed over a connection of their own.

use std::time::Instant;

use fred::prelude::{Client, ClientLike, Config, EventInterface, PubsubInterface};
use fred::types::{Builder, RespVersion};
use futures_util::future::join;
use redis::{AsyncCommands, AsyncConnectionConfig, ProtocolVersion, PushKind};
use tokio::sync::mpsc::unbounded_channel;

use crate::Result;
use crate::samples::Samples;

const CHANNEL: &str = "floor";
/// About as long as a pushed grant.
const MESSAGE: &str = "0123456789012345678901234567890123456789";
const WARM_UP: usize = 200;

/// Measures `rounds` messages through the `redis` crate.
///
/// # Errors
/// Those of the client library.
///
/// # Panics
/// If the server drops the connection.
pub async fn through_redis_rs(url: &str, rounds: usize) -> Result<Samples> {
    let info = redis::Client::open(url)?.get_connection_info().clone();
    let settings = info
        .redis_settings()
        .clone()
        .set_protocol(ProtocolVersion::RESP3);
    let client = redis::Client::open(info.set_redis_settings(settings))?;
    let (sender, mut pushes) = unbounded_channel();
    let config = AsyncConnectionConfig::new().set_push_sender(sender);
    let mut subscriber = client
        .get_multiplexed_async_connection_with_config(&config)
        .await?;
    subscriber.subscribe(CHANNEL).await?;
    let mut publisher = client.get_multiplexed_async_connection().await?;
    let mut samples = Samples::default();
    for round in 0..WARM_UP + rounds {
        let begun = Instant::now();
        let received = async {
            while pushes.recv().await.expect("connected").kind != PushKind::Message {}
            begun.elapsed()
        };
        let (published, took) =
            join(publisher.publish::<_, _, ()>(CHANNEL, MESSAGE), received).await;
        published?;
        if round >= WARM_UP {
            samples.add(took);
        }
    }
    Ok(samples)
}

/// Measures `rounds` messages through `fred`.
///
/// # Errors
/// Those of the client library.
///
/// # Panics
/// If the server drops the connection.
pub async fn through_fred(url: &str, rounds: usize) -> Result<Samples> {
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
    // The library does not wait for the subscription.
    while publisher.publish::<i64, _, _>(CHANNEL, MESSAGE).await? == 0 {}
    messages.recv().await?;
    let mut samples = Samples::default();
    for round in 0..WARM_UP + rounds {
        let begun = Instant::now();
        let received = async {
            messages.recv().await.expect("connected");
            begun.elapsed()
        };
        let (published, took) =
            join(publisher.publish::<i64, _, _>(CHANNEL, MESSAGE), received).await;
        published?;
        if round >= WARM_UP {
            samples.add(took);
        }
    }
    Ok(samples)
}

//! One connection, and the few commands that are sent over it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt;
use leasehold_api::ServerTime;
use leasehold_redis_common::connection::{
    ConnectError, Connection, ConnectionEvent, Connector, Failure, UnboundedSender,
};
use leasehold_redis_common::script::{Call, NO_NOTICES};
use leasehold_redis_common::{Options, RespVersion, check_url};
use redis::aio::{ConnectionLike, MultiplexedConnection, PubSubSink, PubSubStream};
use redis::{AsyncConnectionConfig, Client, Cmd, ProtocolVersion, PushInfo, PushKind, Value};
use tokio::task::AbortHandle;

use crate::error::failure;

/// Digits of the number of a call's keys.
const LONGEST_COUNT: usize = 4;

/// Where connections come from.
pub(crate) enum RedisConnector {
    /// A client that opens them.
    Own(Client, RespVersion),
    /// One connection of the user's, which cannot be replaced.
    User(Arc<dyn UserConnection>),
}

/// A user's connection, whose type is forgotten.
pub(crate) trait UserConnection: Send + Sync {
    /// A handle for one command; they share the connection.
    fn handle(&self) -> Box<dyn ConnectionLike + Send>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> UserConnection for C {
    fn handle(&self) -> Box<dyn ConnectionLike + Send> {
        Box::new(self.clone())
    }
}

impl RedisConnector {
    /// Connections to the server that `url` names.
    pub(crate) fn from_url(url: &str, resp: RespVersion) -> Result<Self, ConnectError> {
        check_url(url)?;
        let client = Client::open(url).map_err(|error| ConnectError::unusable("URL", &error))?;
        Self::own(&client, resp)
    }

    /// Connections as `client` opens them, but with the given protocol: only with RESP3 does the
    /// library tell when one ends, and deliver messages over one that also takes commands.
    pub(crate) fn own(client: &Client, resp: RespVersion) -> Result<Self, ConnectError> {
        let info = client.get_connection_info().clone();
        let protocol = match resp {
            RespVersion::Resp2 => ProtocolVersion::RESP2,
            RespVersion::Resp3 => ProtocolVersion::RESP3,
        };
        let settings = info.redis_settings().clone().set_protocol(protocol);
        let client = Client::open(info.set_redis_settings(settings))
            .map_err(|error| ConnectError::unusable("client", &error))?;
        Ok(Self::Own(client, resp))
    }
}

impl Connector for RedisConnector {
    type Connection = RedisConnection;

    fn is_own(&self) -> bool {
        matches!(self, Self::Own(..))
    }

    fn address(&self) -> Option<String> {
        match self {
            Self::Own(client, _) => Some(client.get_connection_info().addr().to_string()),
            Self::User(_) => None,
        }
    }

    async fn open(
        &self,
        _: &Options,
        events: Option<UnboundedSender<ConnectionEvent>>,
    ) -> Result<RedisConnection, Failure> {
        let (client, resp) = match self {
            Self::User(connection) => return Ok(RedisConnection::User(Arc::clone(connection))),
            Self::Own(client, resp) => (client, *resp),
        };
        let closed = Arc::new(AtomicBool::new(false));
        let mut config = AsyncConnectionConfig::new()
            // The callers' own limits hold; these would be second ones, of other lengths.
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let mut subscriber = None;
        if resp == RespVersion::Resp3 {
            let noticed = Arc::clone(&closed);
            config = config.set_push_sender(move |push| notice(push, &noticed, events.as_ref()));
        } else if let Some(events) = events {
            let (sink, messages) = client.get_async_pubsub().await.map_err(failure)?.split();
            let pump = tokio::spawn(pump(messages, events)).abort_handle();
            subscriber = Some(Subscriber { sink, pump });
        }
        let connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(failure)?;
        Ok(RedisConnection::Own {
            connection,
            closed,
            subscriber,
        })
    }
}

/// Passes messages on, and tells when their connection ends.
async fn pump(mut messages: PubSubStream, events: UnboundedSender<ConnectionEvent>) {
    while let Some(message) = messages.next().await {
        let payload = message.get_payload_bytes().to_vec();
        if events.send(ConnectionEvent::Message(payload)).is_err() {
            return;
        }
    }
    // Fails when nobody listens any more.
    let _ = events.send(ConnectionEvent::Closed);
}

fn notice(
    push: PushInfo,
    closed: &AtomicBool,
    events: Option<&UnboundedSender<ConnectionEvent>>,
) -> Result<(), redis::aio::SendError> {
    let event = match push.kind {
        PushKind::Disconnection => {
            closed.store(true, Ordering::Release);
            ConnectionEvent::Closed
        }
        PushKind::Message => match push.data.into_iter().nth(1) {
            Some(Value::BulkString(payload)) => ConnectionEvent::Message(payload),
            _ => ConnectionEvent::Missed,
        },
        _ => return Ok(()),
    };
    if let Some(events) = events {
        // Fails when nobody listens any more: then the connection is about to be dropped.
        let _ = events.send(event);
    }
    Ok(())
}

/// One connection. Dropping it closes it, unless it is the user's.
pub(crate) enum RedisConnection {
    /// Opened here.
    Own {
        connection: MultiplexedConnection,
        /// Set when it has ended, if the library tells.
        closed: Arc<AtomicBool>,
        /// Where messages come in, if that is another connection.
        subscriber: Option<Subscriber>,
    },
    /// The user's.
    User(Arc<dyn UserConnection>),
}

/// A connection that takes no commands but those of subscriptions, as RESP2 has it.
pub(crate) struct Subscriber {
    sink: PubSubSink,
    pump: AbortHandle,
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

impl Connection for RedisConnection {
    type Reply = Vec<u8>;

    fn is_closed(&self) -> bool {
        match self {
            Self::Own { closed, .. } => closed.load(Ordering::Acquire),
            Self::User(_) => false,
        }
    }

    async fn eval(
        &self,
        name: &'static str,
        script: &str,
        call: &Call,
    ) -> Result<Vec<u8>, Failure> {
        let elements = call.elements();
        let size = name.len() + script.len() + LONGEST_COUNT + call.bytes();
        let mut command = Cmd::with_capacity(3 + 2 * elements, size);
        command.arg(name).arg(script).arg(elements);
        for piece in call.keys().chain(call.args()) {
            command.arg(piece);
        }
        match self.send(&command).await? {
            Value::BulkString(bytes) => Ok(bytes),
            other => Err(Failure::garbled(name, &other)),
        }
    }

    async fn info(&self) -> Result<String, Failure> {
        match self.send(redis::cmd("INFO").arg("server")).await? {
            Value::BulkString(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Value::VerbatimString { text, .. } => Ok(text),
            // A cluster connection asks every node.
            Value::Map(_) => Err(Failure::misconfigured(
                "INFO was answered by several servers: clusters are not supported",
            )),
            other => Err(Failure::garbled("INFO", &other)),
        }
    }

    async fn time(&self) -> Result<ServerTime, Failure> {
        let answer = self.send(&redis::cmd("TIME")).await?;
        match redis::from_redis_value_ref::<(u64, u64)>(&answer) {
            Ok((seconds, micros)) => Ok(ServerTime::from_micros(seconds * 1_000_000 + micros)),
            Err(_) => Err(Failure::garbled("TIME", &answer)),
        }
    }

    async fn ping(&self) -> Result<(), Failure> {
        match self {
            Self::Own {
                subscriber: Some(subscriber),
                ..
            } => {
                let pong: Result<Value, _> = subscriber.sink.clone().ping().await;
                pong.map(drop).map_err(failure)
            }
            _ => self.send(&redis::cmd("PING")).await.map(drop),
        }
    }

    async fn subscribe(&self, channel: &str) -> Result<(), Failure> {
        match self {
            Self::Own {
                subscriber: Some(subscriber),
                ..
            } => {
                subscriber
                    .sink
                    .clone()
                    .subscribe(channel)
                    .await
                    .map_err(failure)?;
                self.is_heard(channel).await
            }
            Self::Own { connection, .. } => {
                let subscribed = connection.clone().subscribe(channel).await;
                subscribed.map_err(failure)
            }
            Self::User(_) => Err(Failure::lost("a shared connection cannot subscribe")),
        }
    }
}

impl RedisConnection {
    /// Makes sure that who listens on the other connection listens to the server that this one
    /// has asked for its name: the notices' stamps are of that server's clock.
    async fn is_heard(&self, channel: &str) -> Result<(), Failure> {
        let nothing = redis::cmd("PUBLISH").arg(channel).arg(&NO_NOTICES).clone();
        match self.send(&nothing).await? {
            Value::Int(1..) => Ok(()),
            Value::Int(_) => Err(Failure::lost("it is another server that was subscribed to")),
            other => Err(Failure::garbled("PUBLISH", &other)),
        }
    }

    async fn send(&self, command: &Cmd) -> Result<Value, Failure> {
        let answer = match self {
            Self::Own { connection, .. } => connection.clone().send_packed_command(command).await,
            Self::User(connection) => connection.handle().req_packed_command(command).await,
        };
        answer.and_then(Value::extract_error).map_err(failure)
    }
}

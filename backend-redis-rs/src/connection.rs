//! Connections through the `redis` crate.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures_util::StreamExt;
use leasehold_api::{ConnectError, InvalidInput, ServerTime};
use leasehold_redis_common::RespVersion;
use leasehold_redis_common::connection::{
    AbortOnDrop, Bytes, Connection, ConnectionEvent, Connector, Failure, FailureKind, ServerUrl,
    SlotRange, UnboundedSender, time_of,
};
use leasehold_redis_common::script::AddressedCall;
use redis::aio::{ConnectionLike, MultiplexedConnection, PubSubSink, PubSubStream};
use redis::{AsyncConnectionConfig, Cmd, PushInfo, PushKind, Value};

use crate::error::failure;
use crate::source::Source;

/// The maximum number of digits of a call's number of keys.
const LONGEST_COUNT: usize = 4;

/// Opens connections, or shares the user's.
pub(crate) enum RedisConnector {
    /// Opens connections. Only with RESP3 does the library report the end of a connection, and
    /// deliver messages over a connection for commands.
    Own(Source, RespVersion),
    /// The user's connection, which can't be replaced.
    User(Arc<dyn UserConnection>),
}

pub(crate) trait UserConnection: Send + Sync {
    /// A handle for one command. All handles share the connection.
    fn handle(&self) -> Box<dyn ConnectionLike + Send>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> UserConnection for C {
    fn handle(&self) -> Box<dyn ConnectionLike + Send> {
        Box::new(self.clone())
    }
}

#[async_trait]
impl Connector for RedisConnector {
    fn is_own(&self) -> bool {
        matches!(self, Self::Own(..))
    }

    fn library(&self) -> &'static str {
        "redis-rs"
    }

    fn address(&self) -> Option<String> {
        match self {
            Self::Own(source, _) => Some(source.address()),
            Self::User(_) => None,
        }
    }

    fn host(&self) -> Option<(String, u16)> {
        match self {
            Self::Own(source, _) => source.host(),
            Self::User(_) => None,
        }
    }

    fn at(&self, url: &ServerUrl) -> Result<Arc<dyn Connector>, ConnectError> {
        match self {
            Self::Own(source, resp) => Ok(Arc::new(Self::Own(source.at(url, *resp)?, *resp))),
            Self::User(_) => Err(InvalidInput::setting("connection", "it is the user's").into()),
        }
    }

    async fn open(
        &self,
        to: Option<SocketAddr>,
        events: Option<UnboundedSender<ConnectionEvent>>,
    ) -> Result<Arc<dyn Connection>, Failure> {
        let (source, resp) = match self {
            Self::User(connection) => {
                let connection = RedisConnection::User(Arc::clone(connection));
                // A `ConnectionManager` connects again only when a command has failed. If that was the first one of the
                // attempt, each outage would end one pause later.
                drop(connection.time().await);
                return Ok(Arc::new(connection));
            }
            Self::Own(source, resp) => (source, *resp),
        };
        let closed = Arc::new(AtomicBool::new(false));
        let mut config = AsyncConnectionConfig::new()
            // The caller has its own time limits.
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let mut subscriber = None;
        if resp == RespVersion::Resp3 {
            let ended = Arc::clone(&closed);
            config = config.set_push_sender(move |push| report_push(push, &ended, events.as_ref()));
        } else if let Some(events) = events {
            let (sink, messages) = source.subscriber(to).await?.split();
            let reader = tokio::spawn(forward_messages(messages, events));
            let reader = AbortOnDrop(reader.abort_handle());
            subscriber = Some((sink, reader));
        }
        let (connection, driver) = source.connection(to, config).await?;
        Ok(Arc::new(RedisConnection::Own {
            connection,
            _driver: driver,
            closed,
            subscriber,
        }))
    }
}

/// Forwards messages, and reports the end of their connection.
async fn forward_messages(mut messages: PubSubStream, events: UnboundedSender<ConnectionEvent>) {
    while let Some(message) = messages.next().await {
        let payload = message.get_payload_bytes().to_vec();
        if events.send(ConnectionEvent::Message(payload)).is_err() {
            return;
        }
    }
    // Fails if the receiver was dropped.
    let _ = events.send(ConnectionEvent::Closed);
}

fn report_push(
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
        PushKind::SMessage => shard_message(push.data),
        PushKind::SUnsubscribe => match push.data.into_iter().next() {
            Some(Value::BulkString(channel)) => {
                ConnectionEvent::Unsubscribed(String::from_utf8_lossy(&channel).into_owned())
            }
            _ => return Ok(()),
        },
        _ => return Ok(()),
    };
    if let Some(events) = events {
        // Fails if the receiver was dropped. The connection will be dropped soon.
        let _ = events.send(event);
    }
    Ok(())
}

fn shard_message(data: Vec<Value>) -> ConnectionEvent {
    let mut data = data.into_iter();
    match (data.next(), data.next()) {
        (Some(Value::BulkString(channel)), Some(Value::BulkString(payload))) => {
            let channel = String::from_utf8_lossy(&channel).into_owned();
            ConnectionEvent::ShardMessage { channel, payload }
        }
        _ => ConnectionEvent::Missed,
    }
}

fn server_time(answer: &Value) -> Result<ServerTime, Failure> {
    let time = match answer {
        Value::Array(_) => redis::from_redis_value_ref(answer).ok(),
        _ => None,
    };
    let (seconds, micros) = time.ok_or_else(|| Failure::garbled("TIME", answer))?;
    Ok(time_of(seconds, micros))
}

/// Reads an element of the answer to `CLUSTER SLOTS`: the first and last slot, then the primary.
fn slot_range(element: &Value) -> Option<SlotRange> {
    let number = |value: &Value| match value {
        Value::Int(number) => u16::try_from(*number).ok(),
        _ => None,
    };
    let [first, last, primary, ..] = element.as_sequence()? else {
        return None;
    };
    let [host, port, ..] = primary.as_sequence()? else {
        return None;
    };
    Some(SlotRange {
        first: number(first)?,
        last: number(last)?,
        host: match host {
            Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
            Value::Nil => String::new(),
            _ => return None,
        },
        port: number(port)?,
    })
}

/// One connection. Dropping it closes it, unless it is the user's.
pub(crate) enum RedisConnection {
    Own {
        connection: MultiplexedConnection,
        /// The task that drives it, if the library doesn't end it.
        _driver: Option<AbortOnDrop>,
        /// Set when the library reports the end of the connection.
        closed: Arc<AtomicBool>,
        /// The connection for messages, if it is a separate one (RESP2), and the task that reads them.
        subscriber: Option<(PubSubSink, AbortOnDrop)>,
    },
    User(Arc<dyn UserConnection>),
}

#[async_trait]
impl Connection for RedisConnection {
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
        call: &AddressedCall<'_>,
        asking: bool,
    ) -> Result<Bytes, Failure> {
        let size = name.len() + script.len() + LONGEST_COUNT + call.bytes();
        let mut command = Cmd::with_capacity(3 + call.word_count(), size);
        command.arg(name).arg(script).arg(call.key_count());
        for word in call.words() {
            command.arg(word);
        }
        let answer = if asking {
            self.send_asking(command).await?
        } else {
            self.send(&command).await?
        };
        match answer {
            Value::BulkString(bytes) => Ok(bytes.into()),
            other => Err(Failure::garbled(name, &other)),
        }
    }

    async fn slots(&self) -> Result<Vec<SlotRange>, Failure> {
        let answer = self.send(redis::cmd("CLUSTER").arg("SLOTS")).await?;
        let ranges = match &answer {
            Value::Array(ranges) => ranges.iter().map(slot_range).collect(),
            _ => None,
        };
        ranges.ok_or_else(|| Failure::garbled("CLUSTER SLOTS", &answer))
    }

    async fn info(&self, section: Option<&'static str>) -> Result<String, Failure> {
        match self.send(redis::cmd("INFO").arg(section)).await? {
            Value::BulkString(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Value::VerbatimString { text, .. } => Ok(text),
            // A cluster connection asks every node.
            Value::Map(_) => Err(Failure::misconfigured(
                "INFO was answered by several servers; for a cluster, connect with a URL that \
                 starts with redis-cluster://",
            )),
            other => Err(Failure::garbled("INFO", &other)),
        }
    }

    async fn primary_of(&self, service: &str) -> Result<Option<(String, u16)>, Failure> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
        let answer = self.send(&question).await?;
        redis::from_redis_value_ref(&answer).map_err(|_| Failure::garbled("SENTINEL", &answer))
    }

    async fn time(&self) -> Result<ServerTime, Failure> {
        server_time(&self.send(&redis::cmd("TIME")).await?)
    }

    /// The library reports each subscription that the server ends.
    async fn check_subscriptions(&self, _: &[String]) -> Result<(), Failure> {
        match self {
            Self::Own {
                subscriber: Some((sink, _)),
                ..
            } => {
                let pong: Result<Value, _> = sink.clone().ping().await;
                pong.map(drop).map_err(failure)
            }
            _ => self.send(&redis::cmd("PING")).await.map(drop),
        }
    }

    async fn subscribe(&self, channel: &str) -> Result<(), Failure> {
        match self {
            Self::Own {
                subscriber: Some((sink, _)),
                ..
            } => {
                let subscribed = sink.clone().subscribe(channel).await;
                subscribed.map_err(failure)?;
                self.check_subscriber(channel).await
            }
            Self::Own { connection, .. } => {
                let subscribed = connection.clone().subscribe(channel).await;
                subscribed.map_err(failure)
            }
            Self::User(_) => Err(Failure::lost("a shared connection cannot subscribe")),
        }
    }

    async fn subscribe_shard(&self, channel: &str) -> Result<(), Failure> {
        // The library has this command for its clusters only.
        let answer = self.send(redis::cmd("SSUBSCRIBE").arg(channel)).await?;
        match &answer {
            Value::Push {
                kind: PushKind::SSubscribe,
                data,
            } if matches!(&data[..], [Value::BulkString(name), ..] if name == channel.as_bytes()) => {
                Ok(())
            }
            // Perhaps the end of another subscription, which the library takes for an answer.
            _ => Err(Failure::garbled("SSUBSCRIBE", &answer)),
        }
    }

    async fn unsubscribe_shard(&self, channel: &str) -> Result<(), Failure> {
        let unsubscribed = self.send(redis::cmd("SUNSUBSCRIBE").arg(channel)).await;
        unsubscribed.map(drop)
    }
}

impl RedisConnection {
    /// Checks that the subscriber is connected to the same server as this connection. Only that server
    /// counts it as a listener. The library has waited for the confirmation, so the server knows it by now.
    async fn check_subscriber(&self, channel: &str) -> Result<(), Failure> {
        let mut question = redis::cmd("PUBSUB");
        let answer = match self.send(question.arg("NUMSUB").arg(channel)).await {
            // Without the right, nobody can tell, the scripts neither.
            Err(refused) if matches!(refused.kind(), FailureKind::Answered(_)) => return Ok(()),
            answer => answer?,
        };
        match answer.as_sequence() {
            Some([_, Value::Int(1..)]) => Ok(()),
            Some([_, Value::Int(_)]) => Err(Failure::lost("subscribed to another server")),
            _ => Err(Failure::garbled("PUBSUB NUMSUB", &answer)),
        }
    }

    /// Sends a command right behind `ASKING`.
    async fn send_asking(&self, command: Cmd) -> Result<Value, Failure> {
        let Self::Own { connection, .. } = self else {
            return Err(Failure::misconfigured("a shared connection has no cluster"));
        };
        let mut pipeline = redis::Pipeline::with_capacity(2);
        pipeline.cmd("ASKING").add_command(command);
        let answers = connection
            .clone()
            .send_packed_commands(&pipeline, 0, 2)
            .await;
        let mut answers = answers.map_err(failure)?.into_iter();
        let (asked, answer) = (answers.next(), answers.next());
        let (Some(asked), Some(answer)) = (asked, answer) else {
            return Err(Failure::lost("an answer to ASKING is missing"));
        };
        // Without ASKING, the node redirects the command. The first error is the cause.
        answer
            .extract_error()
            .map_err(|error| failure(asked.extract_error().err().unwrap_or(error)))
    }

    async fn send(&self, command: &Cmd) -> Result<Value, Failure> {
        let answer = match self {
            Self::Own { connection, .. } => connection.clone().send_packed_command(command).await,
            Self::User(connection) => connection.handle().req_packed_command(command).await,
        };
        answer.and_then(Value::extract_error).map_err(failure)
    }
}

#[cfg(test)]
mod tests {
    use leasehold_redis_common::Options;
    use leasehold_test_servers::RedisServer;
    use proptest::prelude::*;

    use super::*;

    /// Of all the addresses of a name, the connection leads to the one that is asked for.
    #[tokio::test(flavor = "multi_thread")]
    async fn connection_leads_to_one_address() {
        let server = tokio::task::block_in_place(RedisServer::start);
        let url = ServerUrl::parse("redis://locks.invalid:1", false).expect("a URL");
        let source = Source::from_url(&url, &Options::new()).expect("good settings");
        let connector = RedisConnector::Own(source, RespVersion::Resp3);
        assert_eq!(connector.host(), Some(("locks.invalid".into(), 1)));
        let connection = connector.open(Some(server.address()), None).await;
        let connection = connection.expect("a server that runs");
        connection.time().await.expect("an answer");
    }

    /// What a server may answer to `CLUSTER SLOTS`, if it isn't one that we know.
    fn answers() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            prop_oneof![0..70_000_i64, any::<i64>()].prop_map(Value::Int),
            prop::collection::vec(any::<u8>(), 0..9).prop_map(Value::BulkString),
            Just(Value::Nil),
            any::<String>().prop_map(Value::SimpleString),
        ];
        leaf.prop_recursive(3, 24, 5, |inner| {
            prop::collection::vec(inner, 0..5).prop_map(Value::Array)
        })
    }

    proptest! {
        #[test]
        fn any_answer_is_slots_or_none(first in answers(), last in answers(), primary in answers()) {
            let _ = slot_range(&first);
            let numbers = (first.clone(), last.clone());
            let element = Value::Array(vec![first, last, primary]);
            if let Some(range) = slot_range(&element) {
                let number = |number: u16| Value::Int(number.into());
                prop_assert_eq!(numbers, (number(range.first), number(range.last)));
            }
        }
    }
}

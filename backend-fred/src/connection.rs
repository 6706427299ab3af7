//! Connections through the `fred` crate.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fred::bytes::Bytes;
use fred::clients::Client;
use fred::error::{Error, ErrorKind};
use fred::interfaces::{ClientLike, EventInterface, PubsubInterface};
use fred::types::config::{Config, Server, ServerConfig};
use fred::types::{
    Builder, ClusterHash, ConnectHandle, CustomCommand, Message, MessageKind, RespVersion, Value,
};
use futures_util::future::{Either, select};
use leasehold_api::{ConnectError, InvalidInput, ServerTime};
use leasehold_redis_common::connection::{
    AbortOnDrop, Address, Connection, ConnectionEvent, Connector, Failure, FailureKind, ServerUrl,
    SlotRange, UnboundedSender, time_of,
};
use leasehold_redis_common::script::AddressedCall;
use leasehold_redis_common::{Options, RespVersion as Resp};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::timeout;

use crate::error::failure;

/// The number of messages that the library buffers. If the task that reads them falls behind, some
/// are lost, and the library reports that.
const MESSAGE_BUFFER: usize = 1_024;
/// How often to ask whether the client is connected: the library's event can be missed.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Opens connections: it builds a client for each.
pub(crate) struct FredConnector(Box<Builder>);

impl FredConnector {
    pub(crate) fn from_url(url: &ServerUrl, options: &Options) -> Result<Self, ConnectError> {
        let mut config = Config::default();
        #[cfg(feature = "tls-rustls")]
        if url.uses_tls() {
            config.tls = Some(tls(options)?);
        }
        lead_to(&mut config, url);
        Self::new(&Builder::from_config(config), options)
    }

    pub(crate) fn from_client(client: &Client, options: &Options) -> Result<Self, ConnectError> {
        let mut builder = Builder::from_config(client.client_config());
        builder
            .set_connection_config(client.connection_config().clone())
            .set_performance_config(client.perf_config());
        Self::from_builder(&builder, options)
    }

    pub(crate) fn from_builder(builder: &Builder, options: &Options) -> Result<Self, ConnectError> {
        let config = builder.get_config();
        let tells_tls = |config: &Config| {
            matches!(config.server, ServerConfig::Unix { .. }) || library_has_tls()
        };
        if !config.is_none_or(tells_tls) {
            return Err(InvalidInput::setting(
                "configuration of fred",
                "fred is built without TLS and reads rediss:// as redis://; enable the feature \
                 tls-rustls, or pass the URL to FredBackend::connect",
            )
            .into());
        }
        if config.is_some_and(|config| config.server.is_clustered()) {
            return Err(InvalidInput::setting(
                "configuration of fred",
                "a clustered client of fred may send a command twice; pass the URL of the cluster to \
                 FredBackend::connect",
            )
            .into());
        }
        Self::new(builder, options)
    }

    /// Creates a connector with the settings of `builder`, but with the protocol version of
    /// `options` and without reconnects. A client that reconnects by itself sends commands again,
    /// and hides which server it is connected to.
    fn new(builder: &Builder, options: &Options) -> Result<Self, ConnectError> {
        let Some(config) = builder.get_config() else {
            let error = Error::new(ErrorKind::Config, "it has no client configuration");
            return Err(InvalidInput::setting("builder", error).into());
        };
        // A new builder, because a reconnect policy can't be removed.
        let mut own = Builder::from_config(config.clone());
        own.set_connection_config(builder.get_connection_config().clone())
            .set_performance_config(builder.get_performance_config().clone())
            .with_config(|config| {
                config.version = match options.resp {
                    Resp::Resp2 => RespVersion::RESP2,
                    Resp::Resp3 => RespVersion::RESP3,
                };
                config.fail_fast = true;
            })
            .with_connection_config(|config| {
                config.max_command_attempts = 1;
                config.connection_timeout = options.connect_timeout;
                config.internal_command_timeout = options.connect_timeout;
                // Without it, a small call may wait for the acknowledgement of the one before.
                config.tcp.nodelay.get_or_insert(true);
            })
            // The caller has its own time limit. The library's would need the caller's timer.
            .with_performance_config(|config| config.default_command_timeout = Duration::ZERO);
        Ok(Self(Box::new(own)))
    }
}

/// Whether the library is built with TLS, by this crate's feature or by a feature of its own. Without
/// it, a configuration no longer tells whether its URL asked for TLS.
fn library_has_tls() -> bool {
    cfg!(feature = "tls-rustls")
        || Config::from_url("rediss://localhost").map_or(true, |config| config.uses_tls())
}

fn lead_to(config: &mut Config, url: &ServerUrl) {
    config.server = match url.address.clone() {
        Address::Tcp { host, port, .. } => ServerConfig::Centralized {
            server: server_at(host, port),
        },
        Address::Unix(path) => ServerConfig::new_unix_socket(path),
    };
    config.username = url.user.clone();
    config.password = url.password.clone();
    config.database = (url.database != 0).then_some(url.database);
}

/// Leads to one of the addresses of the server. It tries them one after the other, without a limit for each.
fn lead_to_address(config: &mut Config, to: SocketAddr) {
    let ServerConfig::Centralized { server } = &mut config.server else {
        return;
    };
    #[cfg(feature = "tls-rustls")]
    let name = server
        .tls_server_name
        .take()
        .unwrap_or_else(|| server.host.clone());
    *server = server_at(to.ip().to_string(), to.port());
    #[cfg(feature = "tls-rustls")]
    {
        server.tls_server_name = Some(name);
    }
}

/// The library appends the port to the host, so an IPv6 address needs brackets.
fn server_at(host: String, port: u16) -> Server {
    if !host.contains(':') {
        return Server::new(host, port);
    }
    #[allow(unused_mut)]
    let mut server = Server::new(format!("[{host}]"), port);
    #[cfg(feature = "tls-rustls")]
    {
        server.tls_server_name = Some(host.into());
    }
    server
}

#[cfg(feature = "tls-rustls")]
fn tls(options: &Options) -> Result<fred::types::config::TlsConfig, ConnectError> {
    use fred::types::config::TlsConnector;

    let config = options.certificates.client_config(true)?;
    Ok(TlsConnector::from(config).into())
}

#[async_trait]
impl Connector for FredConnector {
    fn is_own(&self) -> bool {
        true
    }

    fn library(&self) -> &'static str {
        "fred"
    }

    fn address(&self) -> Option<String> {
        let server = &self.0.get_config()?.server;
        if let ServerConfig::Unix { path } = server {
            return Some(path.display().to_string());
        }
        let hosts = server.hosts();
        let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        Some(hosts.join(", "))
    }

    fn host(&self) -> Option<(String, u16)> {
        let config = self.0.get_config()?;
        let ServerConfig::Centralized { server } = &config.server else {
            return None;
        };
        // Only this feature can tell the library the name in the certificate.
        if config.uses_tls() && !cfg!(feature = "tls-rustls") {
            return None;
        }
        let host = server.host.trim_start_matches('[').trim_end_matches(']');
        Some((host.to_owned(), server.port))
    }

    fn at(&self, url: &ServerUrl) -> Result<Arc<dyn Connector>, ConnectError> {
        let mut builder = self.0.clone();
        builder.with_config(|config| lead_to(config, url));
        Ok(Arc::new(Self(builder)))
    }

    async fn open(
        &self,
        to: Option<SocketAddr>,
        events: Option<UnboundedSender<ConnectionEvent>>,
    ) -> Result<Arc<dyn Connection>, Failure> {
        let mut builder = self.0.clone();
        if let Some(to) = to {
            builder.with_config(|config| lead_to_address(config, to));
        }
        if events.is_some() {
            builder.with_performance_config(|config| {
                config.broadcast_channel_capacity = MESSAGE_BUFFER;
            });
        }
        let client = builder.build().map_err(failure)?;
        let messages = client.message_rx();
        let (driver, router) = connect(&client).await.map_err(failure)?;
        if let Some(events) = events {
            tokio::spawn(forward_messages(messages, router, events));
        }
        Ok(Arc::new(FredConnection {
            client,
            driver,
            limits: fred::types::config::Options {
                max_attempts: Some(1),
                fail_fast: true,
                ..Default::default()
            },
        }))
    }
}

/// Starts the library's task for a connection, and waits until the client is connected.
async fn connect(client: &Client) -> Result<(AbortOnDrop, ConnectHandle), Error> {
    let mut router = client.connect();
    let driver = AbortOnDrop(router.abort_handle());
    loop {
        let connected = pin!(timeout(CHECK_INTERVAL, client.wait_for_connect()));
        match select(connected, &mut router).await {
            Either::Left((Ok(Ok(())), _)) => return Ok((driver, router)),
            Either::Left((Ok(Err(error)), _)) | Either::Right((Ok(Err(error)), _)) => {
                return Err(error);
            }
            Either::Left((Err(_), _)) => {}
            Either::Right(_) => {
                return Err(Error::new(ErrorKind::IO, "the connection task ended"));
            }
        }
    }
}

/// Forwards messages, and reports the end of their connection.
async fn forward_messages(
    mut messages: Receiver<Message>,
    mut router: ConnectHandle,
    events: UnboundedSender<ConnectionEvent>,
) {
    loop {
        let event = match select(pin!(messages.recv()), &mut router).await {
            Either::Left((Ok(message), _)) => event_of(message),
            Either::Left((Err(RecvError::Lagged(_)), _)) => ConnectionEvent::Missed,
            Either::Left((Err(RecvError::Closed), _)) | Either::Right(_) => break,
        };
        if events.send(event).is_err() {
            return;
        }
    }
    // Fails if the receiver was dropped.
    let _ = events.send(ConnectionEvent::Closed);
}

fn event_of(message: Message) -> ConnectionEvent {
    let payload = match message.value {
        Value::Bytes(payload) => payload.to_vec(),
        Value::String(payload) => payload.as_bytes().to_vec(),
        _ => return ConnectionEvent::Missed,
    };
    match message.kind {
        MessageKind::SMessage => ConnectionEvent::ShardMessage {
            channel: message.channel.to_string(),
            payload,
        },
        _ => ConnectionEvent::Message(payload),
    }
}

/// Reads an element of the answer to `CLUSTER SLOTS`: the first and last slot, then the primary.
fn slot_range(element: &Value) -> Option<SlotRange> {
    let Value::Array(parts) = element else {
        return None;
    };
    // `as_u64` also reads strings, and arrays of one number.
    let number = |value: &Value| match value {
        Value::Integer(number) => u16::try_from(*number).ok(),
        _ => None,
    };
    let [first, last, Value::Array(primary), ..] = parts.as_slice() else {
        return None;
    };
    let [host, port, ..] = primary.as_slice() else {
        return None;
    };
    Some(SlotRange {
        first: number(first)?,
        last: number(last)?,
        host: match host {
            Value::Null => String::new(),
            host => host.as_string()?,
        },
        port: number(port)?,
    })
}

pub(crate) struct FredConnection {
    client: Client,
    driver: AbortOnDrop,
    limits: fred::types::config::Options,
}

#[async_trait]
impl Connection for FredConnection {
    fn is_closed(&self) -> bool {
        self.driver.0.is_finished()
    }

    async fn eval(
        &self,
        name: &'static str,
        script: &str,
        call: &AddressedCall<'_>,
        asking: bool,
    ) -> Result<Bytes, Failure> {
        // One buffer for all arguments, because the library clones each of them.
        let mut all = Vec::with_capacity(script.len() + call.bytes());
        all.extend_from_slice(script.as_bytes());
        call.words().for_each(|word| all.extend_from_slice(word));
        let mut all = Bytes::from(all);
        let mut arguments = Vec::with_capacity(2 + call.word_count());
        arguments.push(Value::Bytes(all.split_to(script.len())));
        arguments.push(Value::try_from(call.key_count()).map_err(failure)?);
        let words = call.words();
        arguments.extend(words.map(|word| Value::Bytes(all.split_to(word.len()))));
        let answer = if asking {
            self.send_asking(name, arguments).await?
        } else {
            self.send(name, arguments).await?
        };
        match answer {
            Value::Bytes(bytes) => Ok(bytes),
            Value::String(text) => Ok(text.into_inner()),
            other => Err(Failure::garbled(name, &other)),
        }
    }

    async fn slots(&self) -> Result<Vec<SlotRange>, Failure> {
        let arguments = vec![Value::from("SLOTS")];
        let answer = self.send("CLUSTER", arguments).await?;
        let ranges = match &answer {
            Value::Array(ranges) => ranges.iter().map(slot_range).collect(),
            _ => None,
        };
        ranges.ok_or_else(|| Failure::garbled("CLUSTER SLOTS", &answer))
    }

    async fn info(&self, section: Option<&'static str>) -> Result<String, Failure> {
        let section = section.into_iter().map(Value::from).collect();
        match self.send("INFO", section).await? {
            Value::String(text) => Ok(text.to_string()),
            other => Err(Failure::garbled("INFO", &other)),
        }
    }

    async fn primary_of(&self, service: &str) -> Result<Option<(String, u16)>, Failure> {
        let arguments = vec![Value::from("GET-MASTER-ADDR-BY-NAME"), Value::from(service)];
        let answer = self.send("SENTINEL", arguments).await?;
        let address = answer.clone().convert();
        address.map_err(|_| Failure::garbled("SENTINEL", &answer))
    }

    async fn time(&self) -> Result<ServerTime, Failure> {
        let answer = self.send("TIME", Vec::new()).await?;
        match answer.clone().convert::<(u64, u64)>() {
            Ok((seconds, micros)) => Ok(time_of(seconds, micros)),
            Err(_) => Err(Failure::garbled("TIME", &answer)),
        }
    }

    /// The library drops the message that a subscription has ended.
    async fn check_subscriptions(&self, shard_channels: &[String]) -> Result<(), Failure> {
        if shard_channels.is_empty() {
            let pong = self.send("PING", Vec::new()).await;
            return pong.map(drop);
        }
        let info = self.client_info().await?;
        let all = shard_channels.len().to_string();
        // Redis 7.0.0 to 7.0.2 don't count them.
        let count = info
            .split(' ')
            .find_map(|field| field.strip_prefix("ssub="));
        if let Some(count) = count.filter(|count| *count != all) {
            let reason = format!("the server knows {count} of {all} subscriptions");
            return Err(Failure::lost(reason));
        }
        self.check_channels(shard_channels).await
    }

    async fn subscribe(&self, channel: &str) -> Result<(), Failure> {
        // The library returns once it has sent the command, and drops the answer. It also drops an
        // error reply, or mistakes it for the answer to the next command. So ask the server over
        // the same connection, which answers commands in order.
        self.client.subscribe(channel).await.map_err(failure)?;
        let subscribed = match self.client.protocol_version() {
            RespVersion::RESP3 => self.client_info().await?.contains(" sub=1 "),
            RespVersion::RESP2 => self.is_subscribed_resp2().await?,
        };
        if subscribed {
            return Ok(());
        }
        Err(Failure::misconfigured(
            "SUBSCRIBE was refused: no access to the channel or the command",
        ))
    }

    /// Unlike for `SUBSCRIBE`, the library waits for the answer.
    async fn subscribe_shard(&self, channel: &str) -> Result<(), Failure> {
        self.client.ssubscribe(channel).await.map_err(failure)
    }

    async fn unsubscribe_shard(&self, channel: &str) -> Result<(), Failure> {
        self.client.sunsubscribe(channel).await.map_err(failure)
    }
}

impl FredConnection {
    /// Checks that the server knows somebody who listens to each of these channels. No command tells the
    /// channels of a connection, only their number. That is right too if the server has ended one subscription
    /// and still has another that the backend has forgotten. Nobody else listens to these channels, unless the
    /// server hasn't noticed yet that an earlier connection of this backend has ended.
    async fn check_channels(&self, shard_channels: &[String]) -> Result<(), Failure> {
        let mut arguments = vec![Value::from("SHARDNUMSUB")];
        arguments.extend(shard_channels.iter().cloned().map(Value::from));
        let answer = match self.send("PUBSUB", arguments).await {
            Ok(answer) => answer,
            // Without the right, nobody can tell, the scripts neither.
            Err(refused) if matches!(refused.kind(), FailureKind::Answered(_)) => return Ok(()),
            Err(failure) => return Err(failure),
        };
        let Value::Array(counts) = &answer else {
            return Err(Failure::garbled("PUBSUB SHARDNUMSUB", &answer));
        };
        let listened = |count: &&[Value]| matches!(count, [_, count] if count.as_u64() > Some(0));
        let (known, all) = (
            counts.chunks(2).filter(listened).count(),
            shard_channels.len(),
        );
        if known == all {
            return Ok(());
        }
        let reason = format!("the server knows listeners of {known} of {all} channels");
        Err(Failure::lost(reason))
    }

    async fn client_info(&self) -> Result<String, Failure> {
        let arguments = vec![Value::from("INFO")];
        match self.send("CLIENT", arguments).await? {
            Value::String(text) => Ok(text.to_string()),
            other => Err(Failure::garbled("CLIENT INFO", &other)),
        }
    }

    /// With RESP2, a subscribed connection answers PING with an array.
    async fn is_subscribed_resp2(&self) -> Result<bool, Failure> {
        match self.send("PING", Vec::new()).await? {
            Value::Array(_) => Ok(true),
            Value::String(_) => Ok(false),
            other => Err(Failure::garbled("PING", &other)),
        }
    }

    /// Sends a command right behind `ASKING`.
    async fn send_asking(
        &self,
        name: &'static str,
        arguments: Vec<Value>,
    ) -> Result<Value, Failure> {
        let pipeline = self.client.pipeline();
        for (name, arguments) in [("ASKING", Vec::new()), (name, arguments)] {
            // The commands are only put in the pipeline here.
            let queued: Result<Value, Error> = pipeline.custom(command(name), arguments).await;
            queued.map_err(failure)?;
        }
        let mut answers = pipeline.try_all::<Value>().await.into_iter();
        match (answers.next(), answers.next()) {
            (Some(_), Some(Ok(answer))) => Ok(answer),
            // Without ASKING, the node redirects the command. The first error is the cause.
            (Some(Err(error)), _) | (Some(Ok(_)), Some(Err(error))) => Err(failure(error)),
            _ => Err(Failure::lost("an answer to ASKING is missing")),
        }
    }

    async fn send(&self, name: &'static str, arguments: Vec<Value>) -> Result<Value, Failure> {
        if !self.client.is_connected() {
            return Err(Failure::new(
                FailureKind::Refused,
                "the client is not connected",
            ));
        }
        // Only `custom` respects these limits.
        let limited = self.client.with_options(&self.limits);
        let answer = limited.custom(command(name), arguments);
        answer.await.map_err(failure)
    }
}

/// The hash would choose a node of a cluster, but the client has one server.
fn command(name: &'static str) -> CustomCommand {
    CustomCommand::new_static(name, ClusterHash::Random, false)
}

#[cfg(test)]
mod tests {
    use leasehold_test_servers::{RedisCluster, RedisServer};
    use proptest::prelude::*;
    use tokio::task::block_in_place;

    use super::*;

    /// The server knows as many channels of the connection as the backend, but not the same ones.
    #[tokio::test(flavor = "multi_thread")]
    async fn subscriptions_are_compared_by_name() {
        if RedisServer::default_version().major < 7 {
            return;
        }
        let cluster = block_in_place(RedisCluster::start_without_replicas);
        let primary = block_in_place(|| cluster.primary_of("{a}"));
        let url = cluster.nodes()[primary].url();
        let url = ServerUrl::parse(&url, false).expect("a URL");
        let options = Options::new();
        let connector = FredConnector::from_url(&url, &options).expect("good settings");
        let events = tokio::sync::mpsc::unbounded_channel().0;
        let connection = connector.open(None, Some(events)).await;
        let connection = connection.expect("a server that runs");
        let names = |numbers: [u8; 2]| numbers.map(|number| format!("{{a}}{number}"));
        for channel in names([1, 2]) {
            let subscribed = connection.subscribe_shard(&channel).await;
            subscribed.expect("the node has the slot");
        }
        let checked = connection.check_subscriptions(&names([1, 2])).await;
        checked.expect("the same channels");
        for other in [[1, 3], [3, 4]] {
            let checked = connection.check_subscriptions(&names(other)).await;
            let lost = checked.expect_err("other channels");
            assert!(matches!(lost.kind(), FailureKind::Lost), "{lost}");
        }
    }

    /// Of all the addresses of a name, the connection leads to the one that is asked for.
    #[tokio::test(flavor = "multi_thread")]
    async fn connection_leads_to_one_address() {
        let server = block_in_place(RedisServer::start);
        let url = ServerUrl::parse("redis://locks.invalid:1", false).expect("a URL");
        let connector = FredConnector::from_url(&url, &Options::new()).expect("good settings");
        assert_eq!(connector.host(), Some(("locks.invalid".into(), 1)));
        let connection = connector.open(Some(server.address()), None).await;
        let connection = connection.expect("a server that runs");
        connection.time().await.expect("an answer");
    }

    #[tokio::test]
    async fn clustered_configurations_are_refused() {
        for (scheme, refused) in [("redis", false), ("redis-cluster", true)] {
            let config = Config::from_url(&format!("{scheme}://127.0.0.1:1")).expect("a good URL");
            let builder = Builder::from_config(config);
            let client = builder.build().expect("a client");
            for made in [
                FredConnector::from_builder(&builder, &Options::new()),
                FredConnector::from_client(&client, &Options::new()),
            ] {
                let invalid = matches!(made, Err(ConnectError::Invalid(_)));
                assert_eq!(invalid, refused, "{scheme}");
            }
        }
    }

    #[test]
    fn small_calls_are_sent_at_once_unless_the_user_says_otherwise() {
        for (chosen, expected) in [(None, true), (Some(true), true), (Some(false), false)] {
            let mut builder = Builder::default_centralized();
            builder.with_connection_config(|config| config.tcp.nodelay = chosen);
            let connector = FredConnector::new(&builder, &Options::new()).expect("good settings");
            let used = connector.0.get_connection_config().tcp.nodelay;
            assert_eq!(used, Some(expected), "{chosen:?}");
        }
    }

    /// What a server may answer to `CLUSTER SLOTS`, if it isn't one that we know.
    fn answers() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            prop_oneof![0..70_000_i64, any::<i64>()].prop_map(Value::Integer),
            prop::collection::vec(any::<u8>(), 0..9).prop_map(|it| Value::Bytes(it.into())),
            Just(Value::Null),
            any::<String>().prop_map(|it| Value::String(it.into())),
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
                let number = |number: u16| Value::Integer(number.into());
                prop_assert_eq!(numbers, (number(range.first), number(range.last)));
            }
        }
    }
}

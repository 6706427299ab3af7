//! Connections through the `redis` crate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt;
use leasehold_api::ServerTime;
use leasehold_redis_common::connection::{
    Address, ConnectError, Connection, ConnectionEvent, Connector, Failure, ServerUrl,
    UnboundedSender,
};
use leasehold_redis_common::script::{Call, NO_NOTIFICATIONS};
use leasehold_redis_common::{Options, RespVersion, TlsOptions};
use redis::aio::{ConnectionLike, MultiplexedConnection, PubSubSink, PubSubStream};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError, Value,
};
use tokio::task::AbortHandle;

use crate::error::failure;

/// The maximum number of digits of a call's number of keys.
const LONGEST_COUNT: usize = 4;

/// Opens connections, or shares the user's.
pub(crate) enum RedisConnector {
    /// A client that opens connections.
    Own(Box<Client>, RespVersion),
    /// The user's connection, which can't be replaced.
    User(Arc<dyn UserConnection>),
}

/// The user's connection, with its type erased.
pub(crate) trait UserConnection: Send + Sync {
    /// A handle for one command. All handles share the connection.
    fn handle(&self) -> Box<dyn ConnectionLike + Send>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> UserConnection for C {
    fn handle(&self) -> Box<dyn ConnectionLike + Send> {
        Box::new(self.clone())
    }
}

impl RedisConnector {
    /// Creates a connector for the server at `url`.
    pub(crate) fn from_url(url: &ServerUrl, options: &Options) -> Result<Self, ConnectError> {
        let mut settings = RedisConnectionInfo::default().set_db(url.database.into());
        if let Some(user) = &url.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &url.password {
            settings = settings.set_password(password);
        }
        let address = match url.address.clone() {
            Address::Tcp { host, port, tls } if tls => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            },
            Address::Tcp { host, port, .. } => ConnectionAddr::Tcp(host, port),
            Address::Unix(path) => ConnectionAddr::Unix(path),
        };
        let info = address.into_connection_info().map_err(unusable_url)?;
        let client = new_client(info.set_redis_settings(settings), &options.tls)?;
        Self::own(&client, options.resp)
    }

    /// Creates a connector with the settings of `client` and another protocol version. Only with
    /// RESP3 does the library report the end of a connection, and deliver messages over a
    /// connection for commands.
    pub(crate) fn own(client: &Client, resp: RespVersion) -> Result<Self, ConnectError> {
        let info = client.get_connection_info().clone();
        #[cfg(feature = "tls-rustls")]
        if let ConnectionAddr::TcpTls { .. } = info.addr() {
            // The library uses the provider of the process.
            leasehold_redis_common::connection::install_provider();
        }
        let protocol = match resp {
            RespVersion::Resp2 => ProtocolVersion::RESP2,
            RespVersion::Resp3 => ProtocolVersion::RESP3,
        };
        let settings = info.redis_settings().clone().set_protocol(protocol);
        let client = Client::open(info.set_redis_settings(settings))
            .map_err(|error| ConnectError::unusable("client", &error))?;
        Ok(Self::Own(Box::new(client), resp))
    }
}

#[cfg(not(feature = "tls-rustls"))]
fn new_client(info: ConnectionInfo, _: &TlsOptions) -> Result<Client, ConnectError> {
    Client::open(info).map_err(unusable_url)
}

#[cfg(feature = "tls-rustls")]
fn new_client(info: ConnectionInfo, tls: &TlsOptions) -> Result<Client, ConnectError> {
    let ConnectionAddr::TcpTls { .. } = info.addr() else {
        return Client::open(info).map_err(unusable_url);
    };
    // Only checks the certificates. The library reads them once more, but accepts an empty list.
    leasehold_redis_common::connection::client_config(tls)?;
    let client_tls = tls.client_certificate.clone();
    let certificates = redis::TlsCertificates {
        client_tls: client_tls.map(|client| redis::ClientTlsConfig {
            client_cert: client.chain,
            client_key: client.key,
        }),
        root_cert: tls.root_certificates.clone(),
    };
    Client::build_with_tls(info, certificates).map_err(unusable_url)
}

fn unusable_url(error: RedisError) -> ConnectError {
    ConnectError::unusable("URL", &error)
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
            // The caller has its own time limits.
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let mut subscriber = None;
        if resp == RespVersion::Resp3 {
            let ended = Arc::clone(&closed);
            config = config.set_push_sender(move |push| report_push(push, &ended, events.as_ref()));
        } else if let Some(events) = events {
            let (sink, messages) = client.get_async_pubsub().await.map_err(failure)?.split();
            let reader = tokio::spawn(forward_messages(messages, events)).abort_handle();
            subscriber = Some(Subscriber { sink, reader });
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
        _ => return Ok(()),
    };
    if let Some(events) = events {
        // Fails if the receiver was dropped. The connection will be dropped soon.
        let _ = events.send(event);
    }
    Ok(())
}

/// One connection. Dropping it closes it, unless it is the user's.
pub(crate) enum RedisConnection {
    /// Opened by the backend.
    Own {
        connection: MultiplexedConnection,
        /// Set when the library reports the end of the connection.
        closed: Arc<AtomicBool>,
        /// The connection for messages, if it is a separate one.
        subscriber: Option<Subscriber>,
    },
    /// The user's.
    User(Arc<dyn UserConnection>),
}

/// A connection for subscriptions only (RESP2).
pub(crate) struct Subscriber {
    sink: PubSubSink,
    reader: AbortHandle,
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.reader.abort();
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
                let subscribed = subscriber.sink.clone().subscribe(channel).await;
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
}

impl RedisConnection {
    /// Checks that the subscriber is connected to the same server as this connection, because
    /// notifications are stamped with that server's clock.
    async fn check_subscriber(&self, channel: &str) -> Result<(), Failure> {
        let publish = redis::cmd("PUBLISH")
            .arg(channel)
            .arg(&NO_NOTIFICATIONS)
            .clone();
        match self.send(&publish).await? {
            Value::Int(1..) => Ok(()),
            Value::Int(_) => Err(Failure::lost("subscribed to another server")),
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

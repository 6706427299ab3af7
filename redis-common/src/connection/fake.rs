//! A cluster whose nodes a test drives. One of them has all slots.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use leasehold_api::{ConnectError, ServerTime};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::sleep;

use super::{
    Address, Cluster, Connection, ConnectionEvent, Connector, Failure, ServerMode, ServerUrl,
    Shared, SlotRange, lock,
};
use crate::backend::new_shared;
use crate::options::Options;
use crate::script::AddressedCall;

pub(crate) const URL: &str = "redis-cluster://127.0.0.1:7000";
const INFO: &str =
    "redis_version:7.0.15\r\nredis_mode:cluster\r\nrun_id:0123456789abcdef\r\nrole:master\r\n";
const HOST: &str = "127.0.0.1";
pub(crate) const PORT: u16 = 7_000;
/// The limit of each question to the server. A test needs a part of it.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);
/// How long a node takes to end a subscription.
pub(crate) const ROUND_TRIP: Duration = Duration::from_millis(50);

/// The nodes. They differ in their ports only.
#[derive(Default)]
pub(crate) struct Node {
    /// The node that has all slots: its port, less that of the URL.
    pub(crate) primary: AtomicU16,
    /// Where the connections for messages report their events, the newest last.
    events: Mutex<Vec<UnboundedSender<ConnectionEvent>>>,
    /// The ports at which such connections were asked for.
    listeners: Mutex<Vec<u16>>,
    /// Whether no such connection opens.
    pub(crate) lost: AtomicBool,
    /// Whether it leaves questions without an answer.
    pub(crate) silent: AtomicBool,
    /// How long the answer takes that names the primary, or the slots.
    pub(crate) answers_take: Mutex<Duration>,
    pub(crate) scripts: AtomicUsize,
    pub(crate) script_answer: Mutex<Vec<u8>>,
    /// Whether it doesn't tell its `run_id`.
    pub(crate) unnamed: AtomicBool,
    pub(crate) left: Mutex<Vec<String>>,
}

impl Node {
    async fn answer<T>(&self, answer: T) -> Result<T, Failure> {
        match self.silent.load(Ordering::SeqCst) {
            true => pending().await,
            false => Ok(answer),
        }
    }

    /// Answers with the port of the primary as it was when the question came.
    async fn answer_with<T>(&self, answer: impl FnOnce(u16) -> T) -> Result<T, Failure> {
        let answer = answer(PORT + self.primary.load(Ordering::SeqCst));
        let take = *lock(&self.answers_take);
        sleep(take).await;
        self.answer(answer).await
    }

    pub(crate) fn report(&self, event: ConnectionEvent) {
        let events = lock(&self.events);
        let events = events.last().expect("a connection for messages");
        events.send(event).expect("somebody reads");
    }

    /// Delivers a message as the scripts send it: the server's time and its clock, then a revocation.
    pub(crate) fn revoke(&self, channel: &str, sequence: u32) {
        let mut payload = 1_000.0_f64.to_le_bytes().to_vec();
        payload.extend_from_slice(&1_u64.to_le_bytes());
        payload.push(b'R');
        payload.extend_from_slice(&f64::from(sequence).to_le_bytes());
        let channel = channel.to_owned();
        self.report(ConnectionEvent::ShardMessage { channel, payload });
    }

    pub(crate) fn listeners(&self) -> Vec<u16> {
        lock(&self.listeners).clone()
    }
}

/// A connection to the node at a port, or opens them.
pub(crate) struct ToNode {
    node: Arc<Node>,
    port: u16,
}

impl ToNode {
    pub(crate) fn new(node: &Arc<Node>) -> Self {
        Self::at_port(node, PORT)
    }

    fn at_port(node: &Arc<Node>, port: u16) -> Self {
        let node = Arc::clone(node);
        Self { node, port }
    }
}

pub(crate) fn tcp(port: u16) -> Address {
    let (host, tls) = (HOST.into(), false);
    Address::Tcp { host, port, tls }
}

/// What the connections share, each of whose questions has this limit.
pub(crate) fn shared(node: &Arc<Node>, limit: Duration) -> Arc<Shared> {
    let options = Options::new().connect_timeout(limit).call_timeout(limit);
    let connector = Arc::new(ToNode::new(node));
    let shared = new_shared(connector, None, options, ServerMode::Cluster);
    shared.expect("good options").1
}

/// A cluster that has read its slots.
pub(crate) async fn cluster(node: &Arc<Node>, limit: Duration) -> Arc<Cluster> {
    let url = ServerUrl::parse(URL, false).expect("a URL");
    let nodes = url.cluster.as_deref().expect("a cluster");
    let cluster = Cluster::new(&url, nodes, shared(node, limit)).expect("a good address");
    cluster.connect().await.expect("the node answers");
    cluster
}

#[async_trait]
impl Connector for ToNode {
    fn is_own(&self) -> bool {
        true
    }

    fn library(&self) -> &'static str {
        "fake"
    }

    fn address(&self) -> Option<String> {
        None
    }

    fn host(&self) -> Option<(String, u16)> {
        None
    }

    fn at(&self, url: &ServerUrl) -> Result<Arc<dyn Connector>, ConnectError> {
        let Address::Tcp { port, .. } = url.address else {
            panic!("the nodes have ports");
        };
        Ok(Arc::new(Self::at_port(&self.node, port)))
    }

    async fn open(
        &self,
        _: Option<SocketAddr>,
        events: Option<UnboundedSender<ConnectionEvent>>,
    ) -> Result<Arc<dyn Connection>, Failure> {
        if let Some(events) = events {
            lock(&self.node.listeners).push(self.port);
            if self.node.lost.load(Ordering::SeqCst) {
                return pending().await;
            }
            lock(&self.node.events).push(events);
        }
        Ok(Arc::new(Self::at_port(&self.node, self.port)))
    }
}

#[async_trait]
impl Connection for ToNode {
    fn is_closed(&self) -> bool {
        false
    }

    async fn eval(
        &self,
        _: &'static str,
        _: &str,
        _: &AddressedCall<'_>,
        _: bool,
    ) -> Result<Bytes, Failure> {
        self.node.scripts.fetch_add(1, Ordering::SeqCst);
        Ok(lock(&self.node.script_answer).clone().into())
    }

    async fn info(&self, _: Option<&'static str>) -> Result<String, Failure> {
        Ok(match self.node.unnamed.load(Ordering::SeqCst) {
            true => INFO.replace("run_id", "other"),
            false => INFO.into(),
        })
    }

    async fn primary_of(&self, _: &str) -> Result<Option<(String, u16)>, Failure> {
        let answer = |port| Some((HOST.into(), port));
        self.node.answer_with(answer).await
    }

    async fn slots(&self) -> Result<Vec<SlotRange>, Failure> {
        let all = |port| SlotRange {
            first: 0,
            last: 16_383,
            host: HOST.into(),
            port,
        };
        self.node.answer_with(|port| vec![all(port)]).await
    }

    async fn time(&self) -> Result<ServerTime, Failure> {
        Ok(ServerTime::from_micros(1))
    }

    async fn check_subscriptions(&self, _: &[String]) -> Result<(), Failure> {
        self.node.answer(()).await
    }

    async fn subscribe(&self, _: &str) -> Result<(), Failure> {
        Ok(())
    }

    async fn subscribe_shard(&self, _: &str) -> Result<(), Failure> {
        Ok(())
    }

    async fn unsubscribe_shard(&self, channel: &str) -> Result<(), Failure> {
        sleep(ROUND_TRIP).await;
        lock(&self.node.left).push(channel.to_owned());
        Ok(())
    }
}

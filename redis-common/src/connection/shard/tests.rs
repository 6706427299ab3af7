//! Subscriptions over connections that a test drives.

use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt;
use leasehold_api::ServerTime;
use tokio::time::{sleep, timeout};

use super::*;
use crate::backend::new_shared;
use crate::connection::{Address, ConnectError, ServerMode, ServerUrl, SlotRange};
use crate::options::Options;
use crate::script::AddressedCall;

const INFO: &str = "redis_version:7.0.15\r\nredis_mode:cluster\r\nrun_id:0123456789abcdef\r\n";
const HOST: &str = "127.0.0.1";
const PORT: u16 = 7_000;
/// The limit of each question to the server. A test needs a part of it.
const LIMIT: Duration = Duration::from_secs(5);
/// How long the node takes to end a subscription.
const ROUND_TRIP: Duration = Duration::from_millis(50);
const SESSION: SessionId = SessionId::from_bytes([1; 16]);
const CHANNELS: [&str; 2] = ["{k}1", "{k}2"];

/// The only node of a cluster.
#[derive(Default)]
struct Node {
    /// Where the connections for messages report their events, the newest last.
    events: Mutex<Vec<UnboundedSender<ConnectionEvent>>>,
    /// Whether it leaves questions without an answer.
    silent: AtomicBool,
    /// The channels that were unsubscribed.
    left: Mutex<Vec<String>>,
}

impl Node {
    async fn answer<T>(&self, answer: T) -> Result<T, Failure> {
        match self.silent.load(Ordering::SeqCst) {
            true => pending().await,
            false => Ok(answer),
        }
    }

    fn report(&self, event: ConnectionEvent) {
        let events = self.events.lock().expect("no panic");
        let events = events.last().expect("a connection for messages");
        events.send(event).expect("somebody reads");
    }

    /// Delivers a message as the scripts send it: the server's time and its clock, then a wake-up.
    fn wake(&self, channel: &str, sequence: u32) {
        let mut payload = 1_000.0_f64.to_le_bytes().to_vec();
        payload.extend_from_slice(&1_u64.to_le_bytes());
        payload.push(b'H');
        payload.extend_from_slice(&f64::from(sequence).to_le_bytes());
        let channel = channel.to_owned();
        self.report(ConnectionEvent::ShardMessage { channel, payload });
    }
}

struct ToNode(Arc<Node>);

impl Connector for ToNode {
    type Connection = Self;

    fn is_own(&self) -> bool {
        true
    }

    fn address(&self) -> Option<String> {
        None
    }

    fn at(&self, _: &ServerUrl) -> Result<Self, ConnectError> {
        Ok(Self(Arc::clone(&self.0)))
    }

    async fn open(
        &self,
        _: &Options,
        events: Option<UnboundedSender<ConnectionEvent>>,
    ) -> Result<Self, Failure> {
        self.0.events.lock().expect("no panic").extend(events);
        Ok(Self(Arc::clone(&self.0)))
    }
}

impl Connection for ToNode {
    type Reply = Vec<u8>;

    fn is_closed(&self) -> bool {
        false
    }

    async fn eval(
        &self,
        _: &'static str,
        _: &str,
        _: &AddressedCall<'_>,
        _: bool,
    ) -> Result<Vec<u8>, Failure> {
        Ok(Vec::new())
    }

    async fn info(&self, _: Option<&'static str>) -> Result<String, Failure> {
        Ok(INFO.into())
    }

    async fn primary_of(&self, _: &str) -> Result<Option<(String, u16)>, Failure> {
        Ok(None)
    }

    async fn slots(&self) -> Result<Vec<SlotRange>, Failure> {
        let all = SlotRange {
            first: 0,
            last: 16_383,
            host: HOST.into(),
            port: PORT,
        };
        self.0.answer(vec![all]).await
    }

    async fn time(&self) -> Result<ServerTime, Failure> {
        Ok(ServerTime::from_micros(1))
    }

    async fn check_subscriptions(&self, _: &[String]) -> Result<(), Failure> {
        self.0.answer(()).await
    }

    async fn subscribe(&self, _: &str) -> Result<(), Failure> {
        Ok(())
    }

    async fn subscribe_shard(&self, _: &str) -> Result<(), Failure> {
        Ok(())
    }

    async fn unsubscribe_shard(&self, channel: &str) -> Result<(), Failure> {
        sleep(ROUND_TRIP).await;
        let mut left = self.0.left.lock().expect("no panic");
        left.push(channel.to_owned());
        Ok(())
    }
}

/// A session that listens to all channels.
struct Listening {
    node: Arc<Node>,
    stream: Notifications,
    cluster: Arc<Cluster<ToNode>>,
    _closed: watch::Sender<bool>,
}

impl Listening {
    async fn begin() -> Self {
        let node = Arc::new(Node::default());
        let url = ServerUrl::parse("redis-cluster://127.0.0.1:7000", false).expect("a URL");
        let address = Address::Tcp {
            host: HOST.into(),
            port: PORT,
            tls: false,
        };
        let options = Options::new().connect_timeout(LIMIT).call_timeout(LIMIT);
        let shared = new_shared(
            ToNode(Arc::clone(&node)),
            None,
            options,
            ServerMode::Cluster,
        );
        let (_, shared) = shared.expect("good options");
        let cluster = Cluster::new(&url, &[address], shared).expect("a good address");
        cluster.connect().await.expect("the node answers");
        let closed = watch::Sender::new(false);
        let stream = cluster.listen(SESSION, "revocations".into(), closed.subscribe());
        let stream = stream.await.expect("a subscription");
        for channel in CHANNELS {
            let subscribed = cluster.subscribe(SESSION, b"{k}", channel.into(), LIMIT);
            assert!(subscribed.await, "{channel}");
        }
        Self {
            node,
            stream,
            cluster,
            _closed: closed,
        }
    }

    async fn next(&mut self) -> Notification {
        let next = timeout(LIMIT * 2, self.stream.next()).await;
        next.expect("in time").expect("the stream goes on")
    }

    async fn expect_message(&mut self) {
        self.node.wake(CHANNELS[1], 7);
        let first = self.next().await;
        assert!(
            matches!(first, Notification::WakeUp { sequence: 7, .. }),
            "{first:?}"
        );
    }
}

#[tokio::test]
async fn messages_do_not_wait_for_the_slots() {
    let mut listening = Listening::begin().await;
    listening.node.silent.store(true, Ordering::SeqCst);
    sleep(CHECK_EVERY + Duration::from_millis(500)).await;
    let ended = CHANNELS[0].to_owned();
    listening.node.report(ConnectionEvent::Unsubscribed(ended));
    sleep(Duration::from_millis(100)).await;
    listening.expect_message().await;
    // If nobody tells the slots, the connection is given up, although a check has locked it until then.
    let missed = Notification::Missed { listening: true };
    assert_eq!(listening.next().await, missed);
}

#[tokio::test]
async fn messages_do_not_wait_for_a_check() {
    let mut listening = Listening::begin().await;
    listening.node.silent.store(true, Ordering::SeqCst);
    sleep(CHECK_EVERY + Duration::from_millis(500)).await;
    listening.expect_message().await;
    let missed = listening.next().await;
    assert!(matches!(missed, Notification::Missed { .. }), "{missed:?}");
}

#[tokio::test]
async fn new_subscription_does_not_wait_for_all_that_end() {
    let listening = Listening::begin().await;
    let (node, cluster) = (&listening.node, &listening.cluster);
    let other = SessionId::from_bytes([2; 16]);
    let mut all = 0;
    for number in 0..100 {
        let subscribed = cluster.subscribe(SESSION, b"{k}", format!("{{k}}{number}"), LIMIT);
        assert!(subscribed.await, "{number}");
        all += 1;
    }
    // The session ends, and all its subscriptions do. That takes 5 s.
    drop(listening.stream);
    let left = || node.left.lock().expect("no panic").len();
    while left() == 0 {
        sleep(ROUND_TRIP).await;
    }
    assert!(
        cluster
            .subscribe(other, b"{k}", "{k}new".into(), LIMIT)
            .await
    );
    assert!(left() < all, "it waited for all {all}");
    let all_left = async {
        while left() < all {
            sleep(ROUND_TRIP).await;
        }
    };
    timeout(LIMIT * 4, all_left).await.expect("all end");
}

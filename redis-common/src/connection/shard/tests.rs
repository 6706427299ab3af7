//! Subscriptions over connections that a test drives.

use std::sync::atomic::Ordering;

use futures_util::StreamExt;
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use super::*;
use crate::connection::fake::{self, LIMIT, Node, PORT, ROUND_TRIP};

const SESSION: SessionId = SessionId::from_bytes([1; 16]);
const CHANNELS: [&str; 2] = ["{k}1", "{k}2"];

/// A session that listens to all channels.
struct Listening {
    node: Arc<Node>,
    stream: Notifications,
    cluster: Arc<Cluster>,
    _closed: watch::Sender<bool>,
}

impl Listening {
    async fn begin() -> Self {
        let node = Arc::new(Node::default());
        let cluster = fake::cluster(&node, LIMIT).await;
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
        self.node.revoke(CHANNELS[1], 7);
        let first = self.next().await;
        assert!(
            matches!(first, Notification::Revoked { sequence: 7, .. }),
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

#[tokio::test]
async fn node_that_does_not_answer_costs_one_attempt() {
    let node = Arc::new(Node::default());
    let cluster = fake::cluster(&node, Duration::from_millis(200)).await;
    let subscribe = async |number| {
        let channel = format!("{{k}}{number}");
        cluster.subscribe(SESSION, b"{k}", channel, LIMIT).await
    };
    node.lost.store(true, Ordering::SeqCst);
    let subscribed = join_all((0..10).map(subscribe)).await;
    assert!(!subscribed.contains(&true));
    assert_eq!(node.listeners().len(), 1, "one attempt for all");
    let tried_again = async {
        // The first polls come in the pause.
        while node.listeners().len() < 2 {
            assert!(!subscribe(0).await);
            sleep(ROUND_TRIP).await;
        }
        node.lost.store(false, Ordering::SeqCst);
        while !subscribe(0).await {
            sleep(ROUND_TRIP).await;
        }
    };
    timeout(LIMIT * 4, tried_again)
        .await
        .expect("it tries again");
}

#[tokio::test]
async fn nobody_subscribes_at_a_node_that_has_left_or_after_the_end() {
    let node = Arc::new(Node::default());
    let cluster = fake::cluster(&node, LIMIT).await;
    let left = fake::tcp(PORT + 1);
    let subscriber = Subscriber::new(left, fake::shared(&node, LIMIT), Arc::default());
    let channel = || CHANNELS[0].to_owned();
    let subscribed = subscriber.subscribe(&cluster, SESSION, channel()).await;
    assert!(matches!(subscribed, Ok(false)), "{subscribed:?}");
    cluster.close();
    let subscribed = cluster.subscribe(SESSION, b"{k}", channel(), LIMIT);
    assert!(!subscribed.await);
    assert_eq!(node.listeners(), [], "no connection for messages");
}

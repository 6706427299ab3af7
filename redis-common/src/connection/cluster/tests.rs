//! A cluster whose nodes a test drives.

use futures_util::future::join;
use leasehold_api::Notification;
use tokio::time::{sleep, timeout};

use super::*;
use crate::connection::fake::{self, LIMIT, Node, PORT};

const SESSION: SessionId = SessionId::from_bytes([1; 16]);

#[tokio::test]
async fn revocations_come_from_a_node_of_the_cluster() {
    // The node of the URL knows the cluster, but it has no slots.
    let node = Arc::new(Node::default());
    node.primary.store(1, Ordering::SeqCst);
    let cluster = fake::cluster(&node, LIMIT).await;
    let closed = watch::Sender::new(false);
    let mut streams = Vec::new();
    for _ in 0..4 {
        let stream = cluster.listen(SESSION, "revocations".into(), closed.subscribe());
        streams.push(stream.await.expect("a subscription"));
    }
    assert_eq!(node.listeners(), [PORT + 1; 4]);
    // Another node takes its place.
    node.primary.store(2, Ordering::SeqCst);
    cluster.refresh_from(&fake::tcp(PORT + 1)).await;
    for listening in [false, true] {
        for stream in &mut streams {
            let next = timeout(LIMIT, stream.next()).await;
            let missed = Notification::Missed { listening };
            assert_eq!(next.expect("in time"), Some(missed));
        }
    }
    assert_eq!(node.listeners()[4..], [PORT + 2; 4]);
}

/// Otherwise a stamp of one node would be read as a stamp of the other.
#[tokio::test]
async fn nodes_without_a_run_id_have_different_clocks() {
    let node = Arc::new(Node::default());
    node.unnamed.store(true, Ordering::SeqCst);
    let cluster = fake::cluster(&node, LIMIT).await;
    let mut clocks = Vec::new();
    for primary in [0, 1] {
        node.primary.store(primary, Ordering::SeqCst);
        cluster
            .refresh(Lane::Commands, Duration::ZERO, Order::Any)
            .await;
        let stamp = cluster.read_clock(b"{k}").await;
        clocks.push(stamp.expect("the node answers").clock);
    }
    assert_ne!(clocks[0], clocks[1]);
}

#[tokio::test]
async fn slots_that_were_asked_for_before_are_no_answer() {
    let node = Arc::new(Node::default());
    let cluster = fake::cluster(&node, LIMIT).await;
    *node.answers_take.lock().expect("no panic") = Duration::from_millis(300);
    let refresh = || cluster.refresh(Lane::Commands, Duration::ZERO, Order::Any);
    let moving = async {
        sleep(Duration::from_millis(100)).await;
        node.primary.store(1, Ordering::SeqCst);
        refresh().await;
        let primary = cluster.node_of_key(b"{k}").expect("known");
        assert_eq!(primary.address, fake::tcp(PORT + 1));
    };
    join(refresh(), moving).await;
}

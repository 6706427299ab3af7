//! Push in a cluster: subscriptions follow the key to its primary.

use std::time::Duration;

use futures_util::StreamExt;
use leasehold_api::{
    AcquireReply, BackendError, ClockId, Notification, Notifications, Poll, PollReply, Wait,
};
use leasehold_test_servers::{RedisCluster, RedisServer};

use super::cluster::{LEASE, client, expect_turn, one_on_each, stored};
use super::support::{
    RECOVERY, acquire, connected, eventually, hold, key, mutex, operation, release, session, soon,
    wait_in_line,
};

/// Longer than all failovers of a test.
const HOLD: Duration = Duration::from_secs(120);

/// Takes what the stream has until a grant comes.
async fn next_grant(stream: &mut Notifications) -> (u64, ClockId) {
    loop {
        let next = tokio::time::timeout(HOLD / 2, stream.next()).await;
        match next
            .expect("a notification in time")
            .expect("an open stream")
        {
            Notification::Granted {
                sequence, stamp, ..
            } => return (sequence, stamp.clock),
            Notification::Missed { .. } => {}
            other => panic!("{other:?} instead of a grant"),
        }
    }
}

/// The waiter listens after its slot has moved, after its connection was cut, and on every node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_are_pushed_from_the_node_of_the_key() {
    let cluster = RedisCluster::start_without_replicas();
    let backend = connected(&cluster.url()).await;
    let has_shard_channels = RedisServer::default_version().major >= 7;
    assert_eq!(backend.capabilities().push, has_shard_channels);
    if !has_shard_channels {
        let error = backend.listen(session(2)).await.err();
        let unsupported = matches!(error, Some(BackendError::Unsupported { .. }));
        return assert!(unsupported, "{error:?}");
    }
    let mut stream = backend.listen(session(2)).await.expect("listening");
    let mut numbers = 1..;
    for name in &one_on_each(&cluster) {
        for fault in ["none", "migration", "cut"] {
            let number = numbers.next().expect("a number");
            let what = format!("{fault} of {name}");
            let before = soon(&backend).await;
            let held = mutex(&key(name), operation(session(1), number), before);
            let waiter = mutex(&key(name), operation(session(2), number), before);
            let waiter = waiter.with_wait(Wait::new(true));
            for request in [&held, &waiter] {
                let got = acquire(&backend, request).await;
                match (&got.expect("an answer").reply, request.wait) {
                    (AcquireReply::Acquired(_), None) | (AcquireReply::Queued(_), Some(_)) => {}
                    (other, _) => panic!("{what}: {other:?}"),
                }
            }
            disturb(&cluster, fault, &stored(name));
            #[expect(
                clippy::disallowed_methods,
                reason = "the backend notices the end of a connection at once, but not at the same moment"
            )]
            tokio::time::sleep(Duration::from_millis(200)).await;
            let poll = Poll::new(key(name), waiter.operation, true);
            let got = backend.poll(&[poll]).await.remove(0).expect("an answer");
            assert!(matches!(got.reply, PollReply::Queued(_)), "{what}: {got:?}");
            for operation in [held.operation, waiter.operation] {
                let released = release(&backend, &key(name), operation).await;
                released.expect("an answer");
                if operation == held.operation {
                    let (sequence, clock) = next_grant(&mut stream).await;
                    assert_eq!(sequence, number, "{what}");
                    assert_eq!(Some(clock), backend.clock(&key(name)), "{what}");
                }
            }
        }
    }
    drop(stream);
    eventually("the channels are unsubscribed", async || {
        let mut nodes = cluster.nodes().iter();
        nodes.all(|node| node.run(&["PUBSUB", "SHARDCHANNELS"]) == "*0")
    })
    .await;
}

fn disturb(cluster: &RedisCluster, fault: &str, stored: &str) {
    let from = cluster.primary_of(stored);
    match fault {
        "migration" => cluster.migrate(stored, (from + 1) % 3),
        "cut" => {
            cluster.nodes()[from].run(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        }
        _ => {}
    }
}

/// A session that waits for a key on each node gets them by push, faster than by polls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_over_comes_by_push() {
    const ROUNDS: u32 = 10;
    let cluster = RedisCluster::start_without_replicas();
    let (locks, others) = (client(&cluster).await, client(&cluster).await);
    let mut took = Vec::new();
    for name in &one_on_each(&cluster) {
        for _ in 0..ROUNDS {
            let guard = hold(&locks, name, LEASE).await;
            let waiting = wait_in_line(&others, name, LEASE).await;
            took.push(expect_turn(guard, waiting).await);
        }
    }
    took.sort_unstable();
    let median = took[took.len() / 2];
    println!("median {median:?}, longest {:?}", took[took.len() - 1]);
    if locks.backend().capabilities().push {
        // A waiter polls each second.
        assert!(median < Duration::from_millis(500), "{took:?}");
    }
}

/// Waits until the primary of a key knows somebody who listens to a channel of it.
async fn listens_at_the_primary(cluster: &RedisCluster, what: &str, stored: &str) {
    eventually(what, async || {
        let primary = cluster.find_primary_of(stored);
        let channels = |node: usize| cluster.nodes()[node].run(&["PUBSUB", "SHARDCHANNELS"]);
        primary.is_some_and(|node| channels(node) != "*0")
    })
    .await;
}

/// The old primary ends the subscriptions, and so does the replica that takes over. After a failover
/// and back, the client knows both nodes from before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscription_follows_failovers_there_and_back() {
    let cluster = RedisCluster::start();
    let (locks, others) = (client(&cluster).await, client(&cluster).await);
    if !locks.backend().capabilities().push {
        return assert!(RedisServer::default_version().major < 7);
    }
    let stored = stored("there and back");
    for failover in 1..=4 {
        let guard = hold(&locks, "there and back", HOLD).await;
        let waiting = wait_in_line(&others, "there and back", HOLD).await;
        let primary = cluster.primary_of(&stored);
        cluster.fail_over_to(cluster.replica_of(primary));
        let what = format!("it listens after failover {failover}");
        listens_at_the_primary(&cluster, &what, &stored).await;
        #[expect(
            clippy::disallowed_methods,
            reason = "by now the waiter has told the server that it listens, which nothing shows"
        )]
        tokio::time::sleep(RECOVERY * 2).await;
        let took = expect_turn(guard, waiting).await;
        println!("failover {failover}: handed over after {took:?}");
    }
}

/// A slot moves away and back before the client sends anything to its node. The node has ended the
/// subscription, and looks the same as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscription_that_the_server_ended_is_noticed() {
    let cluster = RedisCluster::start_without_replicas();
    let (locks, others) = (client(&cluster).await, client(&cluster).await);
    if !locks.backend().capabilities().push {
        return assert!(RedisServer::default_version().major < 7);
    }
    let stored = stored("away and back");
    let guard = hold(&locks, "away and back", HOLD).await;
    let waiting = wait_in_line(&others, "away and back", HOLD).await;
    listens_at_the_primary(&cluster, "it listens", &stored).await;
    let home = cluster.primary_of(&stored);
    for to in [(home + 1) % 3, home] {
        cluster.migrate(&stored, to);
    }
    listens_at_the_primary(&cluster, "it listens again", &stored).await;
    expect_turn(guard, waiting).await;
}

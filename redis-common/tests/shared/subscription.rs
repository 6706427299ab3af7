//! Subscriptions: `listen` waits for the confirmation, faults are survived and reported, and
//! dropping the stream unsubscribes.

use std::time::Duration;

use futures_util::StreamExt;
use leasehold_api::{BackendError, ClockId, LockClient, Notification, Notifications, bounds};
use leasehold_redis_common::Options;
use leasehold_redis_common::script::{Protocol, ScriptSettings};
use leasehold_test_servers::{Data, FaultProxy, RedisServer, Stopwatch, at_a_distance};

use super::support::{
    Backend, Constructor, eventually, expect_rejected, hold, publish, session, url_with_rights,
    wait_in_line,
};
use crate::constructors::CONSTRUCTORS;

/// The longest wait for a notification. It takes seconds to notice a silent connection.
const WAIT: Duration = Duration::from_secs(60);

/// The constructors whose backends listen. Each has a session of its own, because the subscriptions of the one before
/// may end late.
fn listeners() -> impl Iterator<Item = (u8, &'static Constructor)> {
    (1..).zip(CONSTRUCTORS.iter().filter(|it| it.push))
}

fn channel(number: u8) -> String {
    Protocol::new(bounds::DEFAULT_KEY_PREFIX, ScriptSettings::default())
        .expect("a good prefix")
        .channel(&session(number))
}

/// The number of connections that listen for a session, according to the server.
fn subscribers(server: &RedisServer, number: u8) -> u32 {
    let answer = server.run(&["PUBSUB", "NUMSUB", &channel(number)]);
    let (_, count) = answer.rsplit_once(':').expect("a count");
    count.parse().expect("a number")
}

pub(crate) async fn next(stream: &mut Notifications) -> Notification {
    tokio::time::timeout(WAIT, stream.next())
        .await
        .expect("a notification comes in time")
        .expect("the stream has not ended")
}

/// The clock that [`revocations`] names.
const NAMED: ClockId = ClockId::new(0x1122_3344_5566_7788);

/// A message as the scripts send it: the server's time and its clock, then revocations.
fn revocations(sequences: &[u32]) -> Vec<u8> {
    let mut bytes = 1_000.0_f64.to_le_bytes().to_vec();
    bytes.extend_from_slice(&NAMED.get().to_le_bytes());
    for &sequence in sequences {
        bytes.push(b'R');
        bytes.extend_from_slice(&f64::from(sequence).to_le_bytes());
    }
    bytes
}

fn revoked(notification: Notification) -> (u64, ClockId) {
    match notification {
        Notification::Revoked { sequence, stamp } => (sequence, stamp.clock),
        other => panic!("{other:?} instead of a revocation"),
    }
}

/// Checks that a message on the session's channel arrives.
async fn expect_to_hear(server: &RedisServer, number: u8, stream: &mut Notifications) {
    publish(&server.url(), &channel(number), vec![revocations(&[9])]).await;
    assert_eq!(revoked(next(stream).await), (9, NAMED));
}

/// Checks that messages are reported as missing, and that each report says whether the stream still listens.
async fn expect_missed(stream: &mut Notifications, reports: &[bool]) {
    for &listening in reports {
        assert_eq!(next(stream).await, Notification::Missed { listening });
    }
}

async fn expect_no_subscription(backend: &Backend) {
    let error = backend.listen(session(1)).await.err();
    let unavailable = matches!(error, Some(BackendError::Unavailable { .. }));
    assert!(unavailable, "{error:?}");
}

async fn listen(backend: &Backend, number: u8) -> Notifications {
    backend.listen(session(number)).await.expect("subscribed")
}

/// A message would reach whoever reads all channels, and the replicas.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listen_publishes_nothing() {
    for (number, constructor) in listeners() {
        let server = RedisServer::start();
        let backend = constructor.open(&server.url()).await;
        let stream = listen(&backend, number).await;
        assert_eq!(subscribers(&server, number), 1);
        let counted = server.run(&["INFO", "commandstats"]);
        assert!(counted.contains("cmdstat_subscribe"), "{counted}");
        assert!(!counted.contains("cmdstat_publish"), "{counted}");
        drop(stream);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listen_subscribes_and_dropping_the_stream_unsubscribes() {
    let server = RedisServer::start();
    for (number, constructor) in listeners() {
        let backend = constructor.open(&server.url()).await;
        let mut stream = listen(&backend, number).await;
        assert_eq!(subscribers(&server, number), 1);
        publish(&server.url(), &channel(number), vec![revocations(&[7, 8])]).await;
        assert_eq!(revoked(next(&mut stream).await), (7, NAMED));
        assert_eq!(revoked(next(&mut stream).await), (8, NAMED));
        drop(stream);
        eventually("nobody listens", async || subscribers(&server, number) == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unix_socket_works() {
    let server = RedisServer::start();
    for (number, constructor) in listeners() {
        let backend = constructor.open(&server.unix_url()).await;
        backend.hello().await.expect("an answer");
        let mut stream = listen(&backend, number).await;
        expect_to_hear(&server, number, &mut stream).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_burst_is_kept() {
    // More than the 1,024 that fred keeps.
    const MESSAGES: u32 = 1_500;
    let server = RedisServer::start();
    for (number, constructor) in listeners() {
        let backend = constructor.open(&server.url()).await;
        let mut stream = listen(&backend, number).await;
        let burst = (1..=MESSAGES).map(|sequence| revocations(&[sequence]));
        publish(&server.url(), &channel(number), burst.collect()).await;
        for sequence in 1..=MESSAGES {
            let received = revoked(next(&mut stream).await).0;
            assert_eq!(received, u64::from(sequence));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_message_counts_as_missed() {
    let server = RedisServer::start();
    for (number, constructor) in listeners() {
        let backend = constructor.open(&server.url()).await;
        let mut stream = listen(&backend, number).await;
        let messages = vec![b"what is this?".to_vec(), revocations(&[3])];
        publish(&server.url(), &channel(number), messages).await;
        expect_missed(&mut stream, &[true]).await;
        assert_eq!(revoked(next(&mut stream).await).0, 3);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_subscription_is_reported_and_restored() {
    let server = RedisServer::start();
    for (number, constructor) in listeners() {
        let backend = constructor.open(&server.url()).await;
        let mut stream = listen(&backend, number).await;
        server.run(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        let began = Stopwatch::start();
        expect_missed(&mut stream, &[false, true]).await;
        // Sooner than the ping of a silent connection.
        assert!(began.elapsed() < Duration::from_millis(1_500));
        expect_to_hear(&server, number, &mut stream).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_restart_is_reported() {
    let mut server = RedisServer::start();
    for (number, constructor) in listeners() {
        let backend = constructor.open(&server.url()).await;
        let mut stream = listen(&backend, number).await;
        server.restart(Data::Lost);
        expect_missed(&mut stream, &[false, true]).await;
        expect_to_hear(&server, number, &mut stream).await;
    }
}

/// The old primary keeps its connections open, and relays what the new one publishes. But the new one
/// doesn't know that somebody listens. No command tells the backend of the failover.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscription_at_a_former_primary_is_reported_and_moved() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let proxy = FaultProxy::start(old.address()).await;
    for (number, constructor) in listeners().filter(|(_, it)| it.notices_demotion) {
        proxy.lead_to(old.address());
        let backend = constructor.open(&proxy.url()).await;
        let mut stream = listen(&backend, number).await;
        proxy.lead_to(new.address());
        let port = new.port().to_string();
        old.run(&["REPLICAOF", "127.0.0.1", &port]);
        expect_missed(&mut stream, &[false, true]).await;
        assert_eq!(subscribers(&new, number), 1);
        drop((stream, backend));
        old.run(&["REPLICAOF", "NO", "ONE"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_subscription_is_reported_and_restored() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address()).await;
    for (number, constructor) in listeners() {
        let backend = constructor.open(&proxy.url()).await;
        let mut stream = listen(&backend, number).await;
        proxy.strand_connections();
        expect_missed(&mut stream, &[false, true]).await;
    }
}

/// Connecting takes fred five round trips, and subscribing two more. (The first of them, to the proxy, takes no time.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn distant_server_is_connected_and_heard_by_default() {
    connected_and_heard(Duration::from_millis(150), Options::new()).await;
}

/// The other side of the world. A call takes two round trips if the server doesn't know its script yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn very_distant_server_needs_longer_limits() {
    let limit = bounds::MAX_CALL_TIMEOUT;
    let options = Options::new().call_timeout(limit).connect_timeout(limit);
    let options = options.initial_connect_timeout(limit * 2);
    connected_and_heard(Duration::from_millis(280), options).await;
}

async fn connected_and_heard(there: Duration, options: Options) {
    let server = RedisServer::start();
    let proxy = at_a_distance(server.address(), there);
    let url = format!("redis://{}", proxy.address());
    for (number, constructor) in listeners() {
        let open = async || {
            let backend = constructor.open_with(&url, options.clone()).await;
            let locks = LockClient::builder(backend).call_timeout(options.call_timeout);
            locks.build().expect("good settings")
        };
        let (locks, others) = (open().await, open().await);
        let name = format!("far {number}");
        // Connecting takes some clients longer than a call. They wait here.
        let other = hold(&others, "connected", bounds::DEFAULT_LEASE).await;
        other.release().await.expect("released");
        let guard = hold(&locks, &name, bounds::DEFAULT_LEASE).await;
        let waiting = wait_in_line(&others, &name, bounds::DEFAULT_LEASE).await;
        eventually("the waiter listens", async || {
            server.run(&["PUBSUB", "CHANNELS"]).contains("leasehold:")
        })
        .await;
        guard.release().await.expect("released");
        let guard = waiting.await.expect("no panic").expect("acquired");
        guard.release().await.expect("released");
        for locks in [locks, others] {
            locks.shutdown().await.expect("nothing is left");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listen_fails_in_a_black_hole() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address()).await;
    for (_, constructor) in listeners() {
        let backend = constructor.open(&proxy.url()).await;
        proxy.black_hole();
        expect_no_subscription(&backend).await;
        proxy.heal();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listen_fails_if_the_request_is_lost() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address()).await;
    for (number, constructor) in listeners() {
        let backend = constructor.open(&proxy.url()).await;
        proxy.eat_request(|request| request.is("SUBSCRIBE"));
        expect_no_subscription(&backend).await;
        drop(listen(&backend, number).await);
    }
    assert!(proxy.eaten_requests() >= 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_channel_pattern_is_named() {
    let server = RedisServer::start();
    let url = url_with_rights(&server, &["+@all", "~*", "&other:*"]);
    for (_, constructor) in listeners() {
        let backend = constructor.open(&url).await;
        // Often, because the refusal may arrive before or after the next command is sent.
        for _ in 0..30 {
            let error = backend.listen(session(1)).await.err().expect("refused");
            expect_rejected(&error, "&leasehold:*");
        }
    }
}

/// The client then listens again now and then, and reports why it can't.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_ends_if_the_server_refuses_to_subscribe_again() {
    let server = RedisServer::start();
    for (number, constructor) in listeners() {
        let url = url_with_rights(&server, &["+@all", "~*", "&*"]);
        let backend = constructor.open(&url).await;
        let mut stream = listen(&backend, number).await;
        // The server closes the subscribed connection.
        server.run(&["ACL", "SETUSER", "locks", "resetchannels"]);
        expect_missed(&mut stream, &[false]).await;
        let end = tokio::time::timeout(WAIT, stream.next()).await;
        assert_eq!(end.expect("the stream ends"), None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capabilities_say_whether_listen_works() {
    let server = RedisServer::start();
    for constructor in &CONSTRUCTORS {
        let backend = constructor.open(&server.url()).await;
        let capabilities = backend.capabilities();
        assert_eq!(capabilities.push, constructor.push);
        assert_eq!(capabilities.independent_renewal, constructor.push);
        if !constructor.push {
            let error = backend.listen(session(1)).await.err();
            let unsupported = matches!(error, Some(BackendError::Unsupported { .. }));
            assert!(unsupported, "{error:?}");
        }
    }
}

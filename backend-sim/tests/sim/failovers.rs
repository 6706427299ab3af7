//! Graceful failovers: a replica with all data takes over. Some subscriptions stay at the old server,
//! and the clocks of the servers differ.

use std::slice::from_ref;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join;
use leasehold_api::{
    BackendError, LockBackend, LockClient, MutexGuard, Notification, Outcome, ReleaseReply,
};
use leasehold_sim::{Latency, Reads, SimOptions, SimServer, Tail};

use crate::locks::job;
use crate::support::{MISSED, Raw, assert_is, assert_replays, key, ms, secs};

/// The next notification of a stream within a second.
async fn next(server: &SimServer, stream: &mut leasehold_api::Notifications) -> Notification {
    tokio::select! {
        biased;
        notification = stream.next() => notification.expect("the stream goes on"),
        () = server.advance(secs(1)) => panic!("no notification"),
    }
}

#[tokio::test(start_paused = true)]
async fn request_to_a_demoted_server_is_refused_and_not_executed() {
    let (server, a) = Raw::alone();
    let request = a.request(a.operation(), secs(30)).await;
    let move_it = async { server.switch_over(Duration::ZERO, from_ref(&a.backend)) };
    let (refused, ()) = join(a.send(&request), move_it).await;
    assert_is!(refused => Err(BackendError::Unavailable { .. }));
    let timeline = server.timeline();
    assert!(timeline.contains("READONLY"), "{timeline}");
    server.assert_idle();
    a.send(&request).await.expect("the new primary serves");
    assert!(!server.left_behind().is_empty());
    assert_replays(&server);
}

#[tokio::test(start_paused = true)]
async fn graceful_failover_loses_nothing() {
    let server = SimServer::new(1);
    let locks = LockClient::new(server.client("a"));
    let guard = job(&locks).lock().await.expect("served");
    let before = server.left_behind();
    let clock = server.client("b").hello().await.expect("served").clock;
    server.switch_over(Duration::ZERO, &[]);
    assert_eq!(server.left_behind().lines().count(), before.lines().count());
    let new_clock = server.client("b").hello().await.expect("served").clock;
    assert_ne!(new_clock, clock);
    server.advance(secs(60)).await;
    assert!(guard.is_valid(), "it is renewed at the new primary");
    assert_replays(&server);
}

/// The primary doesn't count the subscription, so it sends no grant there. What it does send
/// arrives, after the lag of the replica.
#[tokio::test(start_paused = true)]
async fn replica_relays_to_a_subscription_that_is_not_counted() {
    let (server, a, b) = Raw::pair();
    let mut stream = b.backend.listen(b.session).await.expect("served");
    let (held, _) = a.acquire(secs(30)).await;
    let (waiting, _) = b.queue(secs(30)).await;
    assert_eq!(server.listeners(b.session), 1);
    server.set_replication_lag(Latency::fixed(ms(40)));
    server.switch_over(Duration::ZERO, from_ref(&b.backend));
    assert_eq!(server.listeners(b.session), 0);

    // The server can't tell who listens, so it grants and publishes.
    server.refuse_count();
    let released = server.elapsed();
    assert_is!(a.release(held).await.expect("served") => ReleaseReply::Released { .. });
    let notification = next(&server, &mut stream).await;
    let Notification::Granted {
        sequence, stamp, ..
    } = notification
    else {
        panic!("{notification:?}");
    };
    assert_eq!(sequence, waiting.sequence);
    let clock = b.backend.hello().await.expect("served").clock;
    // The clock of the primary, not of the replica.
    assert_eq!(stamp.clock, clock);
    // The release takes 1 ms, and the push 41 ms. The second hello takes 2 ms.
    assert_eq!(server.elapsed() - released, ms(44));
    assert_replays(&server);
}

#[tokio::test(start_paused = true)]
async fn waiter_at_a_replica_is_unreachable_until_it_follows() {
    let (server, a, b) = Raw::pair();
    let mut stream = b.backend.listen(b.session).await.expect("served");
    let (held, _) = a.acquire(secs(30)).await;
    let (waiting, _) = b.queue(secs(30)).await;
    server.switch_over(Duration::ZERO, from_ref(&b.backend));
    a.release(held).await.expect("served");
    let left = server.left_behind();
    assert!(left.contains("waits for it"), "it is marked");

    b.backend.follow_primary();
    for missed in MISSED {
        assert_eq!(next(&server, &mut stream).await, missed);
    }
    assert_eq!(server.listeners(b.session), 1);
    b.backend.follow_primary(); // does nothing at the primary
    assert_eq!(server.listeners(b.session), 1);
    b.poll(waiting).await.expect("served");
    assert!(server.left_behind().contains("holds"));

    // A lost connection leads to the primary too, and ends what is at the replica.
    server.switch_over(Duration::ZERO, from_ref(&b.backend));
    b.backend.drop_connection();
    next(&server, &mut stream).await;
    next(&server, &mut stream).await;
    assert_eq!(server.listeners(b.session), 1);
    drop(stream);
    server.advance(ms(10)).await;
    assert_eq!(server.listeners(b.session), 0);
    assert_replays(&server);
}

#[tokio::test(start_paused = true)]
async fn dropped_stream_at_a_replica_leaves_the_count_alone() {
    let server = SimServer::new(1);
    let b = Raw::new(&server, "b");
    let at_replica = b.backend.listen(b.session).await.expect("served");
    server.switch_over(Duration::ZERO, from_ref(&b.backend));
    // An old map of the cluster leads new subscriptions there too.
    let also = b.backend.listen(b.session).await.expect("served");
    assert_eq!(server.listeners(b.session), 0);
    drop((at_replica, also));
    server.advance(ms(10)).await;
    assert_eq!(server.listeners(b.session), 0);
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "a switchover needs a single primary")]
async fn switchover_of_two_primaries_is_refused() {
    let server = SimServer::with_options(SimOptions::new(1).journal(1));
    server.split(Tail::Commands(0), &[]);
    server.switch_over(Duration::ZERO, &[]);
}

async fn try_lock(locks: &LockClient) -> Option<MutexGuard> {
    job(locks).try_lock().await.expect("served").into_guard()
}

/// Assumption A3 covers the clocks of all servers of a key: a lease ends at a time on the clock of the
/// server that granted it. Here the next server's clock is 60 s ahead.
#[tokio::test(start_paused = true)]
async fn lock_that_moves_to_a_clock_far_ahead_has_two_holders() {
    let server = SimServer::new(1);
    let [a, b] = ["a", "b"].map(|name| LockClient::new(server.client(name)));
    // It has no subscription. With one, the client renews when that is back, and notices at once.
    let held = try_lock(&a).await.expect("free"); // for 30 s
    let granted = server.elapsed();
    server.advance(ms(100)).await;
    assert!(try_lock(&b).await.is_none());

    let moved = server.elapsed();
    server.switch_over(secs(60), &[]);
    let second = try_lock(&b).await.expect("the lease seems to have expired");
    // Two round trips: by the new clock, the first request is too late.
    assert_eq!(server.elapsed() - moved, ms(4));
    assert!(held.is_valid() && second.is_valid(), "two holders");
    let (old, new) = (held.fencing_token(), second.fencing_token());
    assert!(new > old, "fencing tells them apart");

    // The first renewal tells the first holder, after nearly a third of its lease.
    held.lost().await;
    let lost = server.elapsed() - granted;
    assert!(lost >= secs(9) && lost <= secs(10) + ms(2), "{lost:?}");
    assert!(second.is_valid());
}

/// Whether the guard of a client that can't renew is lost before the next holder enters. The client's
/// clock is slow by the whole allowance of 1 %, and the next server's clock is `ahead`.
async fn exclusion_holds(ahead: Duration) -> bool {
    let server = SimServer::with_options(SimOptions::new(1).latency(Latency::ZERO));
    let machine = server.client("a");
    machine.set_clock_rate(-10_000);
    let [a, b] = [machine.clone(), server.client("b")].map(LockClient::new);
    let held = job(&a).lock().await.expect("served");
    machine.isolate();
    server.switch_over(ahead, &[]);
    server.advance(ms(29_900)).await;
    loop {
        server.advance(ms(1)).await;
        if let Outcome::Acquired(_) = job(&b).try_lock().await.expect("served") {
            return !held.is_valid();
        }
    }
}

/// The drift allowance is 1 % of the lease and 10 ms. Clocks that run apart may use up the first part,
/// so the second part alone is for the clocks of other servers.
#[tokio::test(start_paused = true)]
async fn drift_allowance_covers_servers_that_are_ten_milliseconds_apart() {
    assert!(exclusion_holds(ms(10)).await);
    assert!(!exclusion_holds(ms(12)).await);
}

#[tokio::test(start_paused = true)]
async fn replica_refuses_every_command_of_its_visitors() {
    let (server, a) = Raw::alone();
    let request = a.request(a.operation(), secs(30)).await;
    server.cut_off_replica(Reads::Refused);
    a.backend.visit_replica();
    assert!(a.backend.hello().await.is_err());
    assert!(a.backend.inspect(&key()).await.is_err());
    assert!(a.send(&request).await.is_err());
    server.assert_idle();
    a.backend.leave_replica();
    a.send(&request).await.expect("the primary serves");
    assert!(!server.left_behind().is_empty());
    assert_replays(&server);
}

/// It answers what writes nothing, from the data of the moment when it lost its link.
#[tokio::test(start_paused = true)]
async fn replica_that_lags_answers_from_its_old_data() {
    let (server, a, b) = Raw::pair();
    let (held, _) = a.acquire(secs(30)).await;
    server.cut_off_replica(Reads::Answered);
    a.release(held).await.expect("served");
    b.backend.visit_replica();
    let old = b.backend.inspect(&key()).await.expect("answered");
    let hello = b.backend.hello().await.expect("answered");
    assert_eq!((old.reply.holder_count, old.stamp.clock), (1, hello.clock));
    // A release leaves a watermark.
    let released = b.release(b.operation()).await;
    assert!(released.is_err(), "{released:?}");
    server.switch_over(Duration::ZERO, &[]);
    let followed = b.backend.inspect(&key()).await.expect("answered");
    assert_eq!(followed.reply.holder_count, 0, "it follows the new primary");
    b.backend.leave_replica();
    let now = b.backend.inspect(&key()).await.expect("served");
    assert_eq!(now.reply.holder_count, 0);
    assert_ne!(now.stamp.clock, followed.stamp.clock);
    assert_replays(&server);
}

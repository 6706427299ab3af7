//! Commands at the same time, of one client and of several.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{join, join_all, join3};
use leasehold_api::{AcquireReply, BackendError, LockBackend, Release, Renew};
use leasehold_store::Written;

use crate::steps::{
    Client, LEASE, ask, enter, holders, key, operation, release, send, session, start, waiting,
};
use crate::support::Server;

const LATENCY: Duration = Duration::from_millis(1);

/// Queues a session for each number.
async fn queue(server: &Server, client: &Client, numbers: RangeInclusive<u8>) {
    for number in numbers {
        let queued = send(client, waiting(server, operation(number, 1)));
        queued.await.expect("a reply");
    }
}

/// The first command begins at once. All that come meanwhile are executed together, in their order.
#[tokio::test(start_paused = true)]
async fn commands_of_one_client_share_a_write() {
    let (server, client) = start(LATENCY);
    let first = async { enter(&client, ask(&server, operation(1, 1), LEASE)).await };
    let others = async {
        tokio::time::sleep(LATENCY / 10).await;
        let sent = (2..=100).map(|n| send(&client, waiting(&server, operation(n, 1))));
        join_all(sent).await
    };
    let (_, replies) = join(first, others).await;
    let places: Vec<_> = replies
        .into_iter()
        .map(|reply| match reply {
            Ok(AcquireReply::Queued(queued)) => queued.ahead,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(places, (0..99).collect::<Vec<_>>());
    let writes = server.arrived();
    let all_applied = writes.iter().all(|(_, written)| written.is_applied());
    assert!(all_applied && writes.len() == 2, "{writes:?}");
}

#[tokio::test(start_paused = true)]
async fn commands_of_a_batch_on_one_key_share_a_write() {
    let (server, client) = start(LATENCY);
    for number in 1..=3 {
        send(&client, waiting(&server, operation(1, number)))
            .await
            .expect("a reply");
    }
    let before = server.arrived().len();
    let batch: Vec<_> = (1..=3)
        .map(|number| Release::new(key(), operation(1, number)))
        .collect();
    let replies = client.release(&batch).await;
    let stamps: BTreeSet<_> = replies
        .into_iter()
        .map(|it| it.expect("a reply").stamp.at)
        .collect();
    assert_eq!(stamps.len(), 1);
    assert_eq!(server.arrived().len(), before + 1);
}

/// Expects a holder, and one waiter for whom nobody listens.
async fn expect_unreachable_waiter(client: &Client) {
    let inspection = client.inspect(&key()).await.expect("a reply").reply;
    assert_eq!((inspection.holder_count, inspection.waiter_count), (1, 1));
    assert!(inspection.waiters[0].unreachable);
}

#[tokio::test(start_paused = true)]
async fn store_is_asked_who_listens_before_a_grant() {
    let (server, client) = start(LATENCY);
    enter(&client, ask(&server, operation(1, 1), LEASE)).await;
    queue(&server, &client, 2..=3).await;
    let _third = client.listen(session(3)).await.expect("a stream");
    assert!(server.asked().is_empty(), "nothing was to be granted");
    release(&client, operation(1, 1)).await;
    assert_eq!(server.asked(), [session(2), session(3)]);
    expect_unreachable_waiter(&client).await;
}

/// A waiter that listens gets the lock in one read and one write. If it doesn't, the write is refused, and the
/// store is asked.
#[tokio::test(start_paused = true)]
async fn store_compares_who_listens_in_the_write() {
    let server = Server::new(1, LATENCY);
    server.compare_reach();
    let client = server.client();
    enter(&client, ask(&server, operation(1, 1), LEASE)).await;
    queue(&server, &client, 2..=4).await;
    let _second = client.listen(session(2)).await.expect("a stream");
    let before = (server.reads(), server.arrived().len());
    release(&client, operation(1, 1)).await;
    let after = (server.reads(), server.arrived().len());
    assert_eq!(after, (before.0 + 1, before.1 + 1));
    assert!(server.asked().is_empty(), "{:?}", server.asked());
    let _fourth = client.listen(session(4)).await.expect("a stream");
    release(&client, operation(2, 1)).await;
    let writes = server.arrived();
    let refused = writes.iter().filter(|it| it.1 == Written::NotListening);
    assert_eq!(refused.count(), 1, "{writes:?}");
    assert_eq!(server.asked(), [session(3), session(4)]);
    expect_unreachable_waiter(&client).await;
}

/// A renewal does not wait for a command whose write hangs.
#[tokio::test(start_paused = true)]
async fn renewals_pass_a_command() {
    let server = Server::new(1, LATENCY);
    let client = server.client().renewals(server.store());
    assert!(client.capabilities().independent_renewal);
    enter(&client, ask(&server, operation(1, 1), LEASE)).await;
    server.set_stopped(true);
    let stuck = send(&client, ask(&server, operation(2, 1), LEASE));
    let renewing = async {
        tokio::time::sleep(LATENCY * 5).await;
        server.set_stopped(false);
        let renew = Renew::new(key(), operation(1, 1), LEASE).expect("valid");
        let begun = tokio::time::Instant::now();
        let renewed = client.renew(&[renew]).await.remove(0);
        (renewed, begun.elapsed())
    };
    let (stuck, (renewed, took)) = join(stuck, renewing).await;
    assert_matches!(stuck, Err(BackendError::OutcomeUnknown { .. }));
    assert!(renewed.is_ok(), "{renewed:?}");
    assert!(took < Duration::from_millis(100), "{took:?}");
}

/// The program has a future that it does not poll for a while, for example after a `select!`.
#[tokio::test(start_paused = true)]
async fn caller_that_is_not_polled_holds_nobody_up() {
    let (server, client) = start(LATENCY);
    let mut waits = Box::pin(send(&client, ask(&server, operation(1, 1), LEASE)));
    assert!(waits.as_mut().now_or_never().is_none());
    let begun = tokio::time::Instant::now();
    let second = send(&client, ask(&server, operation(1, 2), LEASE)).await;
    assert_matches!(second, Ok(AcquireReply::Contended(_)));
    assert!(begun.elapsed() < Duration::from_millis(100));
    assert!(matches!(waits.await, Ok(AcquireReply::Acquired(_))));
}

/// It waits behind a write that hangs. Its caller is told that nothing was written, and nothing is.
#[tokio::test(start_paused = true)]
async fn command_that_had_no_turn_is_never_executed() {
    let (server, client) = start(LATENCY);
    server.set_stopped(true);
    let begun = tokio::time::Instant::now();
    let first = send(&client, ask(&server, operation(1, 1), LEASE));
    let second = async {
        tokio::time::sleep(LATENCY * 5).await;
        server.set_stopped(false);
        let limit = Duration::from_millis(500);
        let second = send(&client, ask(&server, operation(2, 1), LEASE));
        tokio::time::timeout(limit, second).await
    };
    let (first, second) = join(first, second).await;
    assert_matches!(first, Err(BackendError::OutcomeUnknown { .. }));
    assert!(second.is_err(), "{second:?}");
    assert_eq!(begun.elapsed(), Duration::from_secs(1));
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(server.arrived().is_empty());
    // The next one has its whole time.
    enter(&client, ask(&server, operation(3, 1), LEASE)).await;
}

/// Two commands share a read that takes long. The first one's caller is told meanwhile that nothing was
/// written. The write for the second must not contain the first.
#[tokio::test(start_paused = true)]
async fn command_that_was_given_up_is_left_out_of_a_shared_write() {
    let server = Server::with_work(1, Duration::ZERO, Duration::from_millis(400));
    let client = server.client();
    let earlier = async { release(&client, operation(3, 1)).await };
    let given_up = async {
        tokio::time::sleep(LATENCY).await;
        send(&client, ask(&server, operation(1, 1), LEASE)).await
    };
    let patient = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        let release = Release::new(key(), operation(2, 1));
        client.release(&[release]).await.remove(0)
    };
    let (_, given_up, _) = join3(earlier, given_up, patient).await;
    assert_matches!(given_up, Err(BackendError::Unavailable { .. }));
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(holders(&client).await, 0);
}

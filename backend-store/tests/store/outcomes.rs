//! The outcome of a call whose reads or writes fail.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join;
use leasehold_api::bounds::{DELIVERY_WINDOW, MAX_CALL_TIMEOUT, MIN_LEASE};
use leasehold_api::machine::State;
use leasehold_api::{AcquireReply, BackendError, LockBackend, ReleaseReply};

use crate::steps::{
    LEASE, ask, enter, holders, key, operation, queue_without_listening, release, send, start,
};
use crate::support::{Fault, Faults, Server};

#[tokio::test(start_paused = true)]
async fn call_that_wrote_nothing_is_unavailable() {
    let limit = Duration::from_millis(100);
    // Conflicts without end, a read that fails, and one without an answer.
    for (fault, took) in [
        (Fault::Conflict, limit),
        (Fault::Unavailable, Duration::ZERO),
        (Fault::Hangs, limit),
    ] {
        let (server, client) = start(Duration::ZERO);
        server.set_faults(Faults::always(fault));
        let client = client.call_timeout(limit).expect("valid");
        let begun = tokio::time::Instant::now();
        let result = send(&client, ask(&server, operation(1, 1), LEASE)).await;
        assert_matches!(result, Err(BackendError::Unavailable { .. }));
        assert_eq!(begun.elapsed(), took, "{fault:?}");
        assert!(server.row(&key()).is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn lost_reply_to_a_write_is_unknown_and_a_retry_reports() {
    let (server, client) = start(Duration::ZERO);
    server.set_faults(Faults::always(Fault::LostReply));
    let request = ask(&server, operation(1, 1), LEASE);
    let result = send(&client, request.clone()).await;
    assert_matches!(result, Err(BackendError::OutcomeUnknown { .. }));
    server.set_faults(Faults::default());
    let granted = server.stamp().at;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let acquired = enter(&client, request).await;
    assert_eq!(acquired.token.get(), granted.as_micros());
    assert_eq!(acquired.remaining, LEASE - Duration::from_secs(1));
}

/// The row that comes with the refusal of the second copy has the version of the first.
#[tokio::test(start_paused = true)]
async fn doubled_write_counts_once_if_its_refusal_brings_the_row() {
    let (server, client) = start(Duration::ZERO);
    server.send_rows();
    enter(&client, ask(&server, operation(1, 1), LEASE)).await;
    queue_without_listening(&server, &server.client(), operation(2, 1)).await;
    let before = (server.arrived().len(), server.reads());
    server.set_faults(Faults::always(Fault::Doubled));
    let released = release(&client, operation(1, 1)).await;
    assert_matches!(released, ReleaseReply::Released { holds_left: 0, .. });
    let after = (server.arrived().len(), server.reads());
    // The remembered row is tried first, in vain. Both writes arrive twice.
    let expected = (before.0 + 4, before.1 + 2);
    assert_eq!(after, expected, "a read before and after the second write");
}

/// Its first copy was applied, and its lease is over before the client learns that.
#[tokio::test(start_paused = true)]
async fn doubled_write_of_an_ended_hold_is_no_hold() {
    let server = Server::new(1, 4 * MIN_LEASE);
    let client = server.client().call_timeout(MAX_CALL_TIMEOUT);
    server.set_faults(Faults::always(Fault::Doubled));
    let request = ask(&server, operation(1, 1), MIN_LEASE);
    let client = client.expect("valid");
    assert_matches!(send(&client, request).await, Ok(AcquireReply::Stale));
}

#[tokio::test(start_paused = true)]
async fn later_versions_and_other_values_are_left_alone() {
    let (server, client) = start(Duration::ZERO);
    for (bytes, expected) in [
        (&b"LHS\x09"[..], "format version 9"),
        (b"text", "not the state of a lock"),
    ] {
        server.put(&key(), bytes);
        let result = send(&client, ask(&server, operation(1, 1), LEASE)).await;
        match result {
            Err(BackendError::ForeignValue { found, .. }) => assert_eq!(found, expected),
            other => panic!("{other:?}"),
        }
        assert_eq!(server.row(&key()).expect("a row").bytes, bytes);
    }
    assert!(server.arrived().is_empty());
}

#[tokio::test(start_paused = true)]
async fn stream_that_waits_ends_with_close_and_not_with_the_backend() {
    let (server, closed) = start(Duration::ZERO);
    let (dropped, session) = (server.client(), operation(1, 1).session);
    let mut stream = closed.listen(session).await.expect("a stream");
    let next = tokio::time::timeout(Duration::from_secs(1), stream.next());
    let (next, closed) = join(next, closed.close()).await;
    closed.expect("closes");
    assert_eq!(next, Ok(None), "the stream ends");

    let mut stream = dropped.listen(session).await.expect("a stream");
    let next = tokio::time::timeout(Duration::from_secs(1), stream.next());
    let (next, ()) = join(next, async move { drop(dropped) }).await;
    assert!(next.is_err(), "the stream goes on");
}

#[tokio::test(start_paused = true)]
async fn close_while_a_subscription_is_on_its_way_answers_closed() {
    let client = Server::new(1, Duration::from_millis(900)).client();
    let listening = client.listen(operation(1, 1).session);
    let (stream, closed) = join(listening, client.close()).await;
    closed.expect("closes");
    assert!(matches!(stream, Err(BackendError::Closed)));
}

/// A subscription may take a new connection.
#[tokio::test(start_paused = true)]
async fn listening_takes_longer_than_a_short_call() {
    let server = Server::new(1, Duration::from_millis(900));
    let limit = Duration::from_millis(10);
    let client = server.client().call_timeout(limit).expect("in range");
    let begun = tokio::time::Instant::now();
    let listening = client.listen(operation(1, 1).session).await;
    assert!(listening.is_ok());
    assert!(begun.elapsed() > limit);
}

/// The write that confirms it may have been applied, and changes nothing. The caller need not know.
#[tokio::test(start_paused = true)]
async fn confirmation_without_a_reply_is_unavailable() {
    let (server, client) = start(Duration::ZERO);
    enter(&client, ask(&server, operation(1, 1), LEASE)).await;
    for fault in [Fault::LostReply, Fault::Late] {
        server.answer_old(server.row(&key()));
        server.set_faults(Faults::always(fault));
        let inspected = client.inspect(&key()).await;
        assert_matches!(inspected, Err(BackendError::Unavailable { .. }));
    }
    server.set_faults(Faults::default());
    server.answer_old(server.row(&key()));
    server.set_stopped(true);
    let inspected = client.inspect(&key()).await;
    assert_matches!(inspected, Err(BackendError::Unavailable { .. }));
    assert!(server.pending().is_some(), "it was sent");
}

/// A server that was deposed has answered the read, from before the acquire.
#[tokio::test(start_paused = true)]
async fn read_that_may_be_old_is_confirmed_by_a_write() {
    let (server, client) = start(Duration::ZERO);
    server.answer_old(None);
    let created = holders(&server.client()).await;
    assert_eq!(created, 0);
    let (write, written) = server.arrived().pop().expect("a write");
    assert!(written.is_applied() && write.row.bytes == State::default().to_bytes());
    assert!(write.keep_until >= server.stamp().at.saturating_add(2 * DELIVERY_WINDOW));
    let before = server.row(&key());
    enter(&client, ask(&server, operation(1, 1), LEASE)).await;
    server.answer_old(before.clone());
    assert_eq!(holders(&server.client()).await, 1);
    server.answer_old(before.clone());
    let asked = send(&server.client(), ask(&server, operation(2, 1), LEASE)).await;
    assert_matches!(asked, Ok(AcquireReply::Contended(_)));
    server.answer_old(before);
    let released = release(&server.client(), operation(1, 1)).await;
    assert_matches!(released, ReleaseReply::Released { holds_left: 0, .. });
}

//! Writes that arrive late: after their call, and after their row has come and gone.

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::bounds::{DELIVERY_WINDOW, MAX_CALL_TIMEOUT, TOKEN_RETENTION};
use leasehold_api::{BackendError, Key, LockBackend, ReleaseReply};
use leasehold_store::Written;

use crate::steps::{Client, LEASE, ask, enter, holders, key, operation, release, send, start};
use crate::support::{Fault, Faults, Sent, Server};

const SHORT: Duration = Duration::from_secs(1);

/// Another client sends an acquire and gives up while its write is on its way. Returns the write.
async fn held_back(server: &Arc<Server>, lease: Duration) -> Sent {
    server.set_stopped(true);
    let client = server.client();
    let sending = send(&client, ask(server, operation(1, 1), lease));
    let gave_up = tokio::time::timeout(Duration::from_millis(5), sending).await;
    assert!(gave_up.is_err(), "{gave_up:?}");
    server.set_stopped(false);
    server.pending().expect("a write on its way")
}

/// Another client's use of the key, until its row is removed.
async fn use_and_forget(server: &Arc<Server>, client: &Client) {
    let own = operation(2, 1);
    enter(client, ask(server, own, SHORT)).await;
    let released = release(client, own).await;
    assert!(matches!(released, ReleaseReply::Released { .. }));
    assert!(server.row(&key()).is_some());
    tokio::time::sleep(LEASE + TOKEN_RETENTION * 2).await;
    server.remove_expired();
    assert!(server.row(&key()).is_none(), "the row has come and gone");
}

#[tokio::test(start_paused = true)]
async fn late_creation_is_refused_after_the_row_has_come_and_gone() {
    let (server, client) = start(Duration::ZERO);
    // A lease that outlasts the row of the other client.
    let late = held_back(&server, Duration::from_secs(3_600)).await;
    assert_eq!(late.expected, None, "the write creates a row");
    use_and_forget(&server, &client).await;
    assert_eq!(server.arrive(&late), Written::NotApplied);
    assert_eq!(holders(&client).await, 0);
}

/// The row has as many writes as before, so a version that counts them would be the same.
#[tokio::test(start_paused = true)]
async fn late_replacement_is_refused_after_the_row_was_created_again() {
    let (server, client) = start(Duration::ZERO);
    enter(&client, ask(&server, operation(3, 1), SHORT)).await;
    release(&client, operation(3, 1)).await;
    // The row ends while the write is on its way.
    let row = server.row(&key()).expect("a row");
    let late = held_back(&server, LEASE).await;
    assert_eq!(late.expected, Some(row.version));
    server.forget(&key());
    enter(&client, ask(&server, operation(2, 1), LEASE)).await;
    release(&client, operation(4, 9)).await;
    assert_eq!(server.arrive(&late), Written::NotApplied);
    assert_eq!(holders(&client).await, 1);
}

#[tokio::test(start_paused = true)]
async fn write_may_not_arrive_after_its_call() {
    let (server, client) = start(Duration::ZERO);
    let sent_at = server.stamp().at;
    let late = held_back(&server, LEASE).await;
    assert!(late.deadline > sent_at);
    let ends = sent_at.saturating_add(Duration::from_secs(1));
    assert!(late.deadline <= ends, "{:?} after {ends:?}", late.deadline);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.arrive(&late), Written::NotApplied);
    assert_eq!(holders(&client).await, 0);
}

/// The argument of decision 0022: no row comes and goes before the longest deadline of a write.
#[tokio::test(start_paused = true)]
async fn row_outlasts_every_write_that_was_sent_before_it() {
    let (server, client) = start(Duration::ZERO);
    // The shortest life of a row: a release of an operation that never held.
    release(&client, operation(1, 1)).await;
    let created = server.stamp().at;
    let (sent, written) = server.arrived().remove(0);
    assert!(written.is_applied());
    let life = sent.keep_until.saturating_since(created);
    assert!(life >= DELIVERY_WINDOW * 2, "{life:?}");
    assert!(MAX_CALL_TIMEOUT + DELIVERY_WINDOW < life);
    let too_long = server.client().call_timeout(MAX_CALL_TIMEOUT * 2);
    assert!(too_long.is_err());
}

#[tokio::test(start_paused = true)]
async fn row_is_kept_until_its_state_has_ended() {
    let (server, client) = start(Duration::ZERO);
    enter(&client, ask(&server, operation(1, 1), LEASE)).await;
    let (sent, _) = server.arrived().remove(0);
    let kept = sent.keep_until.saturating_since(server.stamp().at);
    assert!(
        kept >= LEASE + TOKEN_RETENTION + Duration::from_secs(1),
        "{kept:?}"
    );
    // Somebody writes once in a while, and so the row goes.
    tokio::time::sleep(kept).await;
    let other = Key::new("other").expect("valid");
    client.inspect(&other).await.expect("a reply");
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(server.row(&key()).is_none());
}

#[tokio::test(start_paused = true)]
async fn acquire_that_was_released_does_not_arrive_later() {
    let (server, client) = start(Duration::ZERO);
    server.set_faults(Faults::always(Fault::Late));
    let lost = send(&client, ask(&server, operation(1, 1), LEASE)).await;
    assert!(matches!(lost, Err(BackendError::OutcomeUnknown { .. })));
    server.set_faults(Faults::default());
    release(&client, operation(1, 1)).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(server.arrived().len(), 2, "the write has arrived");
    assert_eq!(holders(&client).await, 0);
}

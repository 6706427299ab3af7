//! Commands on a row that the client remembers.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use leasehold_api::bounds::MIN_LEASE;
use leasehold_api::{
    Acquire, AcquireReply, Acquired, EndReason, LockBackend, Release, ReleaseReply, Stamped,
};

use crate::steps::{
    Client, LEASE, ask, enter, holders, key, operation, queue_without_listening, release, send,
    start,
};
use crate::support::{Fault, Faults, Server};

const LATENCY: Duration = Duration::from_millis(5);

/// Acquires, and returns the reply with its stamp.
async fn acquired(client: &Client, request: Acquire) -> Stamped<Acquired> {
    let answer = client.acquire(&[request]).await.remove(0).expect("a reply");
    match answer.reply {
        AcquireReply::Acquired(reply) => Stamped {
            stamp: answer.stamp,
            reply,
        },
        other => panic!("{other:?}"),
    }
}

/// Acquires and releases the lock. Returns how many reads and writes that took.
async fn pair(server: &Arc<Server>, client: &Client, sequence: u64) -> (usize, usize) {
    let before = (server.reads(), server.arrived().len());
    let own = operation(1, sequence);
    enter(client, ask(server, own, LEASE)).await;
    release(client, own).await;
    (server.reads() - before.0, server.arrived().len() - before.1)
}

/// A client that remembers the row.
async fn start_known() -> (Arc<Server>, Client) {
    let (server, client) = start(LATENCY);
    pair(&server, &client, 1).await;
    (server, client)
}

#[tokio::test(start_paused = true)]
async fn pair_on_a_known_key_is_two_writes() {
    let (server, client) = start(LATENCY);
    known_key(&server, &client).await;
    let (server, client) = start(LATENCY);
    server.compare_tags();
    known_key(&server, &client).await;
}

async fn known_key(server: &Arc<Server>, client: &Client) {
    assert_eq!(pair(server, client, 1).await, (1, 2), "a new key");
    assert_eq!(pair(server, client, 2).await, (0, 2));
    // The estimate of the clock ends.
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(pair(server, client, 3).await, (1, 2));
    assert_eq!(pair(server, client, 4).await, (0, 2));
}

/// A database reads its clock for each expression of a statement.
#[tokio::test(start_paused = true)]
async fn clock_that_is_read_after_the_write_ends_no_hold() {
    let (server, client) = start_known().await;
    server.read_late(4 * MIN_LEASE);
    for sequence in 2..20 {
        let request = ask(&server, operation(1, sequence), MIN_LEASE);
        let acquired = acquired(&client, request).await;
        assert!(!acquired.reply.remaining.is_zero(), "{acquired:?}");
        release(&client, operation(1, sequence)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn another_clients_holder_is_seen() {
    let server = Server::new(1, LATENCY);
    let (client, other) = (server.client(), server.client());
    pair(&server, &client, 1).await;
    enter(&other, ask(&server, operation(2, 1), LEASE)).await;
    let reply = send(&client, ask(&server, operation(1, 2), LEASE)).await;
    assert_matches!(reply, Ok(AcquireReply::Contended(_)));
    release(&other, operation(2, 1)).await;
    // It has remembered neither its own row nor the other's.
    let reads = server.reads();
    enter(&client, ask(&server, operation(1, 3), LEASE)).await;
    assert_eq!(server.reads(), reads + 1);
}

/// A client that finds its own holder says so only after a read: another one may have released it.
#[tokio::test(start_paused = true)]
async fn only_success_is_told_without_a_read() {
    let (server, client) = start(LATENCY);
    enter(&client, ask(&server, operation(1, 1), LEASE)).await;
    let other = server.client();
    release(&other, operation(1, 1)).await;
    let reply = send(&client, ask(&server, operation(3, 1), LEASE)).await;
    assert_matches!(reply, Ok(AcquireReply::Acquired(_)));
    let reply = release(&client, operation(1, 1)).await;
    let expected = ReleaseReply::NotHeld(EndReason::Released);
    assert_eq!(reply, expected);
}

/// The client counts the time that is left from before its call (rule 2). The step was at an estimated time,
/// which is before the call.
#[tokio::test(start_paused = true)]
async fn remaining_time_counts_from_the_clock_at_the_write() {
    let (server, client) = start_known().await;
    tokio::time::sleep(Duration::from_secs(9)).await;
    let (sent, reads) = (server.stamp().at, server.reads());
    let answer = acquired(&client, ask(&server, operation(1, 2), LEASE)).await;
    assert_eq!(server.reads(), reads, "without a read");
    let (step, _) = server.arrived().pop().expect("a write");
    let step = step.stamp.at;
    assert!(step < sent, "the estimate is behind");
    assert!(answer.stamp.at >= sent && answer.stamp.at <= server.stamp().at);
    let end = answer.stamp.at.saturating_add(answer.reply.remaining);
    assert_eq!(end, step.saturating_add(LEASE), "the end that is stored");
}

/// At the estimated time the hold is live, at the store's time it has expired.
#[tokio::test(start_paused = true)]
async fn hold_that_has_expired_is_not_released() {
    let (server, client) = start(Duration::ZERO);
    let answer = acquired(&client, ask(&server, operation(1, 1), MIN_LEASE * 50)).await;
    tokio::time::sleep(answer.reply.remaining).await;
    let reply = release(&client, operation(1, 1)).await;
    assert_eq!(reply, ReleaseReply::NotHeld(EndReason::Expired));
    let writes = server.arrived();
    assert!(!writes[1].1.is_applied(), "{:?}", writes[1]);
}

/// The estimate is ahead of the store's clock after a step. The row that is stored must not be from the future.
#[tokio::test(start_paused = true)]
async fn step_in_the_future_is_refused() {
    let (server, client) = start_known().await;
    server.step_clock(|clock| clock - Duration::from_secs(1));
    enter(&client, ask(&server, operation(1, 2), LEASE)).await;
    let writes = server.arrived();
    let refused = writes.iter().filter(|it| !it.1.is_applied());
    assert_eq!(refused.count(), 1);
    let (last, _) = writes.last().expect("a write");
    assert!(last.stamp.at <= server.stamp().at);
}

/// A waiter that doesn't listen gets no message, but its grant is a step after a read, too.
#[tokio::test(start_paused = true)]
async fn waiter_is_granted_after_a_read() {
    let (server, client) = start_known().await;
    enter(&client, ask(&server, operation(1, 2), LEASE)).await;
    queue_without_listening(&server, &client, operation(2, 1)).await;
    let reads = server.reads();
    release(&client, operation(1, 2)).await;
    assert_eq!(server.reads(), reads + 1);
}

/// An older answer arrives after a newer one, and says an older time.
#[tokio::test(start_paused = true)]
async fn steps_never_go_back() {
    for seed in 0..50 {
        let server = Server::new(seed, LATENCY * 10);
        let client = server.client();
        for sequence in 1..10 {
            let hellos = join_all((0..4).map(|_| client.hello()));
            join(hellos, pair(&server, &client, sequence)).await;
        }
        let applied = server.arrived().into_iter().filter(|it| it.1.is_applied());
        let times: Vec<_> = applied.map(|(sent, _)| sent.stamp.at).collect();
        assert!(times.is_sorted(), "seed {seed}: {times:?}");
    }
}

/// The store applies the write twice, and says that the second was refused.
#[tokio::test(start_paused = true)]
async fn doubled_write_counts_once() {
    let (server, client) = start_known().await;
    server.set_faults(Faults::always(Fault::Doubled));
    for sequence in 2..20 {
        let own = operation(1, sequence);
        let sent = server.stamp().at;
        let answer = acquired(&client, ask(&server, own, LEASE)).await;
        assert!(answer.stamp.at >= sent);
        let released = client.release(&[Release::new(key(), own)]).await.remove(0);
        let expected = ReleaseReply::Released {
            holds_left: 0,
            holder: None,
        };
        assert_eq!(released.expect("a reply").reply, expected);
    }
    let writes = server.arrived();
    let applied = writes.iter().filter(|(_, outcome)| outcome.is_applied());
    // The pair before the loop, then 18 pairs of which every write arrives twice.
    assert_eq!((applied.count(), writes.len()), (2 + 2 * 18, 2 + 4 * 18));
    server.set_faults(Faults::default());
    assert_eq!(holders(&client).await, 0);
}

/// Two clients take turns. After the first attempt in vain, each reads first.
#[tokio::test(start_paused = true)]
async fn alternating_clients_pay_nothing() {
    let server = Server::new(1, LATENCY);
    let clients = [server.client(), server.client()];
    for sequence in 1..=50 {
        for (client, number) in clients.iter().zip(1..) {
            let own = operation(number, sequence);
            enter(client, ask(&server, own, LEASE)).await;
            release(client, own).await;
        }
    }
    let (reads, writes) = (server.reads(), server.arrived().len());
    println!("{reads} reads, {writes} writes for 100 pairs");
    assert!(writes <= 202, "{writes}");
    // After its acquire, a client knows that the row is its own.
    assert!(reads <= 202, "{reads}");
}

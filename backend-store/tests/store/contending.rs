//! Many clients that compete for one key.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use leasehold_api::{AcquireReply, LockBackend, LockClient};
use leasehold_store::Written;

use crate::steps::{
    LEASE, ask, enter, operation, queue_without_listening, release, send, session, waiting,
};
use crate::support::{Fault, Faults, Server};

const CLIENTS: u32 = 32;
const TIME: Duration = Duration::from_secs(10);

/// With pauses of at most 50 ms, the server would spend its time on writes that it refuses: 100 acquisitions,
/// and 13 refused writes for each operation.
#[tokio::test(start_paused = true)]
async fn clients_of_a_busy_store_make_room_for_each_other() {
    let (latency, work) = (Duration::from_millis(1), Duration::from_millis(2));
    let server = Server::with_work(1, latency, work);
    let ends = tokio::time::Instant::now() + TIME;
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let locks = LockClient::new(server.client());
        clients.spawn(async move {
            let lock = locks.rw_lock("k").expect("a valid key");
            let mut acquired = 0;
            while tokio::time::Instant::now() < ends {
                let Ok(guard) = lock.read().await else {
                    continue;
                };
                let _ = guard.release().await;
                acquired += 1;
            }
            acquired
        });
    }
    let acquired: u32 = clients.join_all().await.into_iter().sum();
    let refused = server.arrived();
    let refused = refused.iter().filter(|it| it.1 == Written::NotApplied);
    let refused = refused.count() as f64 / f64::from(2 * acquired);
    println!("{acquired} acquisitions, {refused:.1} refused writes for each operation");
    assert!(acquired > 200, "{acquired}");
    assert!(refused < 6.0, "{refused}");
}

/// A server that takes 2 ms for each statement.
fn one_at_a_time(seed: u64, sends_rows: bool) -> Arc<Server> {
    let server = Server::with_work(seed, Duration::ZERO, Duration::from_millis(2));
    if sends_rows {
        server.send_rows();
    }
    server
}

/// Everybody waits for a release. After its first conflict it is sent again without a pause: six statements of
/// 2 ms, the other client's among them. If the row comes with the refusal, five.
#[tokio::test(start_paused = true)]
async fn release_is_sent_again_at_once() {
    for seed in 0..20 {
        let sends_rows = seed % 2 == 1;
        let server = one_at_a_time(seed, sends_rows);
        let (client, other) = (server.client(), server.client());
        enter(&client, ask(&server, operation(1, 1), LEASE)).await;
        // Until the client reads before it writes.
        tokio::time::sleep(Duration::from_secs(11)).await;
        let begun = tokio::time::Instant::now();
        let releasing = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            release(&client, operation(1, 1)).await;
            begun.elapsed()
        };
        let queueing = queue_without_listening(&server, &other, operation(2, 1));
        let ((), took) = join(queueing, releasing).await;
        let wanted = Duration::from_millis(if sends_rows { 10 } else { 12 });
        assert_eq!(took, wanted, "seed {seed}");
    }
}

/// A client that pauses before it queues is passed by those that come later.
#[tokio::test(start_paused = true)]
async fn acquire_that_is_to_queue_is_sent_again_at_once() {
    for seed in 0..20 {
        let sends_rows = seed % 2 == 1;
        let server = one_at_a_time(seed, sends_rows);
        enter(&server.client(), ask(&server, operation(1, 1), LEASE)).await;
        let (first, second) = (server.client(), server.client());
        let begun = tokio::time::Instant::now();
        let queueing = [(&first, 2), (&second, 3)].map(async |(client, number)| {
            queue_without_listening(&server, client, operation(number, 1)).await;
            begun.elapsed()
        });
        let [one, other] = queueing;
        let both = join(one, other).await;
        // Two reads and a write, and the write that it has spoilt. Then another read, unless the row came with
        // the refusal, and the write again.
        let last = Duration::from_millis(if sends_rows { 10 } else { 12 });
        assert_eq!(both, (Duration::from_millis(6), last), "seed {seed}");
    }
}

/// Two clients that queue spoil the write of a release one after the other.
#[tokio::test(start_paused = true)]
async fn grant_is_sent_again_at_once_twice() {
    for seed in 0..20 {
        let server = one_at_a_time(seed, true);
        let client = server.client();
        enter(&client, ask(&server, operation(1, 1), LEASE)).await;
        let _stream = client.listen(session(2)).await.expect("a stream");
        let queued = send(&client, waiting(&server, operation(2, 1))).await;
        assert_matches!(queued, Ok(AcquireReply::Queued(_)));
        let others = [server.client(), server.client()];
        let begun = tokio::time::Instant::now();
        let others = others.iter().zip(3..);
        let queueing =
            others.map(|(client, n)| queue_without_listening(&server, client, operation(n, 1)));
        let releasing = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            release(&client, operation(1, 1)).await;
            begun.elapsed()
        };
        let (_, took) = join(join_all(queueing), releasing).await;
        // Three reads. The first of the others writes. The second one and the release are refused, then the
        // release again, after the second has written.
        assert_eq!(took, Duration::from_millis(18), "seed {seed}");
    }
}

/// The calls of a client on one key share their turns, and so their pauses after conflicts. With 64 times an
/// attempt of 4 ms, a release that waited for the pause of another call would take up to 256 ms.
#[tokio::test(start_paused = true)]
async fn release_does_not_wait_for_the_pause_of_other_calls() {
    let mut longest = Duration::ZERO;
    for seed in 0..50 {
        longest = longest.max(release_beside_conflicts(seed).await);
    }
    println!("longest release: {longest:?}");
    assert!(longest < Duration::from_millis(20), "{longest:?}");
}

async fn release_beside_conflicts(seed: u64) -> Duration {
    let server = Server::new(seed, Duration::from_millis(1));
    let locks = LockClient::new(server.client());
    let guard = locks.mutex("k").expect("valid").lock().await;
    let guard = guard.expect("a free lock");
    server.set_faults(Faults::always(Fault::Conflict));
    let other = locks.mutex("k").expect("valid");
    let other = tokio::spawn(async move { other.try_lock_for(Duration::from_secs(5)).await });
    tokio::time::sleep(Duration::from_millis(600)).await;
    server.set_faults(Faults::default());
    let begun = tokio::time::Instant::now();
    guard.release().await.expect("released");
    let took = begun.elapsed();
    let other = other.await.expect("no panic").expect("an answer");
    assert!(other.into_guard().is_some(), "the waiter gets the lock");
    took
}

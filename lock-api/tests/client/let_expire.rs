//! Guards that end without a release: the lock stays taken until its lease ends.

use std::time::Duration;

use leasehold_api::{LockClient, Loss, Mutex, ServerTime};
use leasehold_sim::{Call, Fault, SimServer};

use crate::support::{assert_error, clients, connected, contended, held, lost_by, ms, secs};

/// A message takes this long.
const ONE_WAY: Duration = Duration::from_millis(1);

fn mutex(locks: &LockClient, key: &str) -> Mutex {
    locks.mutex(key).expect("valid").lease(secs(10))
}

/// The server's time of a grant, which is also its token.
fn granted_at<K>(guard: &leasehold_api::Guard<K>) -> ServerTime {
    ServerTime::from_micros(guard.fencing_token().get())
}

/// The end of the lease of the only holder, on the server.
async fn end_of_lease(server: &SimServer, other: &LockClient) -> ServerTime {
    let view = other.inspect("k").await.expect("answered");
    // The reply has taken some time.
    let left = view.holders()[0].remaining - ONE_WAY;
    server.server_time().saturating_add(left)
}

/// Checks that the key becomes free exactly at `end`.
async fn free_exactly_at(server: &SimServer, other: &LockClient, key: &str, end: ServerTime) {
    contended(&mutex(other, key).try_lock().await);
    let left = end.saturating_since(server.server_time());
    assert!(left > ONE_WAY * 2, "the lease ends too soon: {left:?}");
    server.advance(left - ONE_WAY * 2).await;
    contended(&mutex(other, key).try_lock().await);
    let guard = held(mutex(other, key).try_lock().await);
    assert_eq!(granted_at(&guard), end.saturating_add(ONE_WAY));
}

fn requests(server: &SimServer) -> usize {
    server.messages().len()
}

#[tokio::test(start_paused = true)]
async fn lock_stays_taken_for_the_whole_lease() {
    let (server, [a, b]) = clients();
    let guard = mutex(&a, "k").lock().await.expect("free");
    let end = granted_at(&guard).saturating_add(secs(10));
    server.advance(secs(1)).await;
    let sent = requests(&server);
    let (valid_for, lost) = (guard.valid_for(), guard.lost());
    let left = guard.let_expire().await.expect("held");
    assert_eq!(left, valid_for);
    server.advance(ms(500)).await;
    assert_eq!(requests(&server), sent, "nothing was sent");
    let view = b.inspect("k").await.expect("answered");
    let rest = end.saturating_since(server.server_time());
    assert_eq!(view.holders()[0].remaining, rest + ONE_WAY);
    free_exactly_at(&server, &b, "k", end).await;
    let outcome = tokio::time::timeout(secs(100), lost).await;
    assert!(outcome.is_err(), "it is no loss");
}

#[tokio::test(start_paused = true)]
async fn renewed_lock_stays_taken_until_its_renewed_lease_ends() {
    let (server, [a, b]) = clients();
    let guard = mutex(&a, "k").lock().await.expect("free");
    server.advance(secs(45)).await;
    let end = end_of_lease(&server, &b).await;
    assert!(end > granted_at(&guard).saturating_add(secs(50)));
    guard.let_expire().await.expect("held");
    free_exactly_at(&server, &b, "k", end).await;
}

#[tokio::test(start_paused = true)]
async fn neither_a_shutdown_nor_a_drop_frees_the_lock() {
    for shutdown in [true, false] {
        let (server, [(a, backend), (b, _)]) = connected();
        let guard = mutex(&a, "k").lock().await.expect("free");
        let end = granted_at(&guard).saturating_add(secs(10));
        guard.let_expire().await.expect("held");
        if shutdown {
            a.shutdown().await.expect("answered");
        }
        drop((a, backend));
        free_exactly_at(&server, &b, "k", end).await;
    }
}

/// An offer lasts one waiter lease, unless a renewal confirms it.
#[tokio::test(start_paused = true)]
async fn lock_granted_after_a_wait_stays_taken_for_the_whole_lease() {
    for reply_is_lost in [false, true] {
        let (server, [(a, _), (b, network)]) = connected();
        let first = mutex(&a, "k").lock().await.expect("free");
        let lock = mutex(&b, "k").lease(secs(30));
        let waiting = tokio::spawn(async move { lock.lock().await });
        server.advance(secs(1)).await;
        first.release().await.expect("answered");
        let guard = waiting.await.expect("no panic").expect("granted");
        let granted = granted_at(&guard);
        if reply_is_lost {
            network.inject_into(Call::Renew, Fault::LoseRequest);
        }
        let left = guard.let_expire().await.expect("held");
        assert!(left > secs(28), "{left:?}");
        let end = end_of_lease(&server, &a).await;
        let lease = end.saturating_since(granted);
        assert!(lease >= secs(30) && lease < ms(30_100), "{lease:?}");
        free_exactly_at(&server, &a, "k", end).await;
    }
}

#[tokio::test(start_paused = true)]
async fn confirmed_lock_needs_no_call() {
    let (server, [a, b]) = clients();
    let first = mutex(&a, "k").lock().await.expect("free");
    let lock = mutex(&b, "k");
    let waiting = tokio::spawn(async move { lock.lock().await });
    server.advance(secs(1)).await;
    first.release().await.expect("answered");
    let guard = waiting.await.expect("no panic").expect("granted");
    // The background task has confirmed it by then.
    server.advance(ms(500)).await;
    let sent = requests(&server);
    guard.let_expire().await.expect("held");
    assert_eq!(requests(&server), sent, "nothing was sent");
}

#[tokio::test(start_paused = true)]
async fn fixed_lease_and_maximum_hold_change_nothing() {
    let (server, [a, b]) = clients();
    let locks = [
        ("fixed", mutex(&a, "fixed").fixed_lease()),
        ("limited", mutex(&a, "limited").max_hold(secs(2))),
    ];
    for (key, lock) in locks {
        let guard = lock.lock().await.expect("free");
        let end = granted_at(&guard).saturating_add(secs(10));
        server.advance(secs(1)).await;
        let left = guard.let_expire().await.expect("held");
        assert!(left > secs(8), "{key}: {left:?}");
        free_exactly_at(&server, &b, key, end).await;
    }
}

#[tokio::test(start_paused = true)]
async fn nested_guards_share_the_end() {
    let (server, [a, b]) = clients();
    let lock = mutex(&a, "k").reentrant().expect("supported");
    let outer = lock.lock().await.expect("free");
    let inner = lock.lock().await.expect("nested");
    inner.let_expire().await.expect("held");
    server.advance(secs(60)).await;
    assert!(outer.is_valid(), "the other guard is renewed");
    outer.release().await.expect("answered");
    contended(&mutex(&b, "k").try_lock().await);

    // The owner still holds the lock, so it can lock it again.
    let again = held(lock.try_lock().await);
    server.advance(secs(60)).await;
    assert!(again.is_valid());
    let end = end_of_lease(&server, &b).await;
    again.release().await.expect("answered");
    free_exactly_at(&server, &b, "k", end).await;
}

#[tokio::test(start_paused = true)]
async fn several_keys_are_left_together() {
    let (server, [a, b]) = clients();
    let blocking = mutex(&b, "y").lock().await.expect("free");
    let all = a.multi().mutexes(["x", "y", "z"]).expect("valid");
    let all = all.lease(secs(10));
    let waiting = tokio::spawn(async move { all.lock().await });
    server.advance(secs(1)).await;
    blocking.release().await.expect("answered");
    let guard = waiting.await.expect("no panic").expect("granted");
    let left = guard.let_expire().await.expect("held");
    let before = server.elapsed();
    a.shutdown().await.expect("answered");
    server.advance(left - ms(10)).await;
    for key in ["x", "y", "z"] {
        contended(&mutex(&b, key).try_lock().await);
    }
    // "x" was locked first, so its lease ends first.
    let left_all = server.elapsed() - before;
    server.advance(secs(11).saturating_sub(left_all)).await;
    for key in ["x", "y", "z"] {
        drop(held(mutex(&b, key).try_lock().await));
    }
}

#[tokio::test(start_paused = true)]
async fn lost_guard_is_an_error() {
    let (server, [(a, network), (b, _)]) = connected();
    let guard = mutex(&a, "k").lock().await.expect("free");
    network.isolate();
    server.advance(secs(11)).await;
    network.rejoin();
    let next = held(mutex(&b, "k").try_lock().await);
    let result = guard.let_expire().await;
    assert_eq!(lost_by(&result), Loss::Deadline);
    let guard = mutex(&a, "other").lock().await.expect("free");
    guard.release().await.expect("answered");
    assert_error!(guard.let_expire().await, Released);
    server.advance(secs(1)).await;
    assert!(next.is_valid());
}

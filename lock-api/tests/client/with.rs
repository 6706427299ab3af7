//! Bodies that run with a lock: tried, and with a limit to the wait.

use leasehold_api::{Error, MutexGuard, Outcome};

use crate::support::{assert_is, clients, contended, lock, ms, mutex_of, secs};

/// Tries to run a body with this handle: while it can't, and when it can. Then checks that the lock is released.
macro_rules! assert_tries {
    ($tried:expr, $timed:expr, $block:expr, $server:expr) => {{
        let held = $block;
        let seven = $tried.await.expect("answered").with(async |_| 7);
        assert_is!(seven.await => Ok(Outcome::Contended(it)) if !it.timed_out);
        let began = $server.elapsed();
        let seven = $timed.await.expect("answered").with(async |_| 7);
        assert_is!(seven.await => Ok(Outcome::Contended(it)) if it.timed_out);
        assert_eq!($server.elapsed() - began, secs(3));
        held.release().await.expect("answered");
        let seven = $tried.await.expect("answered").with(async |_| 7);
        assert_is!(seven.await => Ok(Outcome::Acquired(7)));
        $server.assert_idle();
    }};
}

#[tokio::test(start_paused = true)]
async fn body_runs_only_with_the_lock() {
    let (server, [a, b]) = clients();
    let mutex = mutex_of(&a);
    assert_tries!(
        mutex.try_lock(),
        mutex.try_lock_for(secs(3)),
        lock(&b).await,
        server
    );
    let many = a.mutexes(["k", "l"]).expect("valid");
    assert_tries!(
        many.try_lock(),
        many.try_lock_for(secs(3)),
        lock(&b).await,
        server
    );
    let permits = |locks: &leasehold_api::LockClient| locks.semaphore("s", 1).expect("valid");
    assert_tries!(
        permits(&a).try_acquire(),
        permits(&a).try_acquire_for(secs(3)),
        permits(&b).acquire().await.expect("free"),
        server
    );
    let rw = |locks: &leasehold_api::LockClient| locks.rw_lock("r").expect("valid");
    assert_tries!(
        rw(&a).try_read(),
        rw(&a).try_read_for(secs(3)),
        rw(&b).write().await.expect("free"),
        server
    );
}

#[tokio::test(start_paused = true)]
async fn body_holds_the_lock_for_longer_than_the_wait_may_last() {
    let (server, [a, b]) = clients();
    let held = lock(&a).await;
    let mutex = mutex_of(&b);
    let waiting = tokio::spawn(async move {
        let body = async |guard: &MutexGuard| {
            tokio::time::sleep(secs(60)).await;
            guard.is_valid()
        };
        mutex.try_lock_for(secs(5)).await?.with(body).await
    });
    server.advance(secs(1)).await;
    held.release().await.expect("answered");
    server.advance(secs(30)).await;
    contended(&mutex_of(&a).try_lock().await);
    assert_is!(waiting.await.expect("no panic") => Ok(Outcome::Acquired(true)));
}

#[tokio::test(start_paused = true)]
async fn body_is_dropped_at_a_loss() {
    let (server, [a]) = clients();
    let mutex = mutex_of(&a).max_hold(secs(2));
    let began = server.elapsed();
    let tried = mutex.try_lock().await.expect("answered");
    let lost = tried.with(async |_| std::future::pending::<()>().await);
    assert_is!(lost.await => Err(Error::Lost { .. }));
    assert!(server.elapsed() - began <= secs(2) + ms(20));
}

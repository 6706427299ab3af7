//! Bodies that run with a lock: tried, and with a limit to the wait.

use leasehold_api::{Error, Outcome};

use crate::support::{assert_is, clients, contended, lock, ms, mutex_of, secs};

/// Tries to run a body with this handle: while it can't, and when it can. Then checks that the lock is released.
macro_rules! assert_tries {
    ($tried:expr, $timed:expr, $block:expr, $server:expr) => {{
        let held = $block;
        assert_is!($tried.await => Ok(Outcome::Contended(it)) if !it.timed_out);
        let began = $server.elapsed();
        assert_is!($timed.await => Ok(Outcome::Contended(it)) if it.timed_out);
        assert_eq!($server.elapsed() - began, secs(3));
        held.release().await.expect("answered");
        assert_is!($tried.await => Ok(Outcome::Acquired(7)));
        assert_is!($timed.await => Ok(Outcome::Acquired(7)));
        $server.assert_idle();
    }};
}

#[tokio::test(start_paused = true)]
async fn body_runs_only_with_the_lock() {
    let (server, [a, b]) = clients();
    let mutex = mutex_of(&a);
    assert_tries!(
        mutex.try_with(async |_| 7),
        mutex.try_with_for(secs(3), async |_| 7),
        lock(&b).await,
        server
    );
    let many = a.mutexes(["k", "l"]).expect("valid");
    assert_tries!(
        many.try_with(async |_| 7),
        many.try_with_for(secs(3), async |_| 7),
        lock(&b).await,
        server
    );
    let permits = |locks: &leasehold_api::LockClient| locks.semaphore("s", 1).expect("valid");
    assert_tries!(
        permits(&a).try_with(async |_| 7),
        permits(&a).try_with_for(secs(3), async |_| 7),
        permits(&b).acquire().await.expect("free"),
        server
    );
    let rw = |locks: &leasehold_api::LockClient| locks.rw_lock("r").expect("valid");
    assert_tries!(
        rw(&a).try_read_with(async |_| 7),
        rw(&a).try_read_with_for(secs(3), async |_| 7),
        rw(&b).write().await.expect("free"),
        server
    );
    assert_tries!(
        rw(&a).try_write_with(async |_| 7),
        rw(&a).try_write_with_for(secs(3), async |_| 7),
        rw(&b).read().await.expect("free"),
        server
    );
}

#[tokio::test(start_paused = true)]
async fn body_holds_the_lock_for_longer_than_the_wait_may_last() {
    let (server, [a, b]) = clients();
    let held = lock(&a).await;
    let mutex = mutex_of(&b);
    let waiting = tokio::spawn(async move {
        let body = mutex.try_with_for(secs(5), async |guard| {
            tokio::time::sleep(secs(60)).await;
            guard.is_valid()
        });
        body.await
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
    let tried = mutex.try_with(async |_| std::future::pending::<()>().await);
    assert_is!(tried.await => Err(Error::Lost { .. }));
    assert!(server.elapsed() - began <= secs(2) + ms(20));
}

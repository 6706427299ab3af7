//! Guards that outlive their runtime or client or are dropped in a panic.

use std::thread;
use std::time::Duration;

use leasehold_api::{Error, LockClient, MutexGuard, Outcome};
use leasehold_test_servers::{RedisServer, eventually, throughout};
use tokio::runtime::{Builder, Runtime};

use super::requests::LEASE;
use super::support::{client, hold, wait_in_line};

/// The lease of locks that expire because nothing releases them.
const SHORT_LEASE: Duration = Duration::from_millis(1_500);

/// The number of threads of a runtime.
pub(super) const WORKERS: usize = 2;

pub(super) fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// A server, and a client whose runtime stays alive.
struct Observer {
    runtime: Runtime,
    locks: LockClient,
    server: RedisServer,
}

impl Observer {
    fn new() -> Self {
        let server = RedisServer::start();
        let runtime = runtime();
        let locks = runtime.block_on(client(&server.url()));
        Self {
            runtime,
            locks,
            server,
        }
    }

    /// Another runtime and its client, which holds this key.
    fn user(&self, key: &str, lease: Duration) -> (Runtime, LockClient, MutexGuard) {
        let user = runtime();
        let locks = user.block_on(client(&self.server.url()));
        let guard = user.block_on(hold(&locks, key, lease));
        (user, locks, guard)
    }

    /// Waits until the key is free. [`LEASE`] is longer than that.
    fn becomes_free(&self, key: &str) {
        let mutex = self.locks.mutex(key).expect("a valid key");
        self.runtime.block_on(eventually("it is free", async || {
            matches!(mutex.try_lock().await, Ok(Outcome::Acquired(_)))
        }));
    }
}

#[test]
fn guard_dropped_outside_a_runtime_releases() {
    let observer = Observer::new();
    let (user, locks, guard) = observer.user("job", LEASE);
    thread::spawn(move || drop(guard)).join().expect("no panic");
    observer.becomes_free("job");
    user.block_on(locks.shutdown()).expect("all is released");
}

#[test]
fn panic_releases() {
    let observer = Observer::new();
    let (user, locks, guard) = observer.user("thread", LEASE);
    let panicked = thread::spawn(move || {
        let _guard = guard;
        panic!("this thread panics with a guard, as planned");
    });
    assert!(panicked.join().is_err());
    let guard = user.block_on(hold(&locks, "task", LEASE));
    let panicked = user.block_on(user.spawn(async move {
        let _guard = guard;
        tokio::task::yield_now().await;
        panic!("this task panics with a guard, as planned");
    }));
    assert!(panicked.is_err());
    observer.becomes_free("thread");
    observer.becomes_free("task");
}

#[test]
fn runtime_shuts_down_with_guards() {
    let observer = Observer::new();
    for (key, background) in [("waits", false), ("background", true)] {
        let (user, locks, guard) = observer.user(key, SHORT_LEASE);
        // During the shutdown, one task holds the lock and one waits.
        let mutex = locks.mutex(key).expect("a valid key").lease(SHORT_LEASE);
        user.spawn(async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        });
        user.spawn(async move { mutex.lock().await.map(drop) });
        drop(locks);
        let waits = async || {
            let seen = observer.locks.inspect(key).await.expect("an answer");
            seen.waiter_count() == 1
        };
        observer.runtime.block_on(eventually("it waits", waits));
        if background {
            user.shutdown_background();
        } else {
            drop(user);
        }
        // The tasks that would release the lock are gone too, so it expires.
        observer.becomes_free(key);
    }
}

#[test]
fn client_guard_and_runtime_drop_in_any_order() {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Part {
        Client,
        Guard,
        Runtime,
    }
    use Part::{Client, Guard, Runtime};
    let orders = [
        [Client, Guard, Runtime],
        [Client, Runtime, Guard],
        [Guard, Client, Runtime],
        [Guard, Runtime, Client],
        [Runtime, Client, Guard],
        [Runtime, Guard, Client],
    ];
    let observer = Observer::new();
    for order in orders {
        let key = format!("{order:?}");
        let (user, locks, guard) = observer.user(&key, SHORT_LEASE);
        let (mut user, mut locks, mut guard) = (Some(user), Some(locks), Some(guard));
        for part in order {
            match part {
                Client => drop(locks.take()),
                Guard => drop(guard.take()),
                Runtime => drop(user.take()),
            }
        }
        observer.becomes_free(&key);
    }
}

#[test]
fn guard_outlives_the_shutdown_of_its_client() {
    let observer = Observer::new();
    let (user, locks, guard) = observer.user("job", SHORT_LEASE);
    user.block_on(locks.shutdown()).expect("all is released");
    assert!(!guard.is_valid());
    observer.becomes_free("job");
    let next = observer
        .runtime
        .block_on(hold(&observer.locks, "job", LEASE));
    // Releasing and dropping the old guard doesn't touch the next holder.
    drop(locks);
    let released = user.block_on(guard.release());
    assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
    drop(guard);
    drop(user);
    let is_held = async || next.is_valid();
    let kept = throughout(SHORT_LEASE, "it is kept", is_held);
    observer.runtime.block_on(kept);
    let released = observer.runtime.block_on(next.release());
    assert!(matches!(released, Ok(())));
}

#[test]
fn calls_after_the_runtime_is_gone_fail() {
    let observer = Observer::new();
    let (user, locks, guard) = observer.user("job", SHORT_LEASE);
    let other = locks.mutex("other").expect("a valid key");
    drop(user);
    observer.runtime.block_on(async {
        let released = guard.release().await;
        assert!(released.is_err(), "{released:?}");
        let locked = tokio::time::timeout(LEASE, other.lock()).await;
        assert!(matches!(locked, Ok(Err(Error::Closed))), "{locked:?}");
    });
    observer.becomes_free("job");
}

/// The tasks that would poll and listen for it are gone.
#[test]
fn call_that_waits_ends_with_the_runtime_of_its_client() {
    let observer = Observer::new();
    let guard = observer
        .runtime
        .block_on(hold(&observer.locks, "job", LEASE));
    let user = runtime();
    let locks = user.block_on(client(&observer.server.url()));
    let waiting = observer
        .runtime
        .block_on(wait_in_line(&locks, "job", LEASE));
    drop(user);
    let ended = observer.runtime.block_on(async {
        let ended = tokio::time::timeout(LEASE, waiting).await;
        ended.expect("it ends").expect("no panic")
    });
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    drop(guard);
}

/// As docs/testing.md does it for tests, each of which has a runtime.
#[test]
fn client_on_a_runtime_that_lasts_serves_others() {
    let server = RedisServer::start();
    let lasting = runtime();
    let locks = lasting.block_on(client(&server.url()));
    for _ in 0..3 {
        let user = Builder::new_current_thread().enable_all().build();
        user.expect("a runtime").block_on(async {
            let guard = hold(&locks, "job", LEASE).await;
            let waiting = wait_in_line(&locks, "job", LEASE).await;
            guard.release().await.expect("released");
            drop(waiting.await.expect("no panic").expect("its turn"));
        });
    }
    lasting.block_on(eventually("all are released", async || {
        locks
            .inspect("job")
            .await
            .expect("an answer")
            .holders()
            .is_empty()
    }));
}

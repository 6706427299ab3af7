//! Guards that outlive what they came from: dropped without a runtime, in a panic, while their
//! runtime shuts down, after their client; and releases that race and are given up, on threads.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use leasehold_api::{Error, LockClient, MutexGuard, Outcome, ReleaseOutcome};
use leasehold_test_servers::RedisServer;
use tokio::runtime::{Builder, Runtime};

use super::support::{LEASE, connect};

/// Of locks that nobody is left to release.
const SHORT_LEASE: Duration = Duration::from_millis(1_500);
/// A release in the background is done by then, on a machine that is busy.
const SOON: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(10);

fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

async fn client(server: &RedisServer) -> LockClient {
    let backend = connect(&server.url()).await;
    LockClient::new(backend.expect("connected"))
}

/// Holds a key, for as long as the lease if nobody renews.
async fn hold(locks: &LockClient, key: &str, lease: Duration) -> MutexGuard {
    let mutex = locks.mutex(key).expect("a valid key").lease(lease);
    mutex.lock().await.expect("free")
}

/// A server, and a client of it whose runtime lasts.
struct Watch {
    runtime: Runtime,
    locks: LockClient,
    server: RedisServer,
}

impl Watch {
    fn new() -> Self {
        let server = RedisServer::start();
        let runtime = runtime();
        let locks = runtime.block_on(client(&server));
        Self {
            runtime,
            locks,
            server,
        }
    }

    /// Waits until somebody else can have the key; how long that took.
    fn free_within(&self, key: &str, limit: Duration) -> Duration {
        let mutex = self.locks.mutex(key).expect("a valid key");
        let began = Instant::now();
        self.runtime.block_on(async {
            while !matches!(mutex.try_lock().await, Ok(Outcome::Acquired(_))) {
                assert!(began.elapsed() < limit, "{key} is held after {limit:?}");
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
        began.elapsed()
    }
}

#[test]
fn a_guard_may_be_dropped_where_no_runtime_is() {
    let watch = Watch::new();
    let user = runtime();
    let (locks, guard) = user.block_on(async {
        let locks = client(&watch.server).await;
        let guard = hold(&locks, "job", LEASE).await;
        (locks, guard)
    });
    thread::spawn(move || drop(guard)).join().expect("no panic");
    watch.free_within("job", SOON);
    user.block_on(locks.shutdown()).expect("all is released");
}

#[test]
fn a_panic_releases() {
    let watch = Watch::new();
    let user = runtime();
    let locks = user.block_on(client(&watch.server));
    let guard = user.block_on(hold(&locks, "thread", LEASE));
    let panicked = thread::spawn(move || {
        let _guard = guard;
        panic!("a thread with a guard panics, as planned");
    });
    assert!(panicked.join().is_err());
    let guard = user.block_on(hold(&locks, "task", LEASE));
    let panicked = user.block_on(user.spawn(async move {
        let _guard = guard;
        tokio::task::yield_now().await;
        panic!("a task with a guard panics, as planned");
    }));
    assert!(panicked.is_err());
    watch.free_within("thread", SOON);
    watch.free_within("task", SOON);
}

#[test]
fn a_runtime_may_shut_down_around_its_guards() {
    let watch = Watch::new();
    for (key, background) in [("waits", false), ("background", true)] {
        let user = runtime();
        let locks = user.block_on(client(&watch.server));
        let guard = user.block_on(hold(&locks, key, SHORT_LEASE));
        // One task holds and one is in the queue, at the moment of the shutdown.
        let mutex = locks.mutex(key).expect("a valid key").lease(SHORT_LEASE);
        user.spawn(async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        });
        user.spawn(async move { mutex.lock().await.map(drop) });
        drop(locks);
        thread::sleep(Duration::from_millis(50));
        if background {
            user.shutdown_background();
        } else {
            drop(user);
        }
        // The tasks that would have released it went down too.
        watch.free_within(key, SHORT_LEASE + SOON);
    }
}

#[test]
fn client_guard_and_runtime_may_go_in_any_order() {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Goes {
        Client,
        Guard,
        Runtime,
    }
    use Goes::{Client, Guard, Runtime};
    let orders = [
        [Client, Guard, Runtime],
        [Client, Runtime, Guard],
        [Guard, Client, Runtime],
        [Guard, Runtime, Client],
        [Runtime, Client, Guard],
        [Runtime, Guard, Client],
    ];
    let watch = Watch::new();
    for order in orders {
        let key = format!("{order:?}");
        let user = runtime();
        let locks = user.block_on(client(&watch.server));
        let guard = user.block_on(hold(&locks, &key, SHORT_LEASE));
        let (mut user, mut locks, mut guard) = (Some(user), Some(locks), Some(guard));
        for goes in order {
            match goes {
                Client => drop(locks.take()),
                Guard => drop(guard.take()),
                Runtime => drop(user.take()),
            }
        }
        watch.free_within(&key, SHORT_LEASE + SOON);
    }
}

#[test]
fn a_guard_may_outlive_the_shutdown_of_its_client() {
    let watch = Watch::new();
    let user = runtime();
    let locks = user.block_on(client(&watch.server));
    let guard = user.block_on(hold(&locks, "job", SHORT_LEASE));
    user.block_on(locks.shutdown()).expect("all is released");
    assert!(!guard.is_valid());
    watch.free_within("job", SOON);
    let next = watch.runtime.block_on(hold(&watch.locks, "job", LEASE));
    // Whatever becomes of the old guard, the next holder's is not touched.
    drop(locks);
    assert!(user.block_on(guard.release()).is_ok());
    drop(guard);
    drop(user);
    thread::sleep(SHORT_LEASE);
    assert!(next.is_valid());
    let released = watch.runtime.block_on(next.release());
    assert!(matches!(
        released,
        Ok(ReleaseOutcome::Released { holds_left: 0 })
    ));
}

#[test]
fn whoever_outlives_the_runtime_is_told_so() {
    let watch = Watch::new();
    let user = runtime();
    let locks = user.block_on(client(&watch.server));
    let guard = user.block_on(hold(&locks, "job", SHORT_LEASE));
    let other = locks.mutex("other").expect("a valid key");
    drop(user);
    watch.runtime.block_on(async {
        let released = guard.release().await;
        assert!(released.is_err(), "{released:?}");
        let taken = tokio::time::timeout(SOON, other.lock()).await;
        assert!(matches!(taken, Ok(Err(Error::Closed))), "{taken:?}");
    });
    watch.free_within("job", SHORT_LEASE + SOON);
}

#[test]
fn releases_that_race_come_to_the_same() {
    let watch = Watch::new();
    let user = runtime();
    let locks = user.block_on(client(&watch.server));
    for round in 0..100 {
        let guard = Arc::new(user.block_on(hold(&locks, "job", LEASE)));
        let release = |guard: Arc<MutexGuard>| async move { guard.release().await };
        let (one, two) = (Arc::clone(&guard), Arc::clone(&guard));
        let (one, two) = (user.spawn(release(one)), user.spawn(release(two)));
        let (one, two) = user.block_on(async { (one.await, two.await) });
        for released in [one, two] {
            let released = released.expect("no panic");
            let is = matches!(released, Ok(ReleaseOutcome::Released { holds_left: 0 }));
            assert!(is, "round {round}: {released:?}");
        }
        assert!(!guard.is_valid());
    }
    watch.free_within("job", SOON);
}

#[test]
fn a_release_that_is_given_up_goes_on() {
    let watch = Watch::new();
    let user = runtime();
    let locks = user.block_on(client(&watch.server));
    let mut given_up = 0;
    for round in 0..200_u64 {
        let guard = Arc::new(user.block_on(hold(&locks, "job", LEASE)));
        let other = Arc::clone(&guard);
        let aborted = if round % 4 < 2 {
            // Dropped when it was sent, and cannot have been answered.
            user.block_on(async { other.release().now_or_never().is_none() })
        } else {
            // Dropped by another thread, from before its first poll until after its end.
            let release = user.spawn(async move { other.release().await });
            thread::sleep(Duration::from_micros(round));
            release.abort();
            user.block_on(release).is_err()
        };
        given_up += u32::from(aborted);
        if round % 2 == 0 {
            // The next lock waits for the end of this one in the queue.
            drop(guard);
        } else {
            let again = user.block_on(guard.release());
            assert!(matches!(
                again,
                Ok(ReleaseOutcome::Released { holds_left: 0 })
            ));
        }
    }
    watch.free_within("job", SOON);
    println!("{given_up} of 200 releases were given up");
    assert!(given_up >= 100, "only {given_up}");
}

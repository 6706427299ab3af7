//! The runtime of a client ends, and the client lives on.

use leasehold_api::{BackendError, Error, LockClient};
use leasehold_test_servers::eventually;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::connections::LONG;
use crate::support::{Server, hold};

fn runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    let builder = builder.worker_threads(1).enable_all();
    builder.build().expect("a runtime")
}

/// A call of a client whose runtime has ended.
async fn lock(locks: &LockClient, key: &str) -> Result<(), Error> {
    let locked = timeout(LONG, locks.mutex(key)?.lock()).await;
    locked.expect("it ends").map(drop)
}

#[test]
fn calls_after_the_runtime_is_gone_fail() {
    let server = Server::start();
    let (user, other) = (runtime(), runtime());
    // One client has used its connections, the other one has never been used.
    let [locks, unused] = [(); 2].map(|()| user.block_on(server.locks()));
    let guard = user.block_on(hold(&locks, "a"));
    drop(user);
    other.block_on(async {
        let backend = unused.backend();
        let key = leasehold_api::Key::new("a").expect("valid");
        let asked = timeout(LONG, backend.inspect(&key)).await.expect("in time");
        assert_matches!(asked, Err(BackendError::Closed));
        for locks in [&locks, &unused] {
            assert_matches!(lock(locks, "b").await, Err(Error::Closed));
        }
        let released = timeout(LONG, guard.release()).await.expect("in time");
        assert!(released.is_err(), "{released:?}");
    });
}

#[test]
fn call_that_waits_ends_with_the_runtime_of_its_client() {
    let server = Server::start();
    let (user, other) = (runtime(), runtime());
    let (holds, waits) = (
        other.block_on(server.locks()),
        user.block_on(server.locks()),
    );
    let guard = other.block_on(hold(&holds, "a"));
    let waiting = other.spawn({
        let waits = waits.clone();
        async move { lock(&waits, "a").await }
    });
    other.block_on(eventually("it waits", async || {
        let seen = holds.inspect("a").await.expect("an answer");
        !seen.waiters().is_empty()
    }));
    drop(user);
    let ended = other.block_on(waiting).expect("no panic");
    assert_matches!(ended, Err(Error::Closed));
    drop(guard);
}

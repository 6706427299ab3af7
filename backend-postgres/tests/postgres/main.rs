//! What a real server shows: lost connections, restarts, rights, TLS, poolers, and
//! fenced transactions.

/// Checks that a value has this form, and shows it otherwise.
macro_rules! assert_matches {
    ($value:expr, $pattern:pat $(if $guard:expr)?) => {
        match &$value {
            $pattern $(if $guard)? => {}
            other => panic!("{other:?}"),
        }
    };
}

#[path = "../support/mod.rs"]
mod support;

mod connections;
mod crowd;
mod distant;
#[path = "../../../redis-common/tests/shared/events.rs"]
mod events;
#[path = "../../../redis-common/tests/shared/faults.rs"]
mod faults;
mod fencing;
mod lossy;
mod pace;
mod pooled;
mod poolers;
mod refusals;
#[path = "../../../redis-common/tests/shared/requests.rs"]
mod requests;
mod rows;
mod runtimes;
mod setup;
mod tls;

use leasehold_api::LockClient;
use leasehold_postgres::PostgresBackend;
use leasehold_test_servers::eventually;

/// Waits for a lock that another client releases, and renews one.
async fn lock_is_handed_over(one: PostgresBackend, two: PostgresBackend) {
    let (one, two) = (LockClient::new(one), LockClient::new(two));
    let mutex = |client: &LockClient| client.mutex("handed over").expect("valid");
    let first = mutex(&one).lock().await.expect("a lock");
    let waiting = mutex(&two);
    let waiting = tokio::spawn(async move { waiting.lock().await });
    eventually("it waits", async || {
        let found = one.inspect("handed over").await;
        found.is_ok_and(|it| it.waiter_count() == 1)
    })
    .await;
    assert!(!waiting.is_finished(), "the lock is held");
    first.renew().await.expect("renewed");
    first.release().await.expect("released");
    let second = waiting.await.expect("no panic").expect("a lock");
    second.release().await.expect("released");
    one.shutdown().await.expect("nothing is left");
    two.shutdown().await.expect("nothing is left");
}

//! Many waiters on one key.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use leasehold_api::{LockClient, bounds};
use tokio::task::JoinSet;

use crate::support::{Server, connect_with, patient};

/// `LEASEHOLD_WAITERS` asks for another number.
fn waiters() -> u32 {
    let asked = std::env::var("LEASEHOLD_WAITERS");
    asked.map_or(500, |number| number.parse().expect("a number of waiters"))
}

/// All waiters get the lock, one at a time and with growing tokens, and each of them learns the true outcome of its
/// release.
async fn many_waiters(clients: u32) {
    let (server, all) = (Server::start(), waiters());
    let inside = Arc::new(AtomicU32::new(0));
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = JoinSet::new();
    for _ in 0..clients {
        // A busy machine may need longer than the defaults: every release gets its true outcome all the same.
        let longest = bounds::MAX_CALL_TIMEOUT;
        let options = patient().call_timeout(longest);
        let backend = connect_with(&server.url(), options).await;
        let locks = LockClient::builder(backend).call_timeout(longest);
        let locks = locks.build().expect("valid settings");
        for _ in 0..all / clients {
            let (locks, inside) = (locks.clone(), Arc::clone(&inside));
            let tokens = Arc::clone(&tokens);
            waiters.spawn(async move {
                let mutex = locks.mutex("a").expect("valid");
                let guard = mutex.lock().await.expect("a lock");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "exclusive");
                let token = guard.fencing_token();
                tokens.lock().expect("no panic").push(token);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                let begun = Instant::now();
                guard.release().await.expect("the true outcome");
                begun.elapsed()
            });
        }
    }
    let begun = Instant::now();
    let releases = waiters.join_all().await;
    let longest = releases.into_iter().max().expect("some");
    let took = begun.elapsed();
    let tokens = tokens.lock().expect("no panic");
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    println!("{all} waiters of {clients} clients: {took:?}, longest release {longest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_one_client_learn_the_outcome_of_their_release() {
    many_waiters(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_five_clients_learn_the_outcome_of_their_release() {
    many_waiters(5).await;
}

//! A server goes away while many calls wait. The number of attempts to connect doesn't depend on them.

use std::time::Duration;

use leasehold_api::LockClient;
use leasehold_redis_common::Options;
use leasehold_test_servers::{RedisServer, ServerAway, Stopwatch};
use tokio::task::JoinSet;

use super::requests::LEASE;
use super::support::{Constructor, hello_in_time, hold, stays_away, wait_in_line};
use crate::constructors::CONSTRUCTORS;

/// The time limit after the server is back.
const SOON: Duration = Duration::from_secs(30);

/// The server is away, then it is back and serves all calls.
async fn away_while_calls_wait(constructor: &Constructor, calls: usize) {
    let mut server = RedisServer::start();
    let backend = constructor.open_with(&server.url(), Options::new()).await;
    let locks = LockClient::new(backend.clone());
    let guard = hold(&locks, "held", LEASE).await;
    let queued = wait_in_line(&locks, "held", LEASE).await;
    server.kill();
    let away = ServerAway::listen(server.address());
    let mut waiting = JoinSet::new();
    for number in 0..calls {
        let mutex = locks.mutex(format!("{number}")).expect("a good key");
        waiting.spawn(async move { mutex.lock().await.map(drop) });
    }
    stays_away(&away).await;
    let what = format!("{}, {calls} calls", constructor.name);
    let told = Stopwatch::start();
    hello_in_time(&backend)
        .await
        .expect_err("the server is away");
    println!(
        "{what}: {} connections; told after {:?}",
        away.connections(),
        told.elapsed()
    );
    drop(away);
    server.start_again();
    let back = Stopwatch::start();
    while let Some(done) = waiting.join_next().await {
        done.expect("no panic").expect("a lock");
        assert!(back.elapsed() < SOON, "{what}");
    }
    println!(
        "{what}: served {:?} after the server is back",
        back.elapsed()
    );
    drop(guard);
    drop(queued.await.expect("no panic").expect("its turn"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_to_connect_do_not_grow_with_waiting_calls() {
    for calls in [1, 500] {
        away_while_calls_wait(&CONSTRUCTORS[0], calls).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_to_connect_are_few_however_the_client_is_made() {
    for constructor in CONSTRUCTORS.iter().filter(|it| it.reconnects) {
        away_while_calls_wait(constructor, 50).await;
    }
}

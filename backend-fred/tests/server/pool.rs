//! A fault that only a pool can have.

use std::sync::Arc;

use fred::interfaces::ClientLike;
use leasehold_api::BackendError;
use leasehold_fred::{FredBackend, Options};
use leasehold_test_servers::{FaultProxy, RedisServer};

use crate::constructors::reconnecting;
use crate::shared::recovery::keep_calling;
use crate::shared::support::{Backend, RECOVERY};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_member_of_a_pool_reconnects() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address()).await;
    let pool = reconnecting(&proxy.url()).build_pool(3).expect("a pool");
    pool.clients()[0].init().await.expect("connected");
    proxy.strand_connections();
    for member in &pool.clients()[1..] {
        member.init().await.expect("connected");
    }
    let backend = FredBackend::from_pool(pool, Options::new()).expect("usable");
    let backend: Backend = Arc::new(backend);
    let results = keep_calling(&backend, RECOVERY * 4).await;
    let (first, later) = results.split_at(results.len() / 2);
    let failed = |results: &[Result<(), BackendError>]| results.iter().any(Result::is_err);
    assert!(failed(first), "no call used the dead member");
    assert!(!failed(later), "a later call failed");
}

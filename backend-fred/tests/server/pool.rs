//! What only a pool can suffer.

use std::sync::Arc;

use fred::interfaces::ClientLike;
use leasehold_api::BackendError;
use leasehold_fred::{FredBackend, Options};
use leasehold_test_servers::{FaultProxy, RedisServer};

use crate::constructors::reconnecting;
use crate::shared::recovery::keep_calling;
use crate::shared::support::{Backend, RECOVERY};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_dead_member_of_a_pool_is_revived() {
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
    assert!(failed(first), "the dead member was not seen");
    assert!(!failed(later), "the dead member is still in use");
}

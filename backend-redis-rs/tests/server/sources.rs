//! The sources of errors.

use std::error::Error;

use leasehold_redis_rs::RedisBackend;
use leasehold_test_servers::ServerOptions;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn source_is_the_error_of_the_client_library() {
    let options = ServerOptions::default().with_config("requirepass", ["swordfish"]);
    let server = options.start();
    let refused = RedisBackend::connect(&server.url()).await;
    let error = refused.expect_err("no password");
    let source = error.source().expect("a source");
    assert!(source.is::<redis::RedisError>(), "{error}: {source}");
    assert!(
        !error.to_string().contains(&source.to_string()),
        "{error}: {source}"
    );
}

//! The sources of errors.

use std::error::Error;

use leasehold_fred::FredBackend;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn source_is_the_error_of_the_client_library() {
    // Nothing listens on port 1.
    let refused = FredBackend::connect("redis://127.0.0.1:1").await;
    let error = refused.expect_err("no server");
    let source = error.source().expect("a source");
    assert!(source.is::<fred::error::Error>(), "{error}: {source}");
    assert!(
        !error.to_string().contains(&source.to_string()),
        "{error}: {source}"
    );
}

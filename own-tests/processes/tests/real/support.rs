//! A server with clients in this process.

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{Label, LockBackend, LockClient};
use leasehold_processes::{Library, RecordingBackend};
use leasehold_test_servers::RedisServer;

/// Runs a test on a multi-threaded runtime.
pub(crate) fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(test);
}

pub(crate) async fn connect(library: Library, server: &RedisServer) -> Arc<dyn LockBackend> {
    library.connect(&server.url()).await.expect("connected")
}

/// Clients in this process that record what they do, and hold back what they hear for up to `longest`.
pub(crate) async fn recording_clients(
    library: Library,
    server: &RedisServer,
    count: usize,
    longest: Duration,
) -> Vec<(Arc<RecordingBackend>, LockClient)> {
    let mut clients = Vec::new();
    for number in 0..count {
        let backend = RecordingBackend::new(connect(library, server).await, longest);
        let backend = Arc::new(backend);
        let locks = client(Arc::clone(&backend) as _, &format!("client-{number}"));
        clients.push((backend, locks));
    }
    clients
}

/// Creates a client in this process, with the same call timeout as the others.
pub(crate) fn client(backend: Arc<dyn LockBackend>, label: &str) -> LockClient {
    LockClient::builder(backend)
        .label(Label::new(label).expect("a good label"))
        .call_timeout(Duration::from_secs(5))
        .build()
        .expect("good settings")
}

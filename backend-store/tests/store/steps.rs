//! Requests, for tests that send one command at a time.

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{
    Acquire, AcquireReply, Acquired, BackendError, Key, LockBackend, LockSpec, Mode, Operation,
    OwnerId, Release, ReleaseReply, SessionId, Stamped, Wait,
};
use leasehold_store::StoreBackend;

use crate::support::{MemoryStore, Server};

pub(crate) type Client = StoreBackend<MemoryStore>;

pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// A server whose messages take up to `latency`, and a client.
pub(crate) fn start(latency: Duration) -> (Arc<Server>, Client) {
    let server = Server::new(1, latency);
    let client = server.client();
    (server, client)
}

pub(crate) fn key() -> Key {
    Key::new("a").expect("valid")
}

pub(crate) fn session(number: u8) -> SessionId {
    SessionId::from_bytes([number; 16])
}

pub(crate) fn operation(number: u8, sequence: u64) -> Operation {
    Operation {
        session: session(number),
        sequence,
        owner: OwnerId::from_u64(sequence),
    }
}

pub(crate) fn ask(server: &Server, operation: Operation, lease: Duration) -> Acquire {
    let soon = server.stamp().at.saturating_add(Duration::from_secs(2));
    let (spec, mode) = (LockSpec::mutex(), Mode::Exclusive);
    Acquire::new(key(), spec, mode, operation, lease, soon).expect("valid")
}

pub(crate) fn waiting(server: &Server, operation: Operation) -> Acquire {
    ask(server, operation, LEASE).with_wait(Wait::new(true))
}

pub(crate) async fn send(client: &Client, request: Acquire) -> Result<AcquireReply, BackendError> {
    let reply = client.acquire(&[request]).await.remove(0);
    reply.map(|Stamped { reply, .. }| reply)
}

/// Acquires, or panics if the key is not free.
pub(crate) async fn enter(client: &Client, request: Acquire) -> Acquired {
    match send(client, request).await {
        Ok(AcquireReply::Acquired(acquired)) => acquired,
        other => panic!("{other:?}, wanted Acquired"),
    }
}

/// Queues behind a holder, and doesn't listen.
pub(crate) async fn queue_without_listening(
    server: &Server,
    client: &Client,
    operation: Operation,
) {
    let waits = ask(server, operation, LEASE).with_wait(Wait::new(false));
    let reply = send(client, waits).await;
    assert_matches!(reply, Ok(AcquireReply::Queued(_)));
}

pub(crate) async fn release(client: &Client, operation: Operation) -> ReleaseReply {
    let release = Release::new(key(), operation);
    let answer = client.release(&[release]).await.remove(0);
    answer.expect("a reply").reply
}

/// The labels are empty, so holders are counted.
pub(crate) async fn holders(client: &Client) -> u32 {
    let inspection = client.inspect(&key()).await.expect("a reply");
    inspection.reply.holder_count
}

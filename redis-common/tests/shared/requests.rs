//! Requests that tests send to a backend.

use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{
    Acquire, AcquireReply, Acquired, BackendError, Key, LockBackend, LockSpec, Mode, Operation,
    OwnerId, Release, ReleaseReply, Renew, RenewReply, ServerTime, SessionId, Stamped,
};

pub(crate) type Backend = Arc<dyn LockBackend>;
pub(crate) type Answer<T> = Result<Stamped<T>, BackendError>;

/// Longer than a test takes on a busy machine.
pub(crate) const LEASE: Duration = Duration::from_secs(600);

pub(crate) fn key(name: &str) -> Key {
    Key::new(name).expect("a good key")
}

pub(crate) fn session(number: u8) -> SessionId {
    SessionId::from_bytes([number; 16])
}

/// The `sequence`th operation of a session, with a separate owner.
pub(crate) fn operation(session: SessionId, sequence: u64) -> Operation {
    Operation {
        session,
        sequence,
        owner: OwnerId::from_u64(sequence),
    }
}

/// A time soon after now, on the server's clock.
pub(crate) async fn soon(backend: &Backend) -> ServerTime {
    let stamp = backend.hello().await.expect("the server answers");
    stamp.at.saturating_add(Duration::from_secs(9))
}

/// An acquire of a mutex that doesn't wait, with [`LEASE`].
pub(crate) fn mutex(key: &Key, operation: Operation, before: ServerTime) -> Acquire {
    let spec = LockSpec::mutex();
    Acquire::new(key.clone(), spec, Mode::Exclusive, operation, LEASE, before)
        .expect("a good request")
}

/// The only answer to a batch of one request.
pub(crate) fn only<T>(mut answers: Vec<Answer<T>>) -> Answer<T> {
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}

pub(crate) async fn acquire(backend: &Backend, request: &Acquire) -> Answer<AcquireReply> {
    only(backend.acquire(from_ref(request)).await)
}

pub(crate) fn acquired(reply: &AcquireReply) -> Acquired {
    match reply {
        AcquireReply::Acquired(acquired) => *acquired,
        other => panic!("not acquired: {other:?}"),
    }
}

pub(crate) async fn renew(
    backend: &Backend,
    key: &Key,
    operation: Operation,
    lease: Duration,
) -> Answer<RenewReply> {
    let renew = Renew::new(key.clone(), operation, lease).expect("a good lease");
    only(backend.renew(&[renew]).await)
}

pub(crate) async fn release(
    backend: &Backend,
    key: &Key,
    operation: Operation,
) -> Answer<ReleaseReply> {
    let release = Release::new(key.clone(), operation);
    only(backend.release(&[release]).await)
}

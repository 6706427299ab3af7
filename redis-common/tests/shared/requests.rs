//! Requests that tests send to a backend.

use std::sync::Arc;
use std::time::Duration;

use leasehold_api::{
    Acquire, Key, LockBackend, LockSpec, Mode, Operation, OwnerId, ServerTime, SessionId,
};

pub(crate) type Backend = Arc<dyn LockBackend>;

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

//! One process's use of a client: its secret id, its sequence numbers, its router, and
//! the polls of its places.

use crate::client::state::polls::Polls;
use crate::client::state::router::NotificationRouter;
use crate::id::{Operation, OwnerId, SessionId};
use crate::runtime::Runtime;
use crate::sync::{Arc, AtomicU64, Ordering};

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) process: u32,
    sequence: AtomicU64,
    /// What its own owners are counted from. Asking for randomness each time is a system call.
    owners: u64,
    pub(crate) router: NotificationRouter,
    pub(crate) polls: Arc<Polls>,
}

impl Session {
    pub(crate) fn draw(runtime: &dyn Runtime, process: u32) -> Self {
        let mut bytes = [0; 16];
        runtime.fill_random(&mut bytes);
        Self {
            id: SessionId::from_bytes(bytes),
            process,
            sequence: AtomicU64::new(1),
            owners: runtime.random_u64(),
            router: NotificationRouter::default(),
            polls: Arc::default(),
        }
    }

    /// The session that an adopted hold goes on in. It belongs to another client, so that no
    /// operation is ever drawn from it, and its notifications go there.
    pub(crate) fn foreign(id: SessionId, process: u32) -> Self {
        Self {
            id,
            process,
            sequence: AtomicU64::new(u64::MAX),
            owners: 0,
            router: NotificationRouter::default(),
            polls: Arc::default(),
        }
    }

    /// A new operation, later than all before it, of the given owner or of one of its own.
    pub(crate) fn operation(&self, owner: Option<OwnerId>) -> Operation {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let own = || OwnerId::from_u64(self.owners.wrapping_add(sequence));
        Operation {
            session: self.id,
            sequence,
            owner: owner.unwrap_or_else(own),
        }
    }
}

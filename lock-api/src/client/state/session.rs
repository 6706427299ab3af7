//! The session of a client in one process: its secret id, its sequence numbers, its notification
//! router and the polls of its waiters.
//!
//! Sequence numbers grow within a session, so an operation drawn later has a higher one (rule 12).
//! An operation without a shared owner gets a new owner id: a random base plus its sequence number.

use crate::client::state::polls::Polls;
use crate::client::state::router::NotificationRouter;
use crate::client::state::signal::StartFlag;
use crate::id::{Operation, OwnerId, SessionId};
use crate::runtime::Runtime;
use crate::sync::{Arc, AtomicU64, Ordering};

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) process: u32,
    sequence: AtomicU64,
    /// The base of new owner ids. A random id for each operation would cost a system call.
    owner_base: u64,
    pub(crate) router: NotificationRouter,
    /// Whether the subscription that feeds the router was started.
    pub(crate) listen_started: StartFlag,
    pub(crate) polls: Arc<Polls>,
}

impl Session {
    pub(crate) fn draw(runtime: &dyn Runtime, process: u32) -> Self {
        let mut bytes = [0; 16];
        runtime.fill_random(&mut bytes);
        let (id, owner_base) = (SessionId::from_bytes(bytes), runtime.random_u64());
        Self::new(id, process, owner_base)
    }

    pub(crate) fn new(id: SessionId, process: u32, owner_base: u64) -> Self {
        Self {
            id,
            process,
            sequence: AtomicU64::new(1),
            owner_base,
            router: NotificationRouter::default(),
            listen_started: StartFlag::default(),
            polls: Arc::default(),
        }
    }

    /// Draws the next operation, for the given owner or for a new one.
    pub(crate) fn operation(&self, owner: Option<OwnerId>) -> Operation {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let fresh = || OwnerId::from_u64(self.owner_base.wrapping_add(sequence));
        Operation {
            session: self.id,
            sequence,
            owner: owner.unwrap_or_else(fresh),
        }
    }
}

//! The parameters of an acquisition: lock, mode, owner, options and wait limit.
//!
//! A reentrant handle and its clones share a [`SharedOwner`]. It refers to the owner's current
//! holder, which a nested hold joins. Its signal reports each grant, so the owner's other queued
//! attempts start again and re-enter (rule 5).

use std::time::Duration;

use crate::client::core::ClientHandle;
use crate::client::state::holder::HolderCell;
use crate::client::state::settings::LockOptions;
use crate::client::state::signal::Signal;
use crate::id::{Key, OwnerId};
use crate::request::{LockSpec, Mode};
use crate::runtime::Moment;
use crate::sync::{Arc, Mutex, Weak};

/// How long a caller waits for the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitLimit {
    /// At most this long. Zero does not wait while the lock is held: the server has one call timeout to answer.
    Within(Duration),
    Forever,
}

impl WaitLimit {
    /// Whether the caller may wait in the queue.
    pub(crate) const fn waits(self) -> bool {
        match self {
            Self::Within(limit) => !limit.is_zero(),
            Self::Forever => true,
        }
    }

    /// The deadline of a wait that begins now. A call that does not wait has one call timeout.
    pub(crate) fn deadline(self, now: Moment, call_timeout: Duration) -> Option<Moment> {
        match self {
            Self::Within(limit) if !limit.is_zero() => Some(now.saturating_add(limit)),
            Self::Within(_) => Some(now.saturating_add(call_timeout)),
            Self::Forever => None,
        }
    }
}

/// The parameters of one acquisition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) client: &'a Arc<ClientHandle>,
    pub(crate) key: &'a Key,
    pub(crate) spec: LockSpec,
    pub(crate) mode: Mode,
    pub(crate) owner: &'a Owner,
    pub(crate) options: &'a LockOptions,
}

/// The owner of an acquisition.
#[derive(Clone, Debug)]
pub(crate) enum Owner {
    /// A new owner for each acquisition.
    Fresh,
    /// One owner for a reentrant handle and its clones.
    Reentrant(Arc<SharedOwner>),
}

impl Owner {
    pub(crate) fn reentrant(id: OwnerId) -> Self {
        Self::Reentrant(Arc::new(SharedOwner {
            id,
            holder: Mutex::default(),
            granted: Signal::default(),
        }))
    }

    /// Whether a reentrant owner has no guard. Holds that the server still counts are being
    /// released.
    pub(crate) fn has_no_guard(&self) -> bool {
        match self {
            Self::Fresh => false,
            Self::Reentrant(shared) => {
                let holder = shared.holder.lock().upgrade();
                holder.is_none_or(|holder| holder.is_released())
            }
        }
    }
}

/// The owner of a reentrant handle and its clones.
#[derive(Debug)]
pub(crate) struct SharedOwner {
    pub(crate) id: OwnerId,
    /// The holder that a nested hold joins.
    pub(crate) holder: Mutex<Weak<HolderCell>>,
    /// Notified of each grant. The owner's other queued attempts then start again, as nested holds.
    pub(crate) granted: Signal,
}

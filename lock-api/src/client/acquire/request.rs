//! What a handle asks for, who asks, and how long the caller is ready to wait.

use std::time::Duration;

use crate::client::core::ClientHandle;
use crate::client::state::holder::HolderCell;
use crate::client::state::settings::Options;
use crate::client::state::signal::Signal;
use crate::id::{Key, OwnerId};
use crate::request::{LockSpec, Mode};
use crate::runtime::Moment;
use crate::sync::{Arc, Mutex, Weak};

/// How long a caller is ready to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitLimit {
    /// Not for anybody who holds the lock; at most one call time-out for the server.
    Try,
    Within(Duration),
    Forever,
}

impl WaitLimit {
    /// Whether a place in the queue is of any use.
    pub(crate) const fn waits(self) -> bool {
        match self {
            Self::Try => false,
            Self::Within(time) => !time.is_zero(),
            Self::Forever => true,
        }
    }

    /// When the wait is over, if it begins now. A call that doesn't wait has the time of one call
    /// to the backend.
    pub(crate) fn deadline(self, now: Moment, call_timeout: Duration) -> Option<Moment> {
        match self {
            Self::Within(time) if !time.is_zero() => Some(now.saturating_add(time)),
            Self::Try | Self::Within(_) => Some(now.saturating_add(call_timeout)),
            Self::Forever => None,
        }
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) client: &'a Arc<ClientHandle>,
    pub(crate) key: &'a Key,
    pub(crate) spec: LockSpec,
    pub(crate) mode: Mode,
    pub(crate) owner: &'a Owner,
    pub(crate) options: &'a Options,
}

/// Who holds.
#[derive(Clone, Debug)]
pub(crate) enum Owner {
    /// A new owner for each acquisition.
    Fresh,
    /// One owner for a reentrant handle and its clones.
    Reentrant(Arc<SharedOwner>),
}

impl Owner {
    /// The owner of a new reentrant handle.
    pub(crate) fn reentrant(id: OwnerId) -> Self {
        Self::Reentrant(Arc::new(SharedOwner {
            id,
            holder: Mutex::default(),
            granted: Signal::default(),
        }))
    }

    /// Whether the owner has no guard any more: what the server knows of is being ended.
    pub(crate) fn has_no_guard(&self) -> bool {
        match self {
            Self::Fresh => false,
            Self::Reentrant(owner) => {
                let holder = owner.holder.lock().upgrade();
                holder.is_none_or(|holder| holder.is_over())
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct SharedOwner {
    pub(crate) id: OwnerId,
    /// The holder that a nested hold joins.
    pub(crate) holder: Mutex<Weak<HolderCell>>,
    /// Told of each grant: what else the owner has in the queue is sent anew, as a nested hold.
    pub(crate) granted: Signal,
}

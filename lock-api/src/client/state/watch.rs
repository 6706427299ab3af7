//! How a holder tells the renewal schedule that it is lost.

use std::fmt;

use crate::sync::Weak;

/// A schedule that looks at holders.
pub(crate) trait Watcher: fmt::Debug + Send + Sync {
    /// Looks at the holder with this id now.
    fn look_now(&self, id: u64);
}

/// A holder's entry in the renewal schedule of its client.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) id: u64,
    by: Weak<dyn Watcher>,
}

impl Watched {
    pub(crate) const fn new(id: u64, by: Weak<dyn Watcher>) -> Self {
        Self { id, by }
    }

    /// Makes the schedule look at the holder now.
    pub(crate) fn alarm(&self) {
        if let Some(watcher) = self.by.upgrade() {
            watcher.look_now(self.id);
        }
    }
}

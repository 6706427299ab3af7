//! The link from a holder to the renewal schedule, which it wakes when it is lost.
//!
//! The link is weak and goes through a trait, so the holder does not depend on the schedule that
//! owns it.

use std::fmt;

use crate::sync::Weak;

/// A schedule that checks holders for losses.
pub(crate) trait Watcher: fmt::Debug + Send + Sync {
    /// Checks the holder with this id as soon as possible.
    fn check_now(&self, id: u64);
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

    /// Makes the schedule check the holder as soon as possible.
    pub(crate) fn alarm(&self) {
        if let Some(watcher) = self.by.upgrade() {
            watcher.check_now(self.id);
        }
    }
}

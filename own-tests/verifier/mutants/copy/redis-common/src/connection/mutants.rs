//! Subscriptions in a cluster that don't follow their slots: a client that learns of a move forgets nothing, and doesn't read
//! the slots before it subscribes again.

use std::sync::atomic::{AtomicBool, Ordering};

static PLANTED: AtomicBool = AtomicBool::new(false);

/// Keeps the subscriptions of this process from following their slots.
pub fn plant() {
    PLANTED.store(true, Ordering::SeqCst);
}

pub(crate) fn is_planted() -> bool {
    PLANTED.load(Ordering::SeqCst)
}

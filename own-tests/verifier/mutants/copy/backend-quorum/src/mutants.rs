//! A quorum without the rule that an operation has one fate: each call for an attempt decides about it anew, by
//! the votes that it sees, even after another one has taken it back.

use std::sync::atomic::{AtomicBool, Ordering};

static PLANTED: AtomicBool = AtomicBool::new(false);

/// Takes the rule away from all quorums of this process.
pub fn plant() {
    PLANTED.store(true, Ordering::SeqCst);
}

pub(crate) fn is_planted() -> bool {
    PLANTED.load(Ordering::SeqCst)
}

//! What a client remembers. Nothing in here reads a clock or starts a task.

pub(crate) mod answer;
pub(crate) mod backoff;
pub(crate) mod batches;
pub(crate) mod clock;
pub(crate) mod floors;
pub(crate) mod hold_state;
pub(crate) mod holder;
pub(crate) mod lease_status;
pub(crate) mod loss;
pub(crate) mod polls;
pub(crate) mod release_outcome;
pub(crate) mod release_queue;
pub(crate) mod renewals;
pub(crate) mod router;
pub(crate) mod session;
pub(crate) mod settings;
pub(crate) mod signal;
pub(crate) mod watch;

//! The state of a client: holders, schedules, inboxes, clock samples and settings.
//!
//! Nothing in this folder reads a clock or spawns a task. Callers pass the current moment in, so
//! tests and models can drive each structure by hand. A structure is a mutex around its state, with
//! a [`Signal`](signal::Signal) if tasks wait for changes. Wakers are woken and dropped outside the
//! mutex.

pub(crate) mod answer;
pub(crate) mod batches;
pub(crate) mod clock;
pub(crate) mod floors;
pub(crate) mod flow;
pub(crate) mod hold_state;
pub(crate) mod holder;
pub(crate) mod loss;
pub(crate) mod observers;
pub(crate) mod outage;
pub(crate) mod polls;
pub(crate) mod release_outcome;
pub(crate) mod release_queue;
pub(crate) mod renewals;
pub(crate) mod router;
pub(crate) mod session;
pub(crate) mod settings;
pub(crate) mod signal;

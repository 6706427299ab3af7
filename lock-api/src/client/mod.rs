//! The client: what users call, written once above [`LockBackend`](crate::LockBackend).
//!
//! Each folder may import only those below it; `.ci/layers` holds the exact table.
//!
//! - `handoff` passes a hold to another process; nothing else knows it
//! - `handle`: the client and its handles (mutex, reader/writer lock, semaphore, several keys)
//! - `guard`: what a user keeps while a lock is held, and conversions of it
//! - `acquire`: the loop that waits for a lock, and the attempts that it makes
//! - `hold`: one acquisition, which every guard wraps; dropping it queues its release
//! - `task`: renewal, releases, polls, the subscription and batches, in the background
//! - `core`: what a client's handles, guards and tasks share; every call to the backend runs in it
//! - `telemetry`: events, metrics and the loss hook
//! - `state`: what the client remembers: the cell of a holder, schedules, inboxes, clock, settings
//! - `error`: what a user's call can end in besides success

mod acquire;
mod core;
mod error;
mod guard;
mod handle;
mod handoff;
mod hold;
#[cfg(all(test, leasehold_loom))]
mod loom_models;
mod state;
mod task;
mod telemetry;

pub use error::{Error, Loss, Outcome, ReleaseOutcome, TimedOut};
pub use guard::convert::Upgrade;
pub use guard::multi::ManyGuard;
pub use guard::{Guard, MutexGuard, PermitGuard, ReadGuard, WriteGuard};
pub use handle::client::{LockClient, LockClientBuilder};
pub use handle::inspection::Inspection;
pub use handle::multi::{Many, ManyOutcome};
pub use handle::mutex::Mutex;
pub use handle::rw_lock::RwLock;
pub use handle::semaphore::Semaphore;
pub use handoff::text::{Handoff, HandoffFailed};
pub use state::loss::LossEvent;

/// Kinds of guard; see [`Guard`].
pub mod kind {
    pub use crate::client::guard::kind::{Exclusive, Permits, Read, Write};
    pub use crate::client::handoff::kind::Transferable;
}

//! The client API, written once above [`LockBackend`](crate::LockBackend).
//!
//! Each folder may import only the folders below it in this list. `.ci/layers` has the exact table.
//!
//! - `blocking`: the same API for threads, on the renewal thread
//! - `once`: jobs that run once
//! - `election`: leaders
//! - `handle`: the client and its handles (mutex, reader/writer lock, semaphore, several keys)
//! - `guard`: the guards of held locks, and their conversions
//! - `acquire`: the wait loop, and its attempts
//! - `hold`: one acquisition, which a guard wraps; its drop queues its release
//! - `task`: renewal, releases, polls, the subscription and batches, in the background
//! - `core`: state that a client's handles, guards and tasks share; it makes all backend calls
//! - `telemetry`: events, metrics and the loss hook
//! - `state`: holders, schedules, inboxes, the clock and settings
//! - `outcome`: a guard or why there is none
//! - `error`: errors and losses

mod acquire;
#[cfg(feature = "blocking")]
pub mod blocking;
mod core;
mod election;
mod error;
mod guard;
mod handle;
mod hold;
#[cfg(all(test, leasehold_loom))]
mod loom_models;
mod once;
mod outcome;
mod state;
mod task;
mod telemetry;

pub use election::{Election, Leader, Observation, Term};
pub use error::{Error, Loss};
pub use guard::convert::Upgrade;
pub use guard::multi::{MultiGuard, MultiReleaseError};
pub use guard::{Guard, MutexGuard, PermitGuard, ReadGuard, WriteGuard};
pub use handle::client::{LockClient, LockClientBuilder};
pub use handle::inspection::{Inspection, Role};
pub use handle::listing::Listing;
pub use handle::multi::MultiLock;
pub use handle::mutex::Mutex;
pub use handle::ping::Ping;
pub use handle::rw_lock::RwLock;
pub use handle::semaphore::Semaphore;
pub use once::{
    Every, Job, JobFailure, JobOutcome, JobReset, JobState, JobStatus, Occurrence, Once,
    attempt_of_job, set_exit_status,
};
pub use outcome::{Contention, Outcome};
pub use state::loss::LossEvent;

/// Kinds of guard, the type parameters of [`Guard`].
pub mod guard_kind {
    pub use crate::client::guard::guard_kind::{Exclusive, Permits, Read, Write};
}

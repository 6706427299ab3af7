//! The lock model of leasehold: what a backend implements and what a user holds.
//!
//! Three layers, each written once:
//!
//! 1. [`machine`]: the pure, synchronous state machine that *is* the specification of a lock.
//!    The simulator runs it; the Redis scripts are its port.
//! 2. [`LockBackend`]: the small trait through which one attempt reaches a backend.
//! 3. The client: handles, guards, waiting, renewal and validity, above any backend.
//!
//! Most programs use the facade crate `leasehold`; a backend author starts at [`LockBackend`].

pub mod bounds;
pub mod machine;
#[cfg(leasehold_mutants)]
pub mod mutants;
#[cfg(not(leasehold_mutants))]
mod mutants;

mod backend;
mod client;
mod error;
mod id;
mod reply;
mod request;
mod runtime;
mod sync;
mod time;
#[cfg(feature = "tokio")]
mod tokio_runtime;

pub use backend::{Capabilities, LockBackend, Notification, Notifications};
pub use client::kind;
pub use client::{
    Error, Guard, Handoff, HandoffFailed, Inspection, LockClient, LockClientBuilder, Loss,
    LossEvent, Many, ManyGuard, ManyOutcome, Mutex, MutexGuard, Outcome, PermitGuard, ReadGuard,
    ReleaseOutcome, RwLock, Semaphore, TimedOut, Upgrade, WriteGuard,
};
pub use error::{BackendError, InvalidInput};
pub use id::{FencingToken, Key, Label, Operation, OwnerId, SessionId};
pub use reply::{
    AcquireReply, Acquired, Contention, ConvertReply, EndReason, ForceReply, HolderStatus,
    HolderView, InspectReply, PollReply, Queued, Refused, ReleaseReply, RenewReply, WaiterView,
};
pub use request::{
    Acquire, Convert, ForceHow, ForceRelease, Kind, Limits, LockSpec, Mode, Policy, Poll, Release,
    Renew, Wait,
};
pub use runtime::{BoxFuture, Moment, Runtime};
pub use time::{ClockId, ServerTime, Stamp, Stamped};
#[cfg(feature = "tokio")]
pub use tokio_runtime::TokioRuntime;

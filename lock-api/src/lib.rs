//! The API of leasehold: a trait for backends, and handles and guards for programs.
//!
//! The crate has three layers:
//!
//! 1. [`machine`]: the specification of a lock, as a pure, synchronous state machine. The simulator
//!    runs it. The Redis scripts are a port of it.
//! 2. [`LockBackend`]: the trait that sends one attempt to a backend.
//! 3. The client: handles, guards, waiting, renewal and validity, for any backend. It starts at
//!    [`LockClient`].
//!
//! Most programs use the facade crate `leasehold`. To write a backend, start at [`LockBackend`].

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod bounds;
pub mod machine;

mod backend;
mod backoff;
mod certificates;
mod client;
mod connect;
mod error;
mod id;
mod reply;
mod request;
mod runtime;
mod sync;
mod time;
#[cfg(feature = "tls-rustls")]
mod tls_problem;
#[cfg(feature = "tokio")]
mod tokio_runtime;

pub use backend::{Capabilities, LockBackend, Notification, Notifications};
pub use certificates::Certificates;
#[cfg(feature = "blocking")]
pub use client::blocking;
pub use client::guard_kind;
pub use client::{
    Contention, Election, Error, Every, Guard, Inspection, Job, JobFailure, JobOutcome, JobReset,
    JobState, JobStatus, Leader, Listing, LockClient, LockClientBuilder, Loss, LossEvent,
    MultiGuard, MultiLock, MultiReleaseError, Mutex, MutexGuard, Observation, Occurrence, Once,
    Outcome, PermitGuard, Ping, ReadGuard, Role, RwLock, Semaphore, Term, Upgrade, WriteGuard,
    attempt_of_job, set_exit_status,
};
pub use connect::{ConnectPace, first_of};
pub use error::{BackendError, Cause, ConnectError, InvalidInput};
pub use id::{FencingToken, Key, Label, Operation, OwnerId, SessionId};
pub use reply::{
    AcquireReply, Acquired, Contended, ConvertReply, EndReason, ForceReply, HolderStatus,
    HolderView, InspectReply, Listed, NoteReply, NoteView, PollReply, Queued, Refused,
    ReleaseReply, RenewReply, WaiterView,
};
pub use request::{
    Acquire, Convert, Cursor, ForceMode, ForceRelease, Kind, Limits, List, LockSpec, Mode, Note,
    Poll, Release, Renew, Wait,
};
pub use runtime::{BoxFuture, Moment, Runtime, Task};
pub use time::{ClockId, FireTime, Rounded, ServerTime, Stamp, Stamped};
#[cfg(feature = "tls-rustls")]
pub use tls_problem::tls_problem;
#[cfg(feature = "tokio")]
pub use tokio_runtime::TokioRuntime;

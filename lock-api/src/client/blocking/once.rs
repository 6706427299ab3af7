//! Jobs that run once.

use std::time::Duration;

use tokio::runtime::Handle;

use crate::client::blocking::executor::wait;
use crate::client::error::Error;
use crate::client::once::{
    Job, JobOutcome, JobReset, Occurrence as AsyncOccurrence, Once as AsyncOnce,
};
use crate::time::FireTime;

/// A [job](crate::Once) whose calls block.
///
/// # Examples
/// ```no_run
/// # use std::time::Duration;
/// # use leasehold_api::{Error, blocking};
/// # fn example(locks: blocking::LockClient) -> Result<(), Error> {
/// fn write_report() -> std::io::Result<()> { Ok(()) }
///
/// let nightly = locks.once("report")?.not_within(Duration::from_secs(12 * 60 * 60));
/// println!("{:?}", nightly.run(|_job| write_report())?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a job does nothing until you run an occurrence"]
pub struct Once(AsyncOnce);

impl Once {
    pub(super) const fn new(once: AsyncOnce) -> Self {
        Self(once)
    }

    /// Sets how often an occurrence is tried. See [`Once::attempts`](AsyncOnce::attempts).
    pub fn attempts(self, attempts: u32) -> Self {
        Self(self.0.attempts(attempts))
    }

    /// Sets the lease of the lock. See [`Once::lease`](AsyncOnce::lease).
    pub fn lease(self, lease: Duration) -> Self {
        Self(self.0.lease(lease))
    }

    /// Limits how long an attempt may take. See [`Once::max_hold`](AsyncOnce::max_hold).
    ///
    /// Nothing stops the body. When the time is over, its lock isn't renewed any more, and when the lease has ended,
    /// another machine may run the job beside it.
    pub fn max_hold(self, max: Duration) -> Self {
        Self(self.0.max_hold(max))
    }

    /// The occurrence with this fire time. See [`Once::at`](AsyncOnce::at).
    pub fn at(&self, fire: impl Into<FireTime>) -> Occurrence {
        Occurrence(self.0.at(fire))
    }

    /// An occurrence that is due now, unless the job was done less than `window` ago. See
    /// [`Once::not_within`](AsyncOnce::not_within).
    pub fn not_within(&self, window: Duration) -> Occurrence {
        Occurrence(self.0.not_within(window))
    }

    /// Forgets the record of the job. See [`Once::reset`](AsyncOnce::reset).
    ///
    /// # Errors
    /// Those of [`Once::reset`](AsyncOnce::reset).
    pub fn reset(&self) -> Result<JobReset, Error> {
        wait(self.0.reset())
    }
}

/// An [occurrence](crate::Occurrence) of a job whose calls block.
///
/// The body runs on the thread of the call. Nothing stops it when the lock is lost: ask
/// [`job.guard().is_valid()`](crate::Guard::is_valid) now and then. A body that returns after its
/// lease has ended on the server is not noted as done.
///
/// # Examples
/// See [`Once`].
#[derive(Clone, Debug)]
#[must_use = "an occurrence does nothing until you run it"]
pub struct Occurrence(AsyncOccurrence);

impl Occurrence {
    /// Sets until when the occurrence may start. See [`Occurrence::start_before`](AsyncOccurrence::start_before).
    pub fn start_before(self, window: Duration) -> Self {
        Self(self.0.start_before(window))
    }

    /// Runs the body, unless the occurrence is done, late or given up. See [`Occurrence::run`](AsyncOccurrence::run).
    ///
    /// # Errors
    /// Those of [`Occurrence::run`](AsyncOccurrence::run).
    pub fn run<T, E>(&self, body: impl Fn(Job) -> Result<T, E>) -> Result<JobOutcome<T, E>, Error> {
        let body = outside(body);
        wait(self.0.run(|job| async { body(job) }))
    }

    /// Runs the body if no other machine does, and at most once. See [`Occurrence::try_run`](AsyncOccurrence::try_run).
    ///
    /// # Errors
    /// Those of [`Occurrence::try_run`](AsyncOccurrence::try_run).
    pub fn try_run<T, E>(
        &self,
        body: impl Fn(Job) -> Result<T, E>,
    ) -> Result<JobOutcome<T, E>, Error> {
        let body = outside(body);
        wait(self.0.try_run(|job| async { body(job) }))
    }
}

/// The body in the tokio context of the caller, such as that of `spawn_blocking`.
fn outside<T>(body: impl Fn(Job) -> T) -> impl Fn(Job) -> T {
    let caller = Handle::try_current().ok();
    move |job| {
        let _inside = caller.as_ref().map(Handle::enter);
        body(job)
    }
}

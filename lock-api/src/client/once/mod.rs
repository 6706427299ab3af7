//! Jobs that run once: the handle, and what it returns.
//!
//! The state of a job is the note of its key ([`record`]). [`decide`] turns it into a decision. [`run`] carries
//! that out: it takes the lock, notes the attempt, runs the body, and notes that it is done.

mod decide;
mod every;
mod record;
mod report;
mod run;
mod status;

use std::time::Duration;

use crate::bounds::{DEFAULT_START_WINDOW, MAX_FIRE_AHEAD, MAX_START_WINDOW, MIN_START_WINDOW};
use crate::client::error::{Error, Loss};
use crate::client::guard::MutexGuard;
use crate::client::handle::client::LockClient;
use crate::client::handle::mutex::Mutex;
use crate::error::InvalidInput;
use crate::id::{FencingToken, Key, Label};
use crate::sync::{self, Arc};
use crate::time::FireTime;

use decide::{When, Wish};
pub use every::Every;
pub use record::attempt_of_job;
pub use run::JobReset;
pub use status::{JobState, JobStatus};

/// A job that many machines start, and that one of them runs.
///
/// [`LockClient::once`] makes a handle. It does no I/O. The state of the job lives in the lock service, as the
/// note of its key, and no machine's clock matters: the lock service's clock decides.
///
/// # The promise
/// - **One at a time.** At most one machine runs the body, as with any lock.
/// - **Retried until it is done, given up or late.** If the winner dies or its body fails, another attempt
///   follows, by any machine that calls `run`. There are at most three, with pauses from 30 s.
/// - **Again after the lock service has lost its data.**
/// - **The effects happen once only if "done" commits with them.** If a machine dies between the last effect
///   and the note that says "done", the next attempt runs the body again. In Postgres, call
///   `leasehold.done(name, fire, token)` first in the transaction that has the effects.
///
/// # Occurrences
/// An occurrence is named by its fire time:
///
/// | method | an occurrence | for |
/// |---|---|---|
/// | [`at`](Self::at) | is due at the fire time that you name | schedulers that tell it |
/// | [`not_within`](Self::not_within) | is due if the last success was long enough ago | cron and commands |
/// | [`every`](Self::every) | is due each period, by the server's clock | a loop in your program |
///
/// # Examples
/// ```no_run
/// # use std::time::SystemTime;
/// # use leasehold_api::{Error, JobOutcome, LockClient};
/// # async fn example(locks: LockClient, midnight: SystemTime) -> Result<(), Error> {
/// async fn write_report() -> std::io::Result<()> { Ok(()) }
///
/// let report = locks.once("report")?;
/// match report.at(midnight).run(async |_job| write_report().await).await? {
///     JobOutcome::Done(()) => println!("this machine wrote the report"),
///     other => println!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a job does nothing until you run an occurrence"]
pub struct Once {
    mutex: Mutex,
    max_attempts: u32,
}

impl LockClient {
    /// Returns a handle of a job that runs once for each occurrence. Does no I/O.
    ///
    /// The name is the key of its lock. Use it for nothing else.
    ///
    /// # Errors
    /// - [`Error::InvalidInput`] if the name is empty or longer than 256 bytes.
    /// - [`Error::Unsupported`] if the backend has no [`notes`](crate::Capabilities::notes), such as a quorum, or tells no
    ///   [time of day](crate::Capabilities::time_of_day).
    /// - [`Error::Closed`] after a shutdown.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, LockClient};
    /// # fn example(locks: LockClient) -> Result<(), Error> {
    /// let report = locks.once("report")?.attempts(5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn once(&self, name: impl AsRef<str>) -> Result<Once, Error> {
        let mutex = self.mutex(name)?;
        let core = &mutex.lock.client;
        core.ensure_notes("jobs that run once")?;
        let has_time = core.capabilities.time_of_day;
        Error::require(has_time, "jobs that run once")?;
        Ok(Once {
            mutex,
            max_attempts: 3,
        })
    }
}

impl Once {
    /// Sets how often an occurrence is tried, 3 by default. With 0, each call is refused as invalid input.
    ///
    /// # Examples
    /// `once.attempts(1)`
    pub const fn attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Sets the lease of the lock: how long after the death of a machine another one may run the job. The
    /// client renews it while the body runs.
    ///
    /// # Examples
    /// `once.lease(Duration::from_secs(10))`
    pub fn lease(mut self, lease: Duration) -> Self {
        self.mutex = self.mutex.lease(lease);
        self
    }

    /// Limits how long the body of an attempt may run. There is no limit by default.
    ///
    /// When the time is over, the lock is lost, the body is dropped at its current await point, and another attempt
    /// follows. A limit of zero is an error of the attempt. See [`Mutex::max_hold`].
    ///
    /// # Examples
    /// `once.max_hold(Duration::from_secs(4 * 60 * 60))`
    pub fn max_hold(mut self, max: Duration) -> Self {
        self.mutex = self.mutex.max_hold(max);
        self
    }

    /// Sets the value of the label `class` in the metrics of the job and of its lock. Empty by default.
    ///
    /// # Examples
    /// `once.class("report")`
    pub fn class(mut self, class: &'static str) -> Self {
        self.mutex = self.mutex.class(class);
        self
    }

    /// The occurrence with this fire time, which may be up to 366 days ahead. It starts within 1 h of its fire time,
    /// unless you set [`start_before`](Occurrence::start_before).
    ///
    /// Once it is done, each occurrence with the same or an earlier fire time is done too.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, FireTime, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let fire = FireTime::from_millis(1_750_000_000_000); // from your scheduler
    /// let done = locks.once("report")?.at(fire).run(async |_job| Ok::<_, Error>(())).await?;
    /// println!("{done:?}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn at(&self, fire: impl Into<FireTime>) -> Occurrence {
        self.occurrence(When::At(fire.into()), DEFAULT_START_WINDOW)
    }

    /// An occurrence that is due now, unless the job was done less than `window` ago.
    ///
    /// For cron jobs and commands, whose fire time nobody tells: for a nightly job, `not_within` 12 h. The
    /// window counts from the end of the last success, so window and run together must be shorter than the period.
    /// It is 10 s to 47 h. An occurrence that fails is tried again for as long, unless you set
    /// [`start_before`](Occurrence::start_before).
    ///
    /// # Examples
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let nightly = locks.once("report")?.not_within(Duration::from_secs(12 * 60 * 60));
    /// println!("{:?}", nightly.run(async |_job| Ok::<_, Error>(())).await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn not_within(&self, window: Duration) -> Occurrence {
        self.occurrence(When::NotWithin(window), window)
    }

    /// A loop that runs an occurrence each period: at each multiple of `period` since 1970, by the server's
    /// clock. The period is 10 s to 47 h.
    ///
    /// # Examples
    /// ```no_run
    /// # use std::time::Duration;
    /// # use leasehold_api::{Error, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// async fn clean_up() -> Result<(), Error> { Ok(()) }
    ///
    /// let each_minute = locks.once("clean-up")?.every(Duration::from_secs(60));
    /// match each_minute.run(async |_job| clean_up().await).await? {} // returns only an error
    /// # }
    /// ```
    pub const fn every(self, period: Duration) -> Every {
        Every::new(self, period)
    }

    fn occurrence(&self, when: When, window: Duration) -> Occurrence {
        Occurrence {
            once: self.clone(),
            wish: Wish {
                when,
                window,
                max_ahead: MAX_FIRE_AHEAD,
                max_attempts: self.max_attempts,
                until: None,
            },
        }
    }
}

/// An occurrence of a job. [`Once::at`] and [`Once::not_within`] return it.
///
/// # Examples
/// See [`Once`].
#[derive(Clone, Debug)]
#[must_use = "an occurrence does nothing until you run it"]
pub struct Occurrence {
    once: Once,
    wish: Wish,
}

impl Occurrence {
    /// Sets until when the occurrence may start: this long after its fire time, by the server's clock. 10 s to
    /// 47 h. Later it is [`Missed`](JobOutcome::Missed): nothing is caught up silently. With
    /// [`not_within`](Once::not_within), the fire time is when the first attempt began.
    ///
    /// # Examples
    /// `once.at(midnight).start_before(Duration::from_secs(6 * 60 * 60))`
    pub const fn start_before(mut self, window: Duration) -> Self {
        self.wish.window = window;
        self
    }

    /// Checks the settings.
    fn check(&self) -> Result<(), Error> {
        let key = &self.once.mutex.lock.key;
        if self.wish.max_attempts == 0 {
            let reason = "there must be at least one";
            return Err(InvalidInput::setting("the attempts of a job", reason).on(key));
        }
        let apart = match self.wish.when {
            When::At(_) => None,
            When::NotWithin(apart) => Some(apart),
        };
        for time in [self.wish.window].into_iter().chain(apart) {
            let limits = MIN_START_WINDOW..=MAX_START_WINDOW;
            crate::bounds::check_time("the window or period of a job", time, limits)
                .map_err(|reason| reason.on(key))?;
        }
        Ok(())
    }
}

/// What a body knows about its run.
///
/// # Examples
/// ```no_run
/// # use leasehold_api::{Error, FireTime, LockClient};
/// # async fn example(locks: LockClient, fire: FireTime) -> Result<(), Error> {
/// let report = locks.once("report")?.at(fire);
/// report.run(async |job| {
///     println!("attempt {} at {:?} with token {}", job.attempt(), job.fire_time(), job.fencing_token());
///     Ok::<_, Error>(())
/// }).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Job {
    guard: Arc<MutexGuard>,
    fire: FireTime,
    attempt: u32,
    exit_status: Arc<sync::Mutex<Option<u8>>>,
}

/// Tells how the program has ended that the body of a job runs, for [`JobStatus::exit_status`]. It is recorded when the
/// body returns.
///
/// # Examples
/// ```
/// use leasehold_api::{Job, set_exit_status};
///
/// async fn body(job: Job) -> Result<(), ()> {
///     let status = 3; // of a child process
///     set_exit_status(&job, status);
///     if status == 0 { Ok(()) } else { Err(()) }
/// }
/// ```
pub fn set_exit_status(job: &Job, status: u8) {
    *job.exit_status.lock() = Some(status);
}

impl Job {
    /// Returns the fire time of the occurrence. With [`Once::not_within`], it is when its first attempt began.
    ///
    /// # Examples
    /// `job.fire_time().as_millis()`
    pub const fn fire_time(&self) -> FireTime {
        self.fire
    }

    /// Returns the number of this attempt, from 1.
    ///
    /// # Examples
    /// `if job.attempt() > 1 { clean_up_after_the_last_one().await }`
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the name of the job.
    ///
    /// # Examples
    /// `job.name().as_str()`
    pub fn name(&self) -> &Key {
        self.guard.key()
    }

    /// Returns the fencing token. Claim with it before you read, and send it with every write. See
    /// [`Guard::fencing_token`](crate::Guard::fencing_token).
    ///
    /// # Examples
    /// `leasehold.done('report', fire, token)` in SQL, with `fire_time().as_millis()`
    pub fn fencing_token(&self) -> FencingToken {
        self.guard.fencing_token()
    }

    /// Returns the guard of the job's lock. If it is lost, the body is dropped at its current await point.
    ///
    /// # Examples
    /// `job.guard().expiring(Duration::from_secs(2)).await`
    pub fn guard(&self) -> &MutexGuard {
        &self.guard
    }
}

/// How a call to run an occurrence has ended. Only a problem of the lock service is an error instead.
///
/// # Examples
/// See [`Once`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the job may not have run here"]
#[non_exhaustive]
pub enum JobOutcome<T, E> {
    /// This call ran the body, and noted that the occurrence is done.
    Done(T),
    /// This call ran the body to its end, but got no answer to the note that it is done. Another attempt may
    /// follow.
    RanUnrecorded(T),
    /// The occurrence, or a later one, was done before.
    AlreadyDone {
        /// The latest occurrence that is done.
        fire: FireTime,
    },
    /// It is too late to start the occurrence, or to try it again, or a later one has been tried.
    Missed {
        /// The latest occurrence that is done, as far as the lock service remembers.
        last_done: Option<FireTime>,
        /// How the last attempt in this call has failed. `None` if there was none.
        failure: Option<JobFailure<E>>,
    },
    /// Another call runs it now. Only [`try_run`](Occurrence::try_run) returns this.
    Running {
        /// The label of the client that runs it.
        by: Option<Label>,
    },
    /// An attempt has failed, and it is too early for the next one. Only [`try_run`](Occurrence::try_run)
    /// returns this.
    Failed {
        /// How the attempt in this call has failed. `None` if there was none.
        failure: Option<JobFailure<E>>,
        /// When the next attempt may start.
        retry_after: Duration,
    },
    /// The last attempt has failed. Nobody tries this occurrence again.
    GaveUp {
        /// How many attempts there were.
        attempts: u32,
        /// How the last attempt in this call has failed. `None` if there was none.
        failure: Option<JobFailure<E>>,
    },
}

/// How an attempt of a job has failed.
///
/// # Examples
/// ```
/// use leasehold_api::{JobFailure, Loss};
///
/// fn describe(failure: JobFailure<std::io::Error>) -> String {
///     match failure {
///         JobFailure::Error(error) => error.to_string(),
///         JobFailure::Lost(Loss::MaxHold) => "it hung".into(),
///         JobFailure::Lost(reason) => format!("the lock was lost: {reason}"),
///         failure => format!("{failure:?}"),
///     }
/// }
/// # describe(JobFailure::Lost(Loss::MaxHold));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobFailure<E> {
    /// The body returned this error.
    Error(E),
    /// The lock was lost, and the body was dropped at its current await point. The reason is [`Loss::MaxHold`] if it
    /// ran longer than [`Once::max_hold`].
    Lost(Loss),
}

impl<T, E> JobOutcome<T, E> {
    /// Returns the output of the body, if it ran to its end in this call.
    ///
    /// # Examples
    /// ```
    /// use leasehold_api::JobOutcome;
    ///
    /// let outcome: JobOutcome<u32, ()> = JobOutcome::Done(7);
    /// assert_eq!(outcome.into_output(), Some(7));
    /// ```
    pub fn into_output(self) -> Option<T> {
        match self {
            Self::Done(output) | Self::RanUnrecorded(output) => Some(output),
            _ => None,
        }
    }

    /// Whether the occurrence is done, here or elsewhere.
    ///
    /// # Examples
    /// ```
    /// use leasehold_api::JobOutcome;
    ///
    /// let outcome: JobOutcome<(), ()> = JobOutcome::GaveUp { attempts: 3, failure: None };
    /// assert!(!outcome.is_done());
    /// ```
    pub const fn is_done(&self) -> bool {
        matches!(self, Self::Done(_) | Self::AlreadyDone { .. })
    }
}

//! What an operator sees of a job.

use crate::client::error::Error;
use crate::client::once::Once;
use crate::client::once::record::{Last, Record};
use crate::client::once::run::Seen;
use crate::id::Label;
use crate::time::{FireTime, ServerTime};

/// The state of a job, as [`Once::status`] returns it. All times are those of the server's clock.
///
/// # Examples
/// See [`Once::status`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobStatus {
    /// What the job is doing.
    pub state: JobState,
    /// Every occurrence up to this fire time is done.
    pub done: Option<FireTime>,
    /// When the last success ended.
    pub done_at: Option<ServerTime>,
    /// The latest occurrence that was tried.
    pub tried: Option<FireTime>,
    /// When its last attempt began. If the body has returned since, when it returned.
    pub tried_at: Option<ServerTime>,
    /// How often that one was tried.
    pub attempts: u32,
    /// Whether the last attempt has returned an error. If not, it has succeeded, has not ended, or was interrupted.
    pub failed: bool,
    /// How the program has ended that the last attempt ran: 0 to 255, as a shell shows it. `None` if the body has not
    /// ended, or told none; the command `leasehold` tells it.
    pub exit_status: Option<u8>,
    /// The label of the client that made the last attempt.
    pub tried_by: Option<Label>,
    /// The label of the client that runs the job now.
    pub running: Option<Label>,
    /// When the job may run next: the next attempt, or the next occurrence of [`Once::not_within`]. `None` if only the
    /// program knows the next fire time, or if a run has no limit.
    pub next: Option<ServerTime>,
}

/// What a job is doing, by the settings of the client that tried it last.
///
/// # Examples
/// See [`Once::status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobState {
    /// Nothing is recorded: it has not run, or long ago.
    NoRecord,
    /// A client has its lock.
    Running,
    /// The occurrence that was tried last is done.
    Done,
    /// The last attempt has failed, and another one may follow.
    Failed,
    /// The last attempt has not ended: its machine died, its call was dropped, or it lost the lock. Another one may
    /// follow.
    Interrupted,
    /// The last attempt was the last one of its occurrence.
    GaveUp,
    /// It is too late for another attempt.
    Missed,
}

impl Once {
    /// Returns the state of the job. Changes nothing.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no answer came within one call timeout, [`Error::ForeignValue`] if the key
    /// has the note of something else, and the permanent errors of
    /// [`LockClient::inspect`](crate::LockClient::inspect).
    ///
    /// # Cancel safety
    /// You can drop the future at any time, because the call changes nothing.
    ///
    /// # Examples
    /// ```no_run
    /// # use leasehold_api::{Error, JobState, LockClient};
    /// # async fn example(locks: LockClient) -> Result<(), Error> {
    /// let status = locks.once("report")?.status().await?;
    /// if status.state == JobState::GaveUp {
    ///     println!("given up after {} attempts, the last one by {:?}", status.attempts, status.tried_by);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn status(&self) -> Result<JobStatus, Error> {
        let Seen { record, at, holder } = self.look().await?;
        let (state, next) = match &holder {
            Some(_) => (JobState::Running, None),
            None => state_of(&record, at),
        };
        Ok(JobStatus {
            state,
            done: record.done,
            done_at: record.done_at,
            tried: record.tried,
            tried_at: record.tried.map(|_| record.tried_at),
            attempts: record.attempts,
            failed: record.last.as_ref().is_some_and(|last| last.failed),
            exit_status: record.last.as_ref().and_then(|last| last.exit_status),
            tried_by: record.last.map(|last| last.by),
            running: holder,
            next,
        })
    }
}

/// What a job that nobody runs is doing, and when it may run next.
fn state_of(record: &Record, now: ServerTime) -> (JobState, Option<ServerTime>) {
    let apart = record.last.as_ref().and_then(|last| last.apart);
    let Some(tried) = record.tried else {
        return (JobState::NoRecord, None);
    };
    if record.done >= Some(tried) {
        let next = record.done_at.zip(apart);
        return (
            JobState::Done,
            next.map(|(at, apart)| at.saturating_add(apart)),
        );
    }
    let end = record.last.as_ref().map(|last| tried.after(last.window));
    // Then `not_within` begins another occurrence.
    let anew = end.filter(|_| apart.is_some());
    let given_up = |last: &Last| record.attempts >= last.max_attempts;
    if record.last.as_ref().is_some_and(given_up) {
        return (JobState::GaveUp, anew);
    }
    if end.is_some_and(|end| now >= end) {
        return (JobState::Missed, anew);
    }
    let failed = record.last.as_ref().is_some_and(|last| last.failed);
    let state = match failed {
        true => JobState::Failed,
        false => JobState::Interrupted,
    };
    let next = record.next_attempt();
    match end {
        Some(end) if next >= end => (state, anew),
        _ => (state, Some(next)),
    }
}

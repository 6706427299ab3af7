//! Reports the attempts of a job, and how its calls end.

use std::time::Duration;

use crate::client::error::Error;
use crate::client::guard::MutexGuard;
use crate::client::once::{JobOutcome, Once};
use crate::runtime::Moment;
use crate::time::FireTime;

/// Reports how a call has ended.
pub(super) fn report<T, E>(once: &Once, outcome: &Result<JobOutcome<T, E>, Error>) {
    let lock = &once.mutex.lock;
    let (events, key) = (&lock.client.events, &lock.key);
    let outcome = match outcome {
        Ok(JobOutcome::Done(_)) => "done",
        Ok(JobOutcome::RanUnrecorded(_)) => "unrecorded",
        Ok(JobOutcome::AlreadyDone { .. }) => "already_done",
        Ok(JobOutcome::Missed { last_done, .. }) => {
            events.job_missed(key, *last_done);
            "missed"
        }
        Ok(JobOutcome::Running { .. }) => "running",
        Ok(JobOutcome::Failed { .. }) => "failed",
        Ok(JobOutcome::GaveUp { attempts, .. }) => {
            events.job_given_up(key, *attempts);
            "gave_up"
        }
        Err(_) => "error",
    };
    events.job_call(outcome, lock.options.class);
}

/// An attempt whose body has begun. Its drop reports how it ended.
#[derive(Debug)]
pub(super) struct Reported<'a> {
    guard: &'a MutexGuard,
    fire: FireTime,
    attempt: u32,
    began: Moment,
    ran: Option<Duration>,
    outcome: &'static str,
}

impl<'a> Reported<'a> {
    pub(super) fn begin(guard: &'a MutexGuard, fire: FireTime, attempt: u32) -> Self {
        let core = &guard.hold.client;
        core.events
            .job_started(guard.key(), fire, attempt, guard.hold.token());
        Self {
            guard,
            fire,
            attempt,
            began: core.now(),
            ran: None,
            outcome: "dropped",
        }
    }

    pub(super) fn body_ended<T, E>(&mut self, result: &Result<Result<T, E>, Error>) {
        let now = self.guard.hold.client.now();
        self.ran = Some(now.saturating_since(self.began));
        self.outcome = match result {
            Ok(Ok(_)) => "unrecorded",
            Ok(Err(_)) => "failed",
            Err(_) => "lost",
        };
    }

    /// The body has succeeded, and the record says so.
    pub(super) const fn recorded(&mut self) {
        self.outcome = "done";
    }
}

impl Drop for Reported<'_> {
    fn drop(&mut self) {
        let hold = &self.guard.hold;
        let ran = self.ran;
        let ran = ran.unwrap_or_else(|| hold.client.now().saturating_since(self.began));
        let (key, outcome) = (self.guard.key(), self.outcome);
        hold.client
            .events
            .job_ended(key, self.fire, self.attempt, outcome, ran, hold.class);
    }
}

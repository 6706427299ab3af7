//! `leasehold run --not-within`: the keeper makes one attempt of a job, whose body is CMD.

use std::pin::Pin;
use std::time::Duration;

use leasehold::{Error, Job, JobOutcome, Label, LockClient, Occurrence};
use leasehold_api::set_exit_status;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::clock::now;
use crate::ending::GAVE_UP;
use crate::operate::{date, printable};
use crate::protocol::{Ended, FromKeeper, Request, Wait};

/// How often to ask while another machine runs the job, or the service doesn't answer.
const ASK_AGAIN: Duration = Duration::from_secs(1);

type Outcome = Result<JobOutcome<(), ()>, Error>;

/// An attempt that has begun. Its body waits until CMD has ended.
pub(super) struct Attempt {
    pub(super) job: Job,
    /// Ends the body. The value says whether CMD has succeeded.
    body: oneshot::Sender<bool>,
    run: Pin<Box<dyn Future<Output = Outcome>>>,
}

impl Attempt {
    /// Begins an attempt, if the job is due and nobody runs it.
    async fn begin(occurrence: Occurrence) -> Result<Self, Outcome> {
        let (begun, mut begins) = oneshot::channel();
        let (body, end) = oneshot::channel();
        let mut once = Some((begun, end));
        let mut run = Box::pin(async move {
            let attempt = occurrence.try_run(|job| {
                let once = once.take();
                async move {
                    let (begun, end) = once.ok_or(())?;
                    begun.send(job).map_err(drop)?;
                    match end.await {
                        Ok(true) => Ok(()),
                        _ => Err(()),
                    }
                }
            });
            attempt.await
        });
        tokio::select! {
            Ok(job) = &mut begins => Ok(Self { job, body, run }),
            ended = &mut run => Err(ended),
        }
    }

    /// Records how CMD has ended, and releases the lock.
    pub(super) async fn end(self, Ended { done, status }: Ended) -> Option<String> {
        if let Some(status) = status {
            set_exit_status(&self.job, status);
        }
        let _ = self.body.send(done);
        let problem = match self.run.await {
            Ok(JobOutcome::RanUnrecorded(())) => "the lock service gave no answer".into(),
            Err(error) => error.to_string(),
            Ok(_) => return None,
        };
        let what = if done { "success" } else { "failure" };
        Some(format!(
            "the {what} of CMD may not be recorded, and another attempt may follow: {problem}"
        ))
    }
}

/// Begins an attempt. Waits as long as the user wants while another machine runs the job, and after failed attempts.
pub(super) async fn acquire(
    locks: &LockClient,
    request: &Request,
    window: Duration,
    attempts: u32,
) -> Result<Attempt, FromKeeper> {
    let once = locks.once(&request.key)?.attempts(attempts);
    let once = once.lease(request.lease);
    let until = match request.wait {
        Wait::No => Some(Duration::ZERO),
        Wait::Within(time) => Some(now() + time),
        Wait::Forever => None,
    };
    loop {
        let ended = match Attempt::begin(once.not_within(window)).await {
            Ok(attempt) => return Ok(attempt),
            Err(ended) => ended,
        };
        let left = until.map_or(Duration::MAX, |until| until.saturating_sub(now()));
        let (why, pause) = next(ended, &request.key)?;
        // A pause after a failure that ends too late is not worth waiting for.
        if left.is_zero() || left < pause && pause > ASK_AGAIN {
            return Err(why);
        }
        sleep(pause.min(left)).await;
    }
}

/// What follows an attempt that has not begun: another one after this time, and what the command gets to know if
/// the user doesn't wait for that. The error is what it gets to know if nothing follows.
fn next(ended: Outcome, key: &str) -> Result<(FromKeeper, Duration), FromKeeper> {
    let (why, pause) = match ended {
        Ok(JobOutcome::AlreadyDone { fire }) => {
            let text = format!("{key:?} was done before: it began at {}", date(fire));
            return Err(FromKeeper::Done(text));
        }
        Ok(JobOutcome::GaveUp { attempts, .. }) => {
            let times = match attempts {
                1 => "once".into(),
                more => format!("{more} times"),
            };
            return Err(FromKeeper::Failed {
                status: GAVE_UP,
                message: format!(
                    "{key:?} has failed {times}, and is not tried again; see `leasehold once reset`"
                ),
            });
        }
        Ok(JobOutcome::Running { by }) => {
            let by = printable(by.as_ref().map_or("somebody else", Label::as_str));
            (format!("{key:?} is run by {by}"), ASK_AGAIN)
        }
        Ok(JobOutcome::Failed { retry_after, .. }) => {
            let text = format!("{key:?} has failed, and may be tried again in {retry_after:.0?}");
            (text, retry_after)
        }
        // A clock was stepped, or the lock was lost before CMD began.
        Ok(_) => (format!("{key:?} can't start now"), ASK_AGAIN),
        Err(error) if error.is_transient() || matches!(error, Error::Lost { .. }) => {
            return Ok((error.into(), ASK_AGAIN));
        }
        Err(error) => return Err(error.into()),
    };
    Ok((FromKeeper::Contended(why), pause))
}

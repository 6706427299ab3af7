//! Releases: of guards, of attempts that were given up, and of calls without an answer.
//!
//! A guard's `release` sends the release itself. Everything else queues it for the client's task,
//! which neither blocks nor spawns. The task sends releases in batches. It repeats each one until
//! the server acknowledges it, or until the lease must have ended whatever was left. Repeated
//! releases have their own pauses, batches and calls, so a key that can't be reached delays no
//! other key.

use std::pin::pin;

use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use smallvec::{SmallVec, smallvec};

use crate::client::core::Core;
use crate::client::state::answer::Answer;
use crate::client::state::release_outcome::{Acknowledged, ReleaseResult};
use crate::client::state::release_queue::PendingRelease;
use crate::client::task::batch::send_batched;
use crate::error::BackendError;
use crate::reply::ReleaseReply;
use crate::request::Release;
use crate::runtime::{BoxFuture, Moment};
use crate::sync::Arc;

/// Starts the task, once.
pub(crate) fn start(core: &Arc<Core>) {
    if core.releases.start() {
        core.runtime.spawn(Box::pin(run(Arc::clone(core))));
    }
}

pub(crate) async fn run(core: Arc<Core>) {
    let releases = &core.releases;
    let mut calls: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    loop {
        let version = releases.changed.version();
        // Before the jobs: the last user may queue one, and go, between the two looks.
        let orphaned = core.is_orphaned();
        let work = releases.take(core.now());
        if orphaned && work.is_empty {
            return;
        }
        for (sort, jobs) in work.batches {
            let core = Arc::clone(&core);
            calls.push(Box::pin(async move {
                let failed = release_batch(&core, jobs).await;
                core.releases.put_back(sort, failed);
            }));
        }
        core.until_work(&releases.changed, version, work.next, &mut calls)
            .await;
    }
}

/// Sends a batch of ends; returns those to be sent again, and when.
async fn release_batch(core: &Core, jobs: Vec<PendingRelease>) -> Vec<(Moment, PendingRelease)> {
    let requests: Vec<Release> = jobs.iter().map(PendingRelease::request).collect();
    let call = core.backend.release(&requests);
    let limit = core.settings.call_timeout;
    let answers = core.exchange_batch(limit, requests.len(), call).await;
    let again = |(job, answer)| {
        let mut job = finish(core, job, answer)?;
        let pause = core.jittered(job.backoff.next());
        Some((core.now().saturating_add(pause), job))
    };
    jobs.into_iter().zip(answers).filter_map(again).collect()
}

/// The releases of one guard.
pub(crate) type Jobs = SmallVec<[PendingRelease; 1]>;

/// Sends the releases of a guard in one call, once. What has no answer is repeated in the
/// background, also if this future is dropped.
pub(crate) async fn send(core: &Arc<Core>, jobs: Jobs) {
    let mut requests: SmallVec<[Release; 1]> = jobs.iter().map(PendingRelease::request).collect();
    let sent = Sent { core, jobs };
    let limit = core.settings.call_timeout;
    let alone = core.batcher.alone();
    let answers: SmallVec<[_; 1]> = match (&requests[..], &alone) {
        ([_], None) => smallvec![send_batched(core, limit, requests.remove(0)).await],
        ([_], Some(_)) => smallvec![
            core.exchange_one(limit, core.backend.release(&requests))
                .await
        ],
        (many, _) => {
            let call = core.backend.release(many);
            core.exchange_batch(limit, many.len(), call).await.into()
        }
    };
    sent.finish(answers);
}

/// Takes the answer to a release; gives the job back if it must be sent again.
fn finish(
    core: &Core,
    mut job: PendingRelease,
    answer: Result<Answer<ReleaseReply>, BackendError>,
) -> Option<PendingRelease> {
    let result = match answer {
        Ok(answer) => {
            if let ReleaseReply::Released {
                holder: Some(view), ..
            } = answer.reply
                && let Some(holder) = &job.holder
            {
                core.extend(holder, answer.status(view.token, view.remaining));
            }
            Ok(answer.reply)
        }
        Err(error) if error.is_transient() && core.now() < job.give_up => {
            core.events.release_failed(&job.key, &error);
            job.in_doubt |= matches!(error, BackendError::OutcomeUnknown { .. });
            return Some(job);
        }
        Err(error) => Err(error),
    };
    core.events.ended(&job.key, job.background, &result);
    job.close(result);
    None
}

/// Jobs that a caller has sent; the background gets them if the call is dropped midway.
struct Sent<'a> {
    core: &'a Core,
    jobs: Jobs,
}

impl Sent<'_> {
    /// Takes the answers; who got none goes to the background.
    fn finish(
        mut self,
        answers: impl IntoIterator<Item = Result<Answer<ReleaseReply>, BackendError>>,
    ) {
        for (mut job, answer) in std::mem::take(&mut self.jobs).into_iter().zip(answers) {
            job.background = false;
            if let Some(mut again) = finish(self.core, job, answer) {
                again.background = true;
                self.core.releases.push(again);
            }
        }
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        for mut job in std::mem::take(&mut self.jobs) {
            job.in_doubt = true;
            self.core.releases.push(job);
        }
    }
}

/// Waits for the end of an operation, but no longer than a few calls take.
pub(crate) async fn await_release(
    core: &Core,
    done: &ReleaseResult,
) -> Result<Acknowledged, BackendError> {
    if let Some(result) = done.get() {
        return result;
    }
    let limit = core.settings.call_timeout * 2;
    match select(pin!(done.wait()), core.runtime.sleep(limit)).await {
        Either::Left((result, _)) => result,
        Either::Right(_) => {
            let reason = "the end was not acknowledged yet; it is repeated";
            Err(BackendError::outcome_unknown(reason))
        }
    }
}

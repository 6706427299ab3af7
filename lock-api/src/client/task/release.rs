//! Sends releases: of guards, of abandoned attempts, and of calls without an answer.
//!
//! A guard's `release` sends its own release, once. If that fails or is cancelled, the
//! release goes into the [`ReleaseQueue`](crate::client::state::release_queue::ReleaseQueue). A
//! dropped guard or attempt queues its release there at once, which never blocks or spawns. The
//! background task sends queued releases in batches. It retries each one until the server
//! acknowledges it, or until nothing of its operation can be left on the server.
//!
//! A caller that awaits a release hears at once that the server refuses it. Otherwise it waits for a few calls
//! at most; after that the outcome is unknown. The task goes on in both cases.

use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use smallvec::{SmallVec, smallvec};

use crate::client::core::Core;
use crate::client::state::answer::Answer;
use crate::client::state::holder::HolderCell;
use crate::client::state::release_outcome::{Acknowledged, ReleaseResult};
use crate::client::state::release_queue::PendingRelease;
use crate::client::task::batch::send_batched;
use crate::error::BackendError;
use crate::id::Key;
use crate::reply::ReleaseReply;
use crate::request::Release;
use crate::runtime::{BoxFuture, Moment};
use crate::sync::Arc;

/// Spawns the task, once.
pub(crate) fn start(core: &Arc<Core>) {
    if core.releases.started.is_first() {
        core.runtime.spawn(core.background(run(Arc::clone(core))));
    }
}

pub(crate) async fn run(core: Arc<Core>) {
    let releases = &core.releases;
    let mut calls: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    loop {
        let version = releases.changed.version();
        // This comes before `take`: the last user may queue a release and be dropped in between.
        let orphaned = core.is_orphaned();
        let work = releases.take(core.now(), core.capabilities.batches);
        if orphaned && work.is_empty {
            return;
        }
        for (kind, jobs) in work.calls {
            let core = Arc::clone(&core);
            calls.push(Box::pin(async move {
                let keys: Vec<Key> = jobs.iter().map(|job| job.key.clone()).collect();
                let failed = release_batch(&core, jobs).await;
                core.releases.finish_call(kind, &keys, failed);
            }));
        }
        core.wait_for_work(&releases.changed, version, work.next, &mut calls)
            .await;
    }
}

/// Sends a batch of releases. Returns those to retry, each with the moment of its next attempt.
async fn release_batch(core: &Core, jobs: Vec<PendingRelease>) -> Vec<(Moment, PendingRelease)> {
    let requests: Vec<Release> = jobs.iter().map(PendingRelease::request).collect();
    let call = async || core.backend.release(&requests).await;
    let answers = core.exchange_in_background(requests.len(), call).await;
    let retry = |(job, answer)| {
        let mut job = finish(core, job, answer)?;
        let pause = core.jittered(job.backoff.next());
        Some((core.now().saturating_add(pause), job))
    };
    jobs.into_iter().zip(answers).filter_map(retry).collect()
}

pub(crate) type Jobs = SmallVec<[PendingRelease; 1]>;

/// Sends the releases of a guard once: in one call, or without batches in a call for each. Releases that
/// fail go to the background task, also if this future is dropped.
pub(crate) async fn send(core: &Arc<Core>, jobs: Jobs) {
    let mut requests: SmallVec<[Release; 1]> = jobs.iter().map(PendingRelease::request).collect();
    let in_flight = InFlight { core, jobs };
    let limit = core.settings.call_timeout;
    let unbatched = core.batcher.begin_unbatched();
    let answers: SmallVec<[_; 1]> = match (&requests[..], &unbatched) {
        ([_], None) => smallvec![send_batched(core, limit, requests.remove(0)).await],
        ([_], Some(_)) => smallvec![
            core.exchange_one(limit, core.backend.release(&requests))
                .await
        ],
        (many, _) if core.capabilities.batches => {
            let call = core.backend.release(many);
            core.exchange_batch(limit, many.len(), call).await.into()
        }
        (many, _) => {
            let calls = many
                .chunks(1)
                .map(|one| core.exchange_one(limit, core.backend.release(one)));
            join_all(calls).await.into()
        }
    };
    in_flight.finish(answers);
}

/// Applies the answer to a release. Returns the job if it must be retried.
fn finish(
    core: &Core,
    mut job: PendingRelease,
    answer: Result<Answer<ReleaseReply>, BackendError>,
) -> Option<PendingRelease> {
    let result = match answer {
        Ok(answer) => {
            if let ReleaseReply::Released { holder: left, .. } = answer.reply
                && let Some(holder) = &job.holder
            {
                match left {
                    Some(view) => {
                        core.extend(holder, answer.status(view.token, view.remaining));
                    }
                    None => holder.ended(answer.sent),
                }
            }
            Ok(job.acknowledged(answer.reply))
        }
        Err(error) if !error.is_final() && !is_over(core, &job) => {
            core.events.release_failed(&job, &error);
            job.in_doubt |= matches!(error, BackendError::OutcomeUnknown { .. });
            if !error.is_transient() {
                job.refused(error);
            }
            return Some(job);
        }
        Err(error) => Err(error),
    };
    core.events.released(&job, &result, || core.now());
    job.complete(result);
    None
}

/// Whether nothing of the operation can be left on the server. A nested hold lasts as long as the others of its holder,
/// which may have a longer lease and are renewed.
fn is_over(core: &Core, job: &PendingRelease) -> bool {
    let now = core.now();
    if now < job.give_up {
        return false;
    }
    let lasts = |holder: &Arc<HolderCell>| !holder.time_left(now).is_zero();
    if let Some(holder) = &job.holder {
        return !lasts(holder);
    }
    let is_beside =
        |it: &Arc<HolderCell>| it.key == job.key && Arc::ptr_eq(&it.session, &job.session);
    let holders = core.renewals.holders();
    !holders
        .iter()
        .any(|holder| is_beside(holder) && lasts(holder))
}

/// Releases that a caller has sent. If its future is dropped, the background task gets them.
struct InFlight<'a> {
    core: &'a Core,
    jobs: Jobs,
}

impl InFlight<'_> {
    /// Applies the answers. The background task retries the releases that failed.
    fn finish(
        mut self,
        answers: impl IntoIterator<Item = Result<Answer<ReleaseReply>, BackendError>>,
    ) {
        for (mut job, answer) in std::mem::take(&mut self.jobs).into_iter().zip(answers) {
            job.background = false;
            if let Some(mut retry) = finish(self.core, job, answer) {
                retry.background = true;
                self.core.releases.push(retry);
            }
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        for mut job in std::mem::take(&mut self.jobs) {
            job.in_doubt = true;
            self.core.releases.push(job);
        }
    }
}

/// Waits for the result of a release or for its refusal, for two call timeouts at most.
pub(crate) async fn await_release(
    core: &Core,
    released: &ReleaseResult,
) -> Result<Acknowledged, BackendError> {
    if let Some(result) = released.get() {
        return result;
    }
    let limit = core.settings.call_timeout * 2;
    let known = released.wait_for(|result| result.clone());
    let result = core.runtime.timeout(limit, known).await;
    result.unwrap_or_else(|| {
        let reason = "the release is not acknowledged yet; the client retries it";
        Err(BackendError::outcome_unknown(reason))
    })
}

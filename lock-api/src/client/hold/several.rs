//! Batched renewal and release of several holds of one client.

use std::future::Future;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};

use crate::client::core::Busy;
use crate::client::error::{Error, Loss};
use crate::client::hold::one::Hold;
use crate::client::state::answer::Answer;
use crate::client::task::release::{self, Jobs};
use crate::error::BackendError;
use crate::id::Key;
use crate::reply::RenewReply;
use crate::request::Renew;

/// Renews all holds now, together.
///
/// # Errors
/// The first error of a renewal. A hold that turns out to be lost is not an error here.
pub(crate) async fn renew_all(holds: &[Hold]) -> Result<(), Error> {
    let limit = Duration::MAX;
    let answers = send(holds, Hold::renew_request, limit).await;
    first_error(answers.map(|(hold, answer)| (hold, hold.apply_renewal(answer))))
}

/// Asks the server whether it still has the holds. Those that it doesn't have are lost from then on.
///
/// # Errors
/// The first error of an answer. A hold that turns out to be lost is not an error here.
pub(crate) async fn check_all(holds: &[Hold], limit: Duration) -> Result<(), Error> {
    let answers = send(holds, Hold::check_request, limit).await;
    first_error(answers.map(|(hold, answer)| (hold, hold.apply_check(answer).map(drop))))
}

/// Sends a renewal of each hold, with a limit that is at most the call timeout. A server that doesn't answer
/// holds up only its own keys.
async fn send(
    holds: &[Hold],
    request: impl Fn(&Hold) -> Renew,
    limit: Duration,
) -> impl Iterator<Item = (&Hold, Result<Answer<RenewReply>, BackendError>)> {
    let mut answers = Vec::new();
    if let Some(Hold { client: core, .. }) = holds.first() {
        let limit = limit.min(core.settings.call_timeout);
        let calls = core.split_into_calls(holds.iter().collect(), |hold| &hold.holder.key);
        let request = &request;
        let calls = calls.into_iter().map(|call| async move {
            let requests: Vec<Renew> = call.iter().map(|hold| request(hold)).collect();
            let renewed = core.backend.renew(&requests);
            let renewed = core.exchange_batch(limit, requests.len(), renewed).await;
            call.into_iter().zip(renewed)
        });
        answers = join_all(calls).await;
    }
    answers.into_iter().flatten()
}

fn first_error<'a>(
    results: impl Iterator<Item = (&'a Hold, Result<(), BackendError>)>,
) -> Result<(), Error> {
    let mut first = Ok(());
    for (hold, result) in results {
        let result = result.map_err(|error| error.on(&hold.holder.key));
        first = first.and(result);
    }
    first
}

/// Releases all holds in one call. Returns the result for each.
pub(crate) async fn release_all(holds: &[Hold]) -> Vec<(Key, Result<(), Error>)> {
    if let Some(first) = holds.first() {
        let core = &first.client;
        let _busy = Busy::begin(core);
        let jobs: Jobs = holds.iter().filter_map(Hold::begin_release).collect();
        if !jobs.is_empty() {
            release::send(core, jobs).await;
        }
    }
    let results = holds
        .iter()
        .map(async |hold| (hold.holder.key.clone(), hold.wait_released().await));
    join_all(results).await
}

pub(crate) fn first_lost(
    holds: &[Hold],
) -> impl Future<Output = (Key, Loss)> + Send + 'static + use<> {
    let lost = holds.iter().map(|hold| {
        let key = hold.holder.key.clone();
        hold.lost().map(|loss| (key, loss))
    });
    first(lost.collect())
}

/// Completes with the time left when that is at most `margin` for one of the holds.
pub(crate) fn first_expiring(
    holds: &[Hold],
    margin: Duration,
) -> impl Future<Output = Duration> + Send + 'static + use<> {
    first(holds.iter().map(|hold| hold.expiring(margin)).collect())
}

/// The output of the future that completes first. Never completes if there are none.
async fn first<F: Future>(mut all: FuturesUnordered<F>) -> F::Output {
    match all.next().await {
        Some(output) => output,
        None => std::future::pending().await,
    }
}

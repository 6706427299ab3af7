//! Renewals that also reach for the servers that a hold lacks.
//!
//! A server may have missed the acquire of a hold, or may have lost the hold. The fewer servers have it, the
//! less has to fail until nobody knows of it. So a server that answers a renewal with "lost" gets the acquire
//! of the same operation again, unless a majority has lost the hold too.
//!
//! - It is a copy of an acquire that has won, with another deliver-before. It reports a hold that is live,
//!   and a release that arrives first makes it stale. It is never sent after the release.
//! - Anybody else who wants the lock needs a server that has the hold. One more has it then.
//! - Its floor makes the token of that server at least the hold's. The next holder's token is greater than
//!   that of each server in its majority, so a renewal with a higher token counts as one with the hold's own.

use std::sync::Arc;

use leasehold_api::{Acquire, EndReason, FencingToken, Renew, RenewReply};

use crate::fates::{Fates, Hold};
use crate::server::{Asked, Replies, Server};

/// Renews holds at one server, and gives it those that it lacks.
pub(crate) async fn renew(
    server: Arc<Server>,
    fates: Arc<Fates>,
    requests: Arc<[Renew]>,
) -> Replies<RenewReply> {
    let mut replies = server.renew(&requests).await;
    let now = server.runtime.now();
    let mut lacking = Vec::new();
    for (request, reply) in requests.iter().zip(&mut replies) {
        let Some(hold) = fates.hold(request.operation, now) else {
            continue;
        };
        match reply {
            Ok(RenewReply::Renewed { token, .. }) if *token > hold.token => *token = hold.token,
            Ok(RenewReply::Renewed { .. }) | Err(_) => {}
            Ok(RenewReply::Lost(reason)) => match reason {
                // `Expired` too: the clock of one server may have jumped (decision 0040).
                EndReason::Unknown | EndReason::Expired => lacking.push(request.clone()),
                // Somebody ended the hold there.
                EndReason::Forced | EndReason::Released => {}
            },
        }
    }
    if !lacking.is_empty() {
        let runtime = Arc::clone(&server.runtime);
        runtime.spawn(Box::pin(repair(server, fates, lacking)));
    }
    replies
}

/// Gives a server the holds that it lacks, once the votes on their renewals are counted. A hold that is
/// lost has ended then.
async fn repair(server: Arc<Server>, fates: Arc<Fates>, lacking: Vec<Renew>) {
    let call_timeout = server.settings.call_timeout;
    server.runtime.sleep(call_timeout / 2).await;
    let now = server.runtime.now();
    let deliver_before = now.saturating_add(call_timeout);
    let asked = lacking.iter().filter_map(|renewal| {
        let hold = fates.hold(renewal.operation, now)?;
        Some(Asked {
            request: again(&hold, renewal),
            deliver_before,
        })
    });
    let asked: Arc<[Asked]> = asked.collect();
    if !asked.is_empty() {
        // The next renewal tells whether the server has them.
        let _ = server.acquire(asked).await;
    }
}

/// The acquire of a hold, with the lease of its last renewal.
fn again(hold: &Hold, renewal: &Renew) -> Acquire {
    let mut request = hold.request.clone();
    request.lease = renewal.lease;
    let below = hold.token.get().saturating_sub(1);
    request.floor = (below > 0).then(|| FencingToken::new(below));
    request
}

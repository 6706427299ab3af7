//! What must be written to a store without a clock, and what needn't.

use std::time::Duration;

use leasehold_api::machine::{HolderParts, Reply, State};
use leasehold_api::{AcquireReply, PollReply, ReleaseReply, RenewReply, ServerTime};

/// The most watermarks of a row without a clock. Its time may stand while processes come that try once and end, and they would
/// pile up: a row that is too long can't be written any more. An executor sends no command twice, so few are enough.
const MOST_WATERMARKS: usize = 1_000;

/// Whether the reply promises that a hold lasts.
pub(crate) fn promises(reply: &Reply) -> bool {
    matches!(
        reply,
        Reply::Acquire(AcquireReply::Acquired(_))
            | Reply::Poll(PollReply::Acquired(_))
            | Reply::Renew(RenewReply::Renewed { .. })
            | Reply::Release(ReleaseReply::Released {
                holder: Some(_),
                ..
            })
    )
}

/// Whether there is a hold that lasts longer than before, as an offer does that no reply reports.
pub(crate) fn extends(before: &State, after: &State) -> bool {
    let [before, after] = [before, after].map(State::to_parts);
    let lasted = |holder: &HolderParts| {
        let same = |other: &&HolderParts| (other.session, other.id) == (holder.session, holder.id);
        let earlier = before.holders.iter().find(same);
        earlier.is_some_and(|earlier| earlier.end >= holder.end)
    };
    !after.holders.iter().all(lasted)
}

/// The state after a step, without the watermarks from before if there are too many.
pub(crate) fn without_many_watermarks(before: &State, after: State) -> State {
    let mut parts = after.to_parts();
    if parts.watermarks.len() <= MOST_WATERMARKS {
        return after;
    }
    let earlier = before.to_parts().watermarks;
    parts.watermarks.retain(|it| !earlier.contains(it));
    State::from_parts(parts).expect("no rule is about a watermark that is missing")
}

/// If nothing has changed, except that waiters were refreshed which last for a while anyway, returns how long they do at least.
/// Then it needn't be written: each write may have its price.
pub(crate) fn only_polls(before: &State, after: &State, now: ServerTime) -> Option<Duration> {
    let [before, mut after] = [before, after].map(State::to_parts);
    let enough = before.spec?.waiter_lease() * 2 / 3;
    for (earlier, waiter) in before.waiters.iter().zip(&mut after.waiters) {
        if earlier.end.saturating_since(now) >= enough {
            waiter.end = earlier.end;
        }
    }
    after.stored_end = before.stored_end;
    (before == after).then_some(enough)
}

/// The reply to a poll that isn't written.
pub(crate) fn leave_unwritten(reply: &mut Reply, left: Duration) {
    if let Reply::Poll(PollReply::Queued(queued)) = reply {
        queued.waiter_remaining = queued.waiter_remaining.min(left);
    }
}

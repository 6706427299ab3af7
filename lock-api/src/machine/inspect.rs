//! Looking without touching.

use crate::bounds::INSPECT_LIST;
use crate::id::FencingToken;
use crate::machine::state::{State, is_over};
use crate::reply::{HolderView, InspectReply, WaiterView};
use crate::time::ServerTime;

impl State {
    pub(super) fn inspect(&self, now: ServerTime) -> InspectReply {
        if now >= self.stored_end {
            return InspectReply::default();
        }
        let mut holders = self.holder_views(now);
        let mut waiters = self.waiter_views(now);
        let holder_count = u32::try_from(holders.len()).unwrap_or(u32::MAX);
        let waiter_count = u32::try_from(waiters.len()).unwrap_or(u32::MAX);
        holders.sort_by(|a, b| {
            (a.remaining, a.token, &a.label).cmp(&(b.remaining, b.token, &b.label))
        });
        holders.truncate(INSPECT_LIST);
        waiters.truncate(INSPECT_LIST);
        InspectReply {
            spec: self.spec.filter(|_| holder_count + waiter_count > 0),
            token: (self.token > 0).then(|| FencingToken::new(self.token)),
            holders,
            holder_count,
            waiters,
            waiter_count,
        }
    }

    fn holder_views(&self, now: ServerTime) -> Vec<HolderView> {
        let live = self
            .tenures
            .values()
            .filter(|tenure| !is_over(tenure.end, now));
        live.map(|tenure| HolderView {
            label: tenure.label.clone(),
            mode: tenure.mode(),
            holds: u32::try_from(tenure.holds.len()).unwrap_or(u32::MAX),
            token: self.token_of(tenure),
            remaining: tenure.end.saturating_since(now),
            revoked: tenure.revoked,
        })
        .collect()
    }

    fn waiter_views(&self, now: ServerTime) -> Vec<WaiterView> {
        let live = self
            .places
            .values()
            .filter(|place| !is_over(place.end, now));
        live.map(|place| WaiterView {
            label: place.label.clone(),
            mode: place.mode,
            place_remaining: place.end.saturating_since(now),
            away: place.away,
        })
        .collect()
    }
}

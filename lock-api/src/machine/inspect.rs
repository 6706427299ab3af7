//! The command inspect. It changes nothing.

use crate::bounds::INSPECT_LIST;
use crate::id::FencingToken;
use crate::machine::state::{State, is_expired};
use crate::reply::{HolderView, InspectReply, WaiterView};
use crate::time::ServerTime;

impl State {
    pub(super) fn inspect(&self, now: ServerTime) -> InspectReply {
        if is_expired(self.stored_end, now) {
            return InspectReply::default();
        }
        let holders = self.holders.values();
        let holders = holders.filter(|holder| !is_expired(holder.end, now));
        let holders = holders.map(|holder| HolderView {
            label: holder.label.clone(),
            mode: holder.mode(),
            holds: u32::try_from(holder.holds.len()).unwrap_or(u32::MAX),
            token: self.token_of(holder),
            remaining: holder.end.saturating_since(now),
            revoked: holder.revoked,
        });
        let waiters = self.waiters.values();
        let waiters = waiters.filter(|waiter| !is_expired(waiter.end, now));
        let waiters = waiters.map(|waiter| WaiterView {
            label: waiter.label.clone(),
            mode: waiter.mode,
            waiter_remaining: waiter.end.saturating_since(now),
            unreachable: waiter.unreachable,
        });
        let (mut holders, mut waiters): (Vec<_>, Vec<_>) = (holders.collect(), waiters.collect());
        let weights = holders.iter().map(|holder| self.weight(holder.mode));
        let weight = weights.fold(0, u32::saturating_add);
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
            weight,
            waiters,
            waiter_count,
            note: self.note_view(now),
            last_change: None,
        }
    }
}

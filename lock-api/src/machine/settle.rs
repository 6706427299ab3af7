//! Settling: drops expired holders and waiters, then grants to the queue.

use crate::bounds::{MAX_UNREACHABLE_MARKS, SCAN_FREELY, SCAN_INTERVAL, SETTLE_BUDGET};
use crate::id::{FencingToken, Operation};
use crate::machine::state::{Grant, State, is_expired};
use crate::machine::{Env, Message, Payload, Reach};
use crate::time::ServerTime;

impl State {
    /// Begins a command that names an operation: clears an expired state, drops the operation's own
    /// holder or waiter if it has expired, and settles. Calls `needed` after the drop. Returns whether
    /// the operation itself was dropped.
    pub(super) fn begin(
        &mut self,
        env: Env<'_>,
        operation: Operation,
        own: Option<Operation>,
        needed: impl FnOnce(&Self) -> bool,
        out: &mut Vec<Message>,
    ) -> bool {
        self.clear_if_expired(env.now);
        let expired = self.drop_if_expired(operation, env.now);
        self.settle(env, needed(self), own, out);
        expired
    }

    /// Whether the queue has waiters, live or expired. If so, expired holders matter.
    pub(super) fn has_queue(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Drops expired holders if the outcome of the command depends on them (`needed`). Then grants to the
    /// waiters in ticket order, until one does not fit. A grant to `own` needs no notification, because
    /// the reply reports it.
    pub(super) fn settle(
        &mut self,
        env: Env<'_>,
        needed: bool,
        own: Option<Operation>,
        out: &mut Vec<Message>,
    ) {
        if needed {
            self.scan(env.now);
        }
        let mut budget = SETTLE_BUDGET;
        let mut from = 0;
        while let Some((&ticket, waiter)) = self.waiters.range(from..).next() {
            from = ticket + 1;
            if is_expired(waiter.end, env.now) {
                self.remove_waiter(ticket);
                continue;
            }
            if waiter.unreachable {
                // Nobody would hear of its grant, which would hold up all others until it expires (rule 9).
                continue;
            }
            if budget == 0 || !self.fits(waiter.mode) {
                // Others behind it may fit. If they passed, a writer or a large request would starve (rule 7).
                return;
            }
            budget -= 1;
            let is_own = own == Some(waiter.operation);
            if !is_own && self.mark_if_unreachable(env, ticket) {
                continue;
            }
            self.grant_waiter(env, ticket, !is_own, out);
        }
    }

    /// Drops expired holders if a scan is due (rule 4).
    fn scan(&mut self, now: ServerTime) {
        let many = self.holders.len() > SCAN_FREELY;
        let due = !many || now >= self.last_scan.saturating_add(SCAN_INTERVAL);
        if self.holders.is_empty() || now < self.earliest || !due {
            return;
        }
        let expired: Vec<_> = self
            .holders
            .iter()
            .filter(|(_, holder)| is_expired(holder.end, now))
            .map(|(holder_id, _)| *holder_id)
            .collect();
        for holder_id in &expired {
            self.remove_holder(*holder_id);
        }
        self.earliest = self
            .holders
            .values()
            .map(|holder| holder.end)
            .min()
            .unwrap_or_default();
        self.last_scan = now;
    }

    /// Marks a waiter unreachable if nobody listens for its grant (rule 9). Returns whether it did.
    fn mark_if_unreachable(&mut self, env: Env<'_>, ticket: u64) -> bool {
        let waiter = self.waiters.get_mut(&ticket);
        let waiter = waiter.expect("the caller has found it");
        let may_mark = waiter.listening && waiter.unreachable_marks < MAX_UNREACHABLE_MARKS;
        if !may_mark || (env.reachable)(waiter.operation.session) != Reach::Nobody {
            return false;
        }
        waiter.unreachable = true;
        waiter.unreachable_marks += 1;
        self.unreachable += 1;
        true
    }

    /// Turns a waiter into an offer, a hold that its first renewal confirms (rule 10).
    fn grant_waiter(&mut self, env: Env<'_>, ticket: u64, notify: bool, out: &mut Vec<Message>) {
        let Some(waiter) = self.remove_waiter(ticket) else {
            return;
        };
        let end = waiter.offer_end(env.now, self.poll_interval());
        let grant = Grant {
            operation: waiter.operation,
            mode: waiter.mode,
            label: waiter.label,
            floor: waiter.floor,
            end,
        };
        self.grant(env, grant);
        if !(notify && waiter.listening) {
            return;
        }
        if let Some(holder) = self.live(waiter.operation, env.now) {
            let payload = Payload::Granted {
                sequence: waiter.operation.sequence,
                token: FencingToken::new(self.token),
                remaining: holder.end.saturating_since(env.now),
            };
            let to = waiter.operation.session;
            out.push(Message { to, payload });
        }
    }

    pub(super) fn sweep_waiters(&mut self, now: ServerTime) {
        let expired: Vec<u64> = self
            .waiters
            .iter()
            .filter(|(_, waiter)| is_expired(waiter.end, now))
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in expired {
            self.remove_waiter(ticket);
        }
    }
}

//! Settling: drops expired holders and waiters, then grants to the queue.

use crate::bounds::{MAX_UNREACHABLE_MARKS, SCAN_FREELY, SCAN_INTERVAL, SETTLE_BUDGET};
use crate::id::{FencingToken, Operation};
use crate::machine::state::{Dropped, Grant, State, is_expired};
use crate::machine::{Env, Message, Payload, Reach};
use crate::request::{Mode, Policy};
use crate::time::ServerTime;

/// Classes of waiters, which a policy grants one after the other.
const ANY: fn(Mode) -> bool = |_| true;
const READERS: fn(Mode) -> bool = |mode| mode == Mode::Shared;
const WRITERS: fn(Mode) -> bool = |mode| mode == Mode::Exclusive;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Settling {
    /// Whether the outcome of the command depends on expired holders.
    pub(super) needed: bool,
    /// Whether the command has just freed capacity or removed a waiter.
    pub(super) freed: bool,
    /// The attempt whose reply reports a grant, so that it needs no notification.
    pub(super) own: Option<Operation>,
}

impl Settling {
    /// The settling at the end of a command that has freed something.
    pub(super) const fn freed(needed: bool) -> Self {
        Self {
            needed,
            freed: true,
            own: None,
        }
    }
}

impl State {
    /// Begins a command that names an operation: clears an expired state, drops the operation's own
    /// holder or waiter if it has expired, and settles. Calls `needed` after the drop.
    pub(super) fn begin(
        &mut self,
        env: Env<'_>,
        operation: Operation,
        own: Option<Operation>,
        needed: impl FnOnce(&Self) -> bool,
        out: &mut Vec<Message>,
    ) -> Dropped {
        self.clear_if_expired(env.now);
        let dropped = self.drop_if_expired(operation, env.now);
        let settling = Settling {
            needed: needed(self),
            freed: dropped.freed,
            own,
        };
        self.settle(env, settling, out);
        dropped
    }

    /// Whether the queue has waiters, live or expired. If so, expired holders matter.
    pub(super) fn has_queue(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Drops expired holders, then grants to the queue.
    pub(super) fn settle(&mut self, env: Env<'_>, settling: Settling, out: &mut Vec<Message>) {
        let expired = settling.needed && self.scan(env.now);
        let Some(spec) = self.spec.filter(|_| !self.waiters.is_empty()) else {
            return;
        };
        let mut budget = SETTLE_BUDGET;
        let classes: &[fn(Mode) -> bool] = match spec.policy() {
            Policy::Fair => &[ANY],
            Policy::ReaderPreference => &[READERS, WRITERS],
            Policy::WriterPreference => &[WRITERS, READERS],
            Policy::Barging => {
                self.drop_expired_head(env.now);
                if (settling.freed || expired) && self.used < self.capacity() {
                    self.wake_up(env, &mut budget, out);
                }
                return;
            }
        };
        for class in classes {
            if !self.grant_in_order(env, settling.own, *class, &mut budget, out) {
                return;
            }
        }
    }

    /// Drops expired holders if a scan is due (rule 4). Returns whether it dropped one.
    fn scan(&mut self, now: ServerTime) -> bool {
        let many = self.holders.len() > SCAN_FREELY;
        let due = !many || now >= self.last_scan.saturating_add(SCAN_INTERVAL);
        if self.holders.is_empty() || now < self.earliest || !due {
            return false;
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
        !expired.is_empty()
    }

    /// Grants to the waiters of `class` in ticket order, until one does not fit. Returns whether it
    /// reached the end of the queue.
    fn grant_in_order(
        &mut self,
        env: Env<'_>,
        own: Option<Operation>,
        class: fn(Mode) -> bool,
        budget: &mut u32,
        out: &mut Vec<Message>,
    ) -> bool {
        let mut from = 0;
        while let Some((&ticket, waiter)) = self.waiters.range(from..).next() {
            from = ticket + 1;
            if is_expired(waiter.end, env.now) {
                self.remove_waiter(ticket);
                continue;
            }
            if waiter.unreachable || !class(waiter.mode) {
                continue;
            }
            if *budget == 0 || !self.fits(waiter.mode) {
                return false;
            }
            *budget -= 1;
            let is_own = own == Some(waiter.operation);
            if !is_own && self.mark_if_unreachable(env, ticket) {
                continue;
            }
            self.grant_waiter(env, ticket, !is_own, out);
        }
        true
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
    pub(super) fn grant_waiter(
        &mut self,
        env: Env<'_>,
        ticket: u64,
        notify: bool,
        out: &mut Vec<Message>,
    ) {
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

    fn drop_expired_head(&mut self, now: ServerTime) {
        while let Some((&ticket, waiter)) = self.waiters.iter().next() {
            if !is_expired(waiter.end, now) {
                return;
            }
            self.remove_waiter(ticket);
        }
    }

    /// Sends a wake-up to the first waiter that listens (rule 7).
    fn wake_up(&self, env: Env<'_>, budget: &mut u32, out: &mut Vec<Message>) {
        for waiter in self.waiters.values() {
            if is_expired(waiter.end, env.now) || !waiter.listening {
                continue;
            }
            if *budget == 0 {
                return;
            }
            *budget -= 1;
            let to = waiter.operation.session;
            if (env.reachable)(to) != Reach::Nobody {
                let payload = Payload::WakeUp {
                    sequence: waiter.operation.sequence,
                };
                out.push(Message { to, payload });
                return;
            }
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

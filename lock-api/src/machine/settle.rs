//! Settling: dropping what has expired, granting what the policy says.

use crate::bounds::{MAX_UNREACHABLE_MARKS, SCAN_FREELY, SCAN_INTERVAL, SETTLE_BUDGET};
use crate::id::{FencingToken, Operation};
use crate::machine::state::{Dropped, Grant, State, is_over};
use crate::machine::{Env, Message, Payload, Reach};
use crate::request::{Mode, Policy};
use crate::time::ServerTime;

/// Why and for whom a settling happens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Settling {
    /// Whether the outcome of the command depends on who has expired.
    pub(super) needed: bool,
    /// Whether something has just become free.
    pub(super) freed: bool,
    /// The attempt whose reply carries the grant, so that it need not be told of it.
    pub(super) own: Option<Operation>,
}

impl Settling {
    /// The settling that ends a command which has freed something.
    pub(super) const fn freed(needed: bool) -> Self {
        Self {
            needed,
            freed: true,
            own: None,
        }
    }
}

impl State {
    /// Begins a command that names an operation: forgets a state past its stored end, drops what
    /// the operation had if it has expired, and settles. `needed` is asked after the drop.
    pub(super) fn begin(
        &mut self,
        env: Env<'_>,
        operation: Operation,
        own: Option<Operation>,
        needed: impl FnOnce(&Self) -> bool,
        out: &mut Vec<Message>,
    ) -> Dropped {
        self.forget_if_over(env.now);
        let dropped = self.drop_if_expired(operation, env.now);
        let how = Settling {
            needed: needed(self),
            freed: dropped.freed,
            own,
        };
        self.settle(env, how, out);
        dropped
    }

    /// Whether anybody is in the queue: then it matters who has expired.
    pub(super) fn has_queue(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Drops expired holders, then grants to the queue.
    pub(super) fn settle(&mut self, env: Env<'_>, how: Settling, out: &mut Vec<Message>) {
        let expired = how.needed && self.scan(env.now);
        let Some(spec) = self.spec.filter(|_| !self.waiters.is_empty()) else {
            return;
        };
        let mut budget = SETTLE_BUDGET;
        let any: fn(Mode) -> bool = |_| true;
        let readers: fn(Mode) -> bool = |mode| mode == Mode::Shared;
        let writers: fn(Mode) -> bool = |mode| mode == Mode::Exclusive;
        match spec.policy() {
            Policy::Fair => {
                self.grant_in_order(env, how.own, any, &mut budget, out);
            }
            Policy::ReaderPreference => {
                let _ = self.grant_in_order(env, how.own, readers, &mut budget, out)
                    && self.grant_in_order(env, how.own, writers, &mut budget, out);
            }
            Policy::WriterPreference => {
                let _ = self.grant_in_order(env, how.own, writers, &mut budget, out)
                    && self.grant_in_order(env, how.own, readers, &mut budget, out);
            }
            Policy::Barging => {
                self.drop_expired_head(env.now);
                if (how.freed || expired) && self.used < self.capacity() {
                    self.wake_up(env, &mut budget, out);
                }
            }
        }
    }

    /// Looks at all ends if that is due; whether a holder was dropped.
    fn scan(&mut self, now: ServerTime) -> bool {
        let many = self.holders.len() > SCAN_FREELY;
        let due = !many || now >= self.last_scan.saturating_add(SCAN_INTERVAL);
        if self.holders.is_empty() || now < self.earliest || !due {
            return false;
        }
        let expired: Vec<_> = self
            .holders
            .iter()
            .filter(|(_, t)| is_over(t.end, now))
            .map(|(holder_id, _)| *holder_id)
            .collect();
        for holder_id in &expired {
            self.remove_holder(*holder_id);
        }
        self.earliest = self
            .holders
            .values()
            .map(|t| t.end)
            .min()
            .unwrap_or_default();
        self.last_scan = now;
        !expired.is_empty()
    }

    /// Grants places of `class` in the order of their tickets until one does not fit. Whether
    /// all were passed.
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
            if is_over(waiter.end, env.now) {
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
            let asks = own == Some(waiter.operation);
            if !asks && self.nobody_hears(env, ticket) {
                continue;
            }
            self.grant_waiter(env, ticket, !asks, out);
        }
        true
    }

    /// Watermarks a place away if nobody would hear of its grant.
    fn nobody_hears(&mut self, env: Env<'_>, ticket: u64) -> bool {
        let Some(waiter) = self.waiters.get_mut(&ticket) else {
            return true;
        };
        let may_mark = waiter.listening && waiter.unreachable_marks < MAX_UNREACHABLE_MARKS;
        let heard = match (env.reachable)(waiter.operation.session) {
            Reach::Listening => true,
            Reach::Nobody => false,
            Reach::Unknown => true,
        };
        if !waiter.listening || heard || !may_mark {
            return false;
        }
        waiter.unreachable = true;
        waiter.unreachable_marks += 1;
        self.unreachable += 1;
        true
    }

    /// Turns a place into an offer, which ends where the place would have.
    pub(super) fn grant_waiter(
        &mut self,
        env: Env<'_>,
        ticket: u64,
        tell: bool,
        out: &mut Vec<Message>,
    ) {
        let Some(waiter) = self.remove_waiter(ticket) else {
            return;
        };
        let grant = Grant {
            operation: waiter.operation,
            mode: waiter.mode,
            label: waiter.label,
            floor: waiter.floor,
            end: waiter.end,
        };
        self.grant(env, grant);
        if !(tell && waiter.listening) {
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
            if !is_over(waiter.end, now) {
                return;
            }
            self.remove_waiter(ticket);
        }
    }

    /// Tells the first waiter that listens that it may try.
    fn wake_up(&self, env: Env<'_>, budget: &mut u32, out: &mut Vec<Message>) {
        for waiter in self.waiters.values() {
            if is_over(waiter.end, env.now) || !waiter.listening {
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

    /// Drops every place past its end, wherever it stands.
    pub(super) fn sweep_waiters(&mut self, now: ServerTime) {
        let over: Vec<u64> = self
            .waiters
            .iter()
            .filter(|(_, p)| is_over(p.end, now))
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in over {
            self.remove_waiter(ticket);
        }
    }
}

//! Settling: dropping what has expired, granting what the policy says.

use crate::bounds::{MAX_AWAY_MARKS, SCAN_FREELY, SCAN_INTERVAL, SETTLE_BUDGET};
use crate::id::{FencingToken, Operation};
use crate::machine::state::{Dropped, Grant, State, is_over};
use crate::machine::{Env, Event, Message, Reach};
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
        !self.places.is_empty()
    }

    /// Drops expired tenures, then grants to the queue.
    pub(super) fn settle(&mut self, env: Env<'_>, how: Settling, out: &mut Vec<Message>) {
        let expired = how.needed && self.scan(env.now);
        let Some(spec) = self.spec.filter(|_| !self.places.is_empty()) else {
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
                    self.hint(env, &mut budget, out);
                }
            }
        }
    }

    /// Looks at all ends if that is due; whether a tenure was dropped.
    fn scan(&mut self, now: ServerTime) -> bool {
        let many = self.tenures.len() > SCAN_FREELY;
        let due = !many || now >= self.last_scan.saturating_add(SCAN_INTERVAL);
        if self.tenures.is_empty() || now < self.earliest || !due {
            return false;
        }
        let expired: Vec<_> = self
            .tenures
            .iter()
            .filter(|(_, t)| is_over(t.end, now))
            .map(|(holder, _)| *holder)
            .collect();
        for holder in &expired {
            self.remove_tenure(*holder);
        }
        self.earliest = self
            .tenures
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
        while let Some((&ticket, place)) = self.places.range(from..).next() {
            from = ticket + 1;
            if is_over(place.end, env.now) {
                self.remove_place(ticket);
                continue;
            }
            if place.away || !class(place.mode) {
                continue;
            }
            if *budget == 0 || !self.fits(place.mode) {
                return false;
            }
            *budget -= 1;
            let asks = own == Some(place.operation);
            if !asks && self.nobody_hears(env, ticket) {
                continue;
            }
            self.grant_place(env, ticket, !asks, out);
        }
        true
    }

    /// Marks a place away if nobody would hear of its grant.
    fn nobody_hears(&mut self, env: Env<'_>, ticket: u64) -> bool {
        let Some(place) = self.places.get_mut(&ticket) else {
            return true;
        };
        let may_mark = place.listening && place.away_marks < MAX_AWAY_MARKS;
        let heard = match (env.reachable)(place.operation.session) {
            Reach::Listening => true,
            Reach::Nobody => false,
            Reach::Unknown => true,
        };
        if !place.listening || heard || !may_mark {
            return false;
        }
        place.away = true;
        place.away_marks += 1;
        self.away += 1;
        true
    }

    /// Turns a place into a claim, which ends where the place would have.
    pub(super) fn grant_place(
        &mut self,
        env: Env<'_>,
        ticket: u64,
        tell: bool,
        out: &mut Vec<Message>,
    ) {
        let Some(place) = self.remove_place(ticket) else {
            return;
        };
        let grant = Grant {
            operation: place.operation,
            mode: place.mode,
            label: place.label,
            floor: place.floor,
            end: place.end,
        };
        self.grant(env, grant);
        if !(tell && place.listening) {
            return;
        }
        if let Some(tenure) = self.live(place.operation, env.now) {
            let event = Event::Granted {
                sequence: place.operation.sequence,
                token: FencingToken::new(self.token),
                remaining: tenure.end.saturating_since(env.now),
            };
            let to = place.operation.session;
            out.push(Message { to, event });
        }
    }

    fn drop_expired_head(&mut self, now: ServerTime) {
        while let Some((&ticket, place)) = self.places.iter().next() {
            if !is_over(place.end, now) {
                return;
            }
            self.remove_place(ticket);
        }
    }

    /// Tells the first waiter that listens that it may try.
    fn hint(&self, env: Env<'_>, budget: &mut u32, out: &mut Vec<Message>) {
        for place in self.places.values() {
            if is_over(place.end, env.now) || !place.listening {
                continue;
            }
            if *budget == 0 {
                return;
            }
            *budget -= 1;
            let to = place.operation.session;
            if (env.reachable)(to) != Reach::Nobody {
                let event = Event::Hint {
                    sequence: place.operation.sequence,
                };
                out.push(Message { to, event });
                return;
            }
        }
    }

    /// Drops every place past its end, wherever it stands.
    pub(super) fn sweep_places(&mut self, now: ServerTime) {
        let over: Vec<u64> = self
            .places
            .iter()
            .filter(|(_, p)| is_over(p.end, now))
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in over {
            self.remove_place(ticket);
        }
    }
}

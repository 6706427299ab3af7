//! Acquire and poll: the two commands that can answer with a hold or a place.

use crate::bounds::{MAX_FLOOR, MAX_FLOOR_AHEAD, SCAN_FREELY};
use crate::id::{FencingToken, Operation};
use crate::machine::state::{Grant, Hold, Place, State, is_over};
use crate::machine::{Env, Message};
use crate::reply::{AcquireReply, Held, PollReply, Refused};
use crate::request::{Acquire, Mode, Policy, Poll, Wait};
use crate::time::ServerTime;

impl State {
    pub(super) fn acquire(
        &mut self,
        env: Env<'_>,
        request: &Acquire,
        out: &mut Vec<Message>,
    ) -> AcquireReply {
        self.forget_if_over(env.now);
        if let Some(refused) = self.refuse_delivery(env, request) {
            return AcquireReply::Refused(refused);
        }
        let needed = |state: &Self| state.depends_on_expiry(request);
        self.begin(env, request.operation, None, needed, out);

        let seen = self
            .mark(request.operation.session, env.now)
            .map_or(0, |mark| mark.sequence);
        // Noted even if it only reports or is stale: a copy of this very sending may come as late
        // as its own window allows, and must not outlive the mark.
        self.note(env, request.operation, None);
        if let Some(reply) = self.report(request.operation, env.now) {
            return reply;
        }
        if request.operation.sequence <= seen {
            return AcquireReply::Refused(Refused::Stale);
        }
        if let Err(refused) = self.adopt(request) {
            return AcquireReply::Refused(refused);
        }
        if self.tenures.contains_key(&self.holder(request.operation)) {
            return self.enter_again(env, request);
        }
        if self.may_enter(request.mode) {
            return self.enter(env, request);
        }
        self.queue_or_give_up(env, request)
    }

    /// The checks that need nothing but the clock and the stored token.
    fn refuse_delivery(&self, env: Env<'_>, request: &Acquire) -> Option<Refused> {
        let latest = env.now.saturating_add(env.settings.horizon);
        let outside = request.deliver_before < env.now || request.deliver_before > latest;
        if outside {
            return Some(Refused::TooLate);
        }
        let known = env.now.max(ServerTime::from_micros(self.token));
        let highest = known
            .saturating_add(MAX_FLOOR_AHEAD)
            .as_micros()
            .min(MAX_FLOOR);
        let floor = request.floor.map_or(0, FencingToken::get);
        (floor > highest).then_some(Refused::FloorTooHigh)
    }

    /// Whether it matters for this attempt who has expired. A reader's token does: it joins the
    /// period of those who read, and of nobody who is gone.
    fn depends_on_expiry(&self, request: &Acquire) -> bool {
        self.has_queue()
            || request.mode == Mode::Shared
            || self.spec != Some(request.spec)
            || !self.fits(request.mode)
            || self.tenures.len() >= request.limits.holders as usize
    }

    /// How the operation stands if it is live already.
    fn report(&self, operation: Operation, now: ServerTime) -> Option<AcquireReply> {
        if let Some(tenure) = self.live(operation, now) {
            return Some(AcquireReply::Acquired(self.acquired(tenure, now)));
        }
        let ticket = self.ticket(operation)?;
        let waits = self
            .places
            .get(&ticket)
            .is_some_and(|place| !is_over(place.end, now));
        waits.then(|| AcquireReply::Queued(self.queued(ticket, now)))
    }

    /// Takes the newcomer's terms if the key is idle, and insists on its own otherwise.
    fn adopt(&mut self, request: &Acquire) -> Result<(), Refused> {
        match self.spec {
            Some(lives_with) if lives_with != request.spec => {
                if !self.tenures.is_empty() || !self.places.is_empty() {
                    return Err(Refused::Mismatch { lives_with });
                }
                self.spec = Some(request.spec);
                Ok(())
            }
            _ => {
                self.spec = Some(request.spec);
                Ok(())
            }
        }
    }

    /// One more hold of an owner that holds already.
    fn enter_again(&mut self, env: Env<'_>, request: &Acquire) -> AcquireReply {
        let holder = self.holder(request.operation);
        let Some(tenure) = self.tenures.get_mut(&holder) else {
            return AcquireReply::Refused(Refused::Stale);
        };
        if request.mode == Mode::Exclusive && tenure.mode() == Mode::Shared {
            return AcquireReply::Refused(Refused::WouldDeadlock);
        }
        if tenure.holds.len() >= request.limits.holds as usize {
            return AcquireReply::Refused(Refused::HoldLimit);
        }
        tenure.holds.push(Hold {
            sequence: request.operation.sequence,
            mode: request.mode,
        });
        if !tenure.revoked {
            // An inner hold with a shorter lease must not shorten the tenure.
            tenure.end = tenure.end.max(env.now.saturating_add(request.lease));
        }
        let end = tenure.end;
        self.cover_tenure(end, env.settings);
        let acquired = self
            .tenures
            .get(&holder)
            .map(|tenure| self.acquired(tenure, env.now));
        acquired.map_or(
            AcquireReply::Refused(Refused::Stale),
            AcquireReply::Acquired,
        )
    }

    /// Whether a newcomer may have what is free, after settling.
    fn may_enter(&self, mode: Mode) -> bool {
        let policy = self.spec.map(|spec| spec.policy());
        let all_away = self.places.len() == self.away as usize;
        let passes = match policy {
            Some(Policy::Barging) => true,
            Some(Policy::ReaderPreference) => mode == Mode::Shared,
            _ => false,
        };
        self.fits(mode) && (all_away || passes)
    }

    fn enter(&mut self, env: Env<'_>, request: &Acquire) -> AcquireReply {
        if self.tenures.len() >= request.limits.holders as usize {
            return AcquireReply::Refused(Refused::HoldersFull);
        }
        let grant = Grant {
            operation: request.operation,
            mode: request.mode,
            label: request.label.clone(),
            floor: request.floor,
            end: env.now.saturating_add(request.lease),
        };
        self.grant(env, grant);
        self.report(request.operation, env.now)
            .expect("it was granted just now")
    }

    fn queue_or_give_up(&mut self, env: Env<'_>, request: &Acquire) -> AcquireReply {
        let wait = request.wait.filter(|wait| {
            wait.place_until
                .is_none_or(|until| !is_over(until, env.now))
        });
        let Some(wait) = wait else {
            return AcquireReply::Held(self.held(env.now));
        };
        if self.places.len() >= request.limits.waiters as usize {
            self.sweep_places(env.now);
            if self.places.len() >= request.limits.waiters as usize {
                return AcquireReply::Refused(Refused::QueueFull);
            }
        }
        let ticket = self.enqueue(env, request, wait);
        AcquireReply::Queued(self.queued(ticket, env.now))
    }

    fn enqueue(&mut self, env: Env<'_>, request: &Acquire, wait: Wait) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let end = Place::end_from(env.now, request.spec.waiter_lease(), wait.place_until);
        let place = Place {
            operation: request.operation,
            mode: request.mode,
            label: request.label.clone(),
            floor: request.floor,
            end,
            until: wait.place_until,
            listening: wait.listening,
            away: false,
            away_marks: 0,
        };
        self.places.insert(ticket, place);
        self.tickets.insert(
            (request.operation.session, request.operation.sequence),
            ticket,
        );
        self.cover_tenure(end, env.settings);
        ticket
    }

    /// Who stands in the way. Looking at each holder is bounded like any scan.
    fn held(&self, now: ServerTime) -> Held {
        let few = self.tenures.len() <= SCAN_FREELY;
        let among = self.tenures.values().filter(|_| few);
        let first = among.min_by_key(|tenure| tenure.end);
        Held {
            change_in: self.change_in(now),
            by: first.map(|tenure| tenure.label.clone()),
        }
    }

    pub(super) fn poll(
        &mut self,
        env: Env<'_>,
        request: &Poll,
        out: &mut Vec<Message>,
    ) -> PollReply {
        self.refresh_place(env, request);
        let own = Some(request.operation);
        let dropped = self.begin(env, request.operation, own, Self::has_queue, out);
        self.take_barging(env, request.operation, out);

        match self.report(request.operation, env.now) {
            Some(AcquireReply::Acquired(acquired)) => PollReply::Acquired(acquired),
            Some(AcquireReply::Queued(queued)) => PollReply::Queued(queued),
            _ => PollReply::Gone(self.why(request.operation, env.now, dropped.own)),
        }
    }

    /// Extends the caller's own place, if it has not expired, and clears its mark.
    fn refresh_place(&mut self, env: Env<'_>, request: &Poll) {
        let waiter_lease = self
            .spec
            .map_or_else(Default::default, |spec| spec.waiter_lease());
        let Some(place) = self
            .ticket(request.operation)
            .and_then(|ticket| self.places.get_mut(&ticket))
            .filter(|place| !is_over(place.end, env.now))
        else {
            return;
        };
        place.end = Place::end_from(env.now, waiter_lease, place.until);
        place.listening = request.listening;
        self.away -= u32::from(std::mem::take(&mut place.away));
        let end = place.end;
        self.cover_tenure(end, env.settings);
    }

    /// Under barging a waiter gets a free key by its own poll.
    fn take_barging(&mut self, env: Env<'_>, operation: Operation, out: &mut Vec<Message>) {
        let barging = self
            .spec
            .is_some_and(|spec| spec.policy() == Policy::Barging);
        let Some(ticket) = self.ticket(operation).filter(|_| barging) else {
            return;
        };
        let fits = self
            .places
            .get(&ticket)
            .is_some_and(|place| self.fits(place.mode));
        if fits {
            self.grant_place(env, ticket, false, out);
        }
    }
}

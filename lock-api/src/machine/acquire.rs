//! The commands acquire and poll.

use crate::bounds::{MAX_FLOOR, MAX_FLOOR_AHEAD, SCAN_FREELY};
use crate::id::{FencingToken, Operation};
use crate::machine::state::{Grant, Hold, State, is_expired};
use crate::machine::{Env, Message, WaiterParts};
use crate::reply::{AcquireReply, Contended, PollReply, Refused};
use crate::request::{Acquire, Mode, Poll, Wait};
use crate::time::ServerTime;

impl State {
    pub(super) fn acquire(
        &mut self,
        env: Env<'_>,
        request: &Acquire,
        out: &mut Vec<Message>,
    ) -> AcquireReply {
        self.clear_if_expired(env.now);
        if let Some(reply) = self.refuse_delivery(env, request) {
            return reply;
        }
        let needed = |state: &Self| state.depends_on_expiry(request);
        self.begin(env, request.operation, None, needed, out);

        // The watermark: the highest sequence of the session.
        let seen = self
            .watermark(request.operation.session, env.now)
            .map_or(0, |watermark| watermark.sequence);
        // Raised even if the acquire only reports or is stale: a copy of this very message may
        // arrive as late as its own window allows, and the watermark must outlive it (rule 12).
        self.raise_watermark(env, request.operation, None);
        if let Some(reply) = self.report(request.operation, env.now) {
            return reply;
        }
        if request.operation.sequence <= seen {
            return AcquireReply::Stale;
        }
        if let Err(refused) = self.adopt(request) {
            return AcquireReply::Refused(refused);
        }
        if self
            .holders
            .contains_key(&self.holder_id(request.operation))
        {
            return self.reenter(env, request);
        }
        if self.may_enter(request.mode) {
            return self.enter(env, request);
        }
        self.queue_or_contend(env, request)
    }

    /// Checks delivery window and floor. Needs only the clock and the stored token.
    fn refuse_delivery(&self, env: Env<'_>, request: &Acquire) -> Option<AcquireReply> {
        let latest = env.now.saturating_add(env.settings.delivery_window);
        let outside = request.deliver_before < env.now || request.deliver_before > latest;
        if outside {
            return Some(AcquireReply::TooLate);
        }
        let known = env.now.max(ServerTime::from_micros(self.token));
        let highest = known
            .saturating_add(MAX_FLOOR_AHEAD)
            .as_micros()
            .min(MAX_FLOOR);
        let floor = request.floor.map_or(0, FencingToken::get);
        (floor > highest).then_some(AcquireReply::Refused(Refused::FloorTooHigh))
    }

    /// Whether the outcome of this attempt depends on expired holders. It always does for a reader:
    /// it joins the epoch of live readers, whose token it shares, but not of expired ones.
    fn depends_on_expiry(&self, request: &Acquire) -> bool {
        self.has_queue()
            || request.mode == Mode::Shared
            || self.spec != Some(request.spec)
            || !self.fits(request.mode)
            || self.holders.len() >= request.limits.holders as usize
    }

    /// The reply for an operation that already holds or waits.
    fn report(&self, operation: Operation, now: ServerTime) -> Option<AcquireReply> {
        if let Some(holder) = self.live(operation, now) {
            return Some(AcquireReply::Acquired(self.acquired(holder, now)));
        }
        let ticket = self.ticket(operation)?;
        let waits = !is_expired(self.waiters.get(&ticket)?.end, now);
        waits.then(|| AcquireReply::Queued(self.queued(ticket, now)))
    }

    /// Sets the spec of an idle key. Otherwise checks that the request has the spec in use.
    fn adopt(&mut self, request: &Acquire) -> Result<(), Refused> {
        let is_idle = self.holders.is_empty() && self.waiters.is_empty();
        if let Some(lives_with) = self.spec
            && lives_with != request.spec
            && !is_idle
        {
            return Err(Refused::Mismatch { lives_with });
        }
        self.spec = Some(request.spec);
        Ok(())
    }

    /// Adds a hold to an existing holder of the owner (rule 5).
    fn reenter(&mut self, env: Env<'_>, request: &Acquire) -> AcquireReply {
        let holder_id = self.holder_id(request.operation);
        let holder = self.known_holder(holder_id);
        if request.mode == Mode::Exclusive && holder.mode() == Mode::Shared {
            return AcquireReply::Refused(Refused::WouldDeadlock);
        }
        if holder.holds.len() >= request.limits.holds as usize {
            return AcquireReply::Refused(Refused::HoldLimit);
        }
        holder.holds.push(Hold {
            sequence: request.operation.sequence,
            mode: request.mode,
        });
        if !holder.revoked {
            // An inner hold with a shorter lease must not shorten the holder's lease.
            holder.end = holder.end.max(env.now.saturating_add(request.lease));
        }
        let end = holder.end;
        self.cover_with_token(end, env.settings);
        AcquireReply::Acquired(self.acquired(&self.holders[&holder_id], env.now))
    }

    /// Whether a new attempt gets the free capacity. Called after settling. If all waiters are unreachable, it passes
    /// them: the capacity would be nobody's until one of them polls (rule 9).
    fn may_enter(&self, mode: Mode) -> bool {
        let all_unreachable = self.waiters.len() == self.unreachable as usize;
        self.fits(mode) && all_unreachable
    }

    fn enter(&mut self, env: Env<'_>, request: &Acquire) -> AcquireReply {
        if self.holders.len() >= request.limits.holders as usize {
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
            .expect("the operation was granted")
    }

    fn queue_or_contend(&mut self, env: Env<'_>, request: &Acquire) -> AcquireReply {
        let wait = request.wait.filter(|wait| {
            wait.wait_until
                .is_none_or(|until| !is_expired(until, env.now))
        });
        let Some(wait) = wait else {
            return AcquireReply::Contended(self.contention(env.now));
        };
        if self.waiters.len() >= request.limits.waiters as usize {
            self.sweep_waiters(env.now);
            if self.waiters.len() >= request.limits.waiters as usize {
                return AcquireReply::Refused(Refused::QueueFull);
            }
        }
        let ticket = self.enqueue(env, request, wait);
        AcquireReply::Queued(self.queued(ticket, env.now))
    }

    fn enqueue(&mut self, env: Env<'_>, request: &Acquire, wait: Wait) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let end = WaiterParts::end_from(env.now, request.spec.waiter_lease(), wait.wait_until);
        let waiter = WaiterParts {
            ticket,
            operation: request.operation,
            mode: request.mode,
            label: request.label.clone(),
            floor: request.floor,
            lease: request.lease,
            end,
            wait_until: wait.wait_until,
            listening: wait.listening,
            unreachable: false,
            unreachable_marks: 0,
        };
        self.insert_waiter(waiter);
        self.cover_with_token(end, env.settings);
        ticket
    }

    /// The reply for a key that is not free. The search for the first end is bounded like a scan.
    fn contention(&self, now: ServerTime) -> Contended {
        let few = self.holders.len() <= SCAN_FREELY;
        let candidates = self.holders.values().filter(|_| few);
        let first = candidates.min_by_key(|holder| holder.end);
        Contended {
            retry_after: self.retry_after(now),
            holder: first.map(|holder| holder.label.clone()),
        }
    }

    pub(super) fn poll(
        &mut self,
        env: Env<'_>,
        request: &Poll,
        out: &mut Vec<Message>,
    ) -> PollReply {
        // An expired waiter is not refreshed, so this may come before the expiry checks of `begin`.
        self.refresh_waiter(env, request);
        let own = Some(request.operation);
        let expired = self.begin(env, request.operation, own, Self::has_queue, out);

        match self.report(request.operation, env.now) {
            Some(AcquireReply::Acquired(acquired)) => PollReply::Acquired(acquired),
            Some(AcquireReply::Queued(queued)) => PollReply::Queued(queued),
            _ => PollReply::Gone(self.reason(request.operation, env.now, expired)),
        }
    }

    /// Extends the waiter of the polled operation, unless it has expired, and clears its unreachable
    /// mark.
    fn refresh_waiter(&mut self, env: Env<'_>, request: &Poll) {
        let waiter_lease = self
            .spec
            .map_or_else(Default::default, |spec| spec.waiter_lease());
        let Some(waiter) = self
            .ticket(request.operation)
            .and_then(|ticket| self.waiters.get_mut(&ticket))
            .filter(|waiter| !is_expired(waiter.end, env.now))
        else {
            return;
        };
        waiter.end = WaiterParts::end_from(env.now, waiter_lease, waiter.wait_until);
        waiter.listening = request.listening;
        self.unreachable -= u32::from(std::mem::take(&mut waiter.unreachable));
        let end = waiter.end;
        self.cover_with_token(end, env.settings);
    }
}

//! The commands renew, release, convert and forced release.

use crate::id::FencingToken;
use crate::machine::state::{Holder, HolderId, State, is_expired};
use crate::machine::{Env, Message, Payload};
use crate::reply::{ConvertReply, EndReason, ForceReply, ReleaseReply, RenewReply};
use crate::request::{Convert, ForceMode, ForceRelease, Kind, Mode, Release, Renew};

impl State {
    pub(super) fn renew(
        &mut self,
        env: Env<'_>,
        request: &Renew,
        out: &mut Vec<Message>,
    ) -> RenewReply {
        let expired = self.begin(env, request.operation, None, Self::has_queue, out);

        let Some(holder) = self.live(request.operation, env.now) else {
            return RenewReply::Lost(self.reason(request.operation, env.now, expired));
        };
        if holder.revoked {
            return RenewReply::Lost(EndReason::Forced);
        }
        let token = self.token_of(holder);
        // Never shortens the holder: the reply may be lost, and the guard then counts on the old end (decision 0015). So
        // `earliest` stays a lower bound.
        let end = holder.end.max(env.now.saturating_add(request.lease));
        let holder_id = self.holder_id(request.operation);
        self.known_holder(holder_id).end = end;
        self.cover_with_token(end, env.settings);
        RenewReply::Renewed {
            token,
            remaining: end.saturating_since(env.now),
        }
    }

    pub(super) fn release(
        &mut self,
        env: Env<'_>,
        request: &Release,
        out: &mut Vec<Message>,
    ) -> ReleaseReply {
        let expired = self.begin(env, request.operation, None, Self::has_queue, out);

        let (reply, freed) = if self.live(request.operation, env.now).is_some() {
            self.remove_hold(env, request)
        } else if let Some(ticket) = self.ticket(request.operation) {
            self.remove_waiter(ticket);
            (ReleaseReply::Left, true)
        } else {
            let reason = self.reason(request.operation, env.now, expired);
            (ReleaseReply::NotHeld(reason), false)
        };
        // An acquire at or below the watermark is refused, so a late copy takes nothing (rule 12).
        self.raise_watermark(env, request.operation, Some(EndReason::Released));
        if freed {
            self.settle(env, self.has_queue(), None, out);
        }
        reply
    }

    /// Removes one hold from its holder. Also returns whether that freed capacity.
    fn remove_hold(&mut self, env: Env<'_>, request: &Release) -> (ReleaseReply, bool) {
        let holder_id = self.holder_id(request.operation);
        let holder = self.known_holder(holder_id);
        if holder.holds.len() == 1 {
            self.remove_holder(holder_id);
            let (holds_left, holder) = (0, None);
            return (ReleaseReply::Released { holds_left, holder }, true);
        }
        let before = holder.mode();
        holder
            .holds
            .retain(|hold| hold.sequence != request.operation.sequence);
        let holds_left = u32::try_from(holder.holds.len()).unwrap_or(u32::MAX);
        let after = holder.mode();
        if before != after {
            // The last write hold is gone and a read hold is left: a downgrade (rule 5).
            self.used = self.used - self.weight(before) + self.weight(after);
            self.next_token(env.now, None);
        }
        let holder = Some(self.status(&self.holders[&holder_id], env.now));
        (
            ReleaseReply::Released { holds_left, holder },
            before != after,
        )
    }

    pub(super) fn convert(
        &mut self,
        env: Env<'_>,
        request: &Convert,
        out: &mut Vec<Message>,
    ) -> ConvertReply {
        let expired = self.begin(env, request.operation, None, |_| true, out);

        let Some(holder) = self.live(request.operation, env.now) else {
            return ConvertReply::Lost(self.reason(request.operation, env.now, expired));
        };
        if self.spec.is_none_or(|spec| spec.kind() != Kind::RwLock) {
            return ConvertReply::NotSoleHolder;
        }
        // A late copy must not undo a later conversion (rule 6).
        if request.expected != self.token_of(holder) {
            return ConvertReply::WrongEpoch(self.status(holder, env.now));
        }
        let hold = holder
            .holds
            .iter()
            .find(|hold| hold.sequence == request.operation.sequence);
        if hold.is_some_and(|hold| hold.mode == request.to) {
            let status = self.status(holder, env.now);
            return ConvertReply::Converted {
                token: status.token,
                remaining: status.remaining,
            };
        }
        if request.to == Mode::Exclusive && !self.may_upgrade(holder) {
            return ConvertReply::NotSoleHolder;
        }
        self.convert_hold(env, request, out)
    }

    /// Only the sole holder may upgrade, and only once while others wait (rule 6): it could pass them forever.
    fn may_upgrade(&self, holder: &Holder) -> bool {
        let upgraded_before = self.has_queue() && holder.upgraded;
        self.holders.len() == 1 && !upgraded_before
    }

    fn convert_hold(
        &mut self,
        env: Env<'_>,
        request: &Convert,
        out: &mut Vec<Message>,
    ) -> ConvertReply {
        let holder_id = self.holder_id(request.operation);
        let others_wait = self.has_queue();
        let holder = self.known_holder(holder_id);
        let before = holder.mode();
        for hold in &mut holder.holds {
            if hold.sequence == request.operation.sequence {
                hold.mode = request.to;
            }
        }
        let after = holder.mode();
        holder.upgraded |= request.to == Mode::Exclusive && others_wait;
        let remaining = holder.end.saturating_since(env.now);
        self.used = self.used - self.weight(before) + self.weight(after);
        self.next_token(env.now, None);
        let token = FencingToken::new(self.token);
        if self.weight(after) < self.weight(before) {
            self.settle(env, true, None, out);
        }
        ConvertReply::Converted { token, remaining }
    }

    pub(super) fn force_release(
        &mut self,
        env: Env<'_>,
        request: &ForceRelease,
        out: &mut Vec<Message>,
    ) -> ForceReply {
        self.clear_if_expired(env.now);
        self.settle(env, true, None, out);

        let named: Vec<HolderId> = self
            .holders
            .iter()
            .filter(|(_, holder)| !is_expired(holder.end, env.now))
            .filter(|(_, holder)| request.tokens.contains(&self.token_of(holder)))
            .map(|(holder_id, _)| *holder_id)
            .collect();
        for holder_id in &named {
            self.force_holder(env, *holder_id, request.how, out);
        }
        if named.is_empty() {
            return ForceReply::WrongEpoch;
        }
        if request.how == ForceMode::Now {
            self.settle(env, true, None, out);
        }
        ForceReply::Forced {
            holders: u32::try_from(named.len()).unwrap_or(u32::MAX),
        }
    }

    fn force_holder(
        &mut self,
        env: Env<'_>,
        holder_id: HolderId,
        how: ForceMode,
        out: &mut Vec<Message>,
    ) {
        let holder = self.known_holder(holder_id);
        holder.revoked = true;
        let to = holder_id.session;
        let revoked = holder.holds.iter().map(|hold| hold.sequence);
        out.extend(revoked.map(|sequence| Message {
            to,
            payload: Payload::Revoked { sequence },
        }));
        if how == ForceMode::Revoke {
            return;
        }
        let Some(holder) = self.remove_holder(holder_id) else {
            return;
        };
        // A later renewal or release of the hold is then answered with `Forced`.
        if let Some(watermark) = self
            .watermarks
            .get_mut(&to)
            .filter(|watermark| !is_expired(watermark.end, env.now))
            && holder.has(watermark.sequence)
        {
            watermark.reason = Some(EndReason::Forced);
        }
    }
}

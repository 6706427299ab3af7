//! Renew, end, convert and forced release: the commands on what is held.

use std::time::Duration;

use crate::id::{FencingToken, Operation};
use crate::machine::settle::Settling;
use crate::machine::state::{Holder, HolderId, State, is_over};
use crate::machine::{Env, Message, Payload};
use crate::reply::{ConvertReply, EndReason, ForceReply, ReleaseReply, RenewReply};
use crate::request::{Convert, ForceHow, ForceRelease, Kind, Mode, Release, Renew};
use crate::time::ServerTime;

impl State {
    pub(super) fn renew(
        &mut self,
        env: Env<'_>,
        request: &Renew,
        out: &mut Vec<Message>,
    ) -> RenewReply {
        let dropped = self.begin(env, request.operation, None, Self::has_queue, out);

        let Some(holder) = self.live(request.operation, env.now) else {
            return RenewReply::Lost(self.reason(request.operation, env.now, dropped.own));
        };
        if holder.revoked {
            return RenewReply::Lost(EndReason::Forced);
        }
        let token = self.token_of(holder);
        let end = self.extend(env, request.operation, request.lease);
        RenewReply::Renewed {
            token,
            remaining: end.saturating_since(env.now),
        }
    }

    /// Moves the end of the operation's holder, never to an earlier time; where it is then. The
    /// bound of the earliest end stays a lower bound.
    pub(super) fn extend(
        &mut self,
        env: Env<'_>,
        operation: Operation,
        lease: Duration,
    ) -> ServerTime {
        let Some(end) = self.live(operation, env.now).map(|holder| holder.end) else {
            return env.now;
        };
        let end = end.max(env.now.saturating_add(lease));
        let holder_id = self.holder_id(operation);
        if let Some(holder) = self.holders.get_mut(&holder_id) {
            holder.end = end;
        }
        self.cover_holder(end, env.settings);
        end
    }

    pub(super) fn release(
        &mut self,
        env: Env<'_>,
        request: &Release,
        out: &mut Vec<Message>,
    ) -> ReleaseReply {
        let dropped = self.begin(env, request.operation, None, Self::has_queue, out);

        let (reply, freed) = if self.live(request.operation, env.now).is_some() {
            self.release_hold(env, request)
        } else if let Some(ticket) = self.ticket(request.operation) {
            self.remove_waiter(ticket);
            (ReleaseReply::Left, true)
        } else {
            let reason = self.reason(request.operation, env.now, dropped.own);
            (ReleaseReply::NotHeld(reason), false)
        };
        self.note(env, request.operation, Some(EndReason::Released));
        if freed {
            self.settle(env, Settling::freed(self.has_queue()), out);
        }
        reply
    }

    /// Takes one hold out of its holder; whether that freed something.
    fn release_hold(&mut self, env: Env<'_>, request: &Release) -> (ReleaseReply, bool) {
        let holder_id = self.holder_id(request.operation);
        let Some(holder) = self.holders.get_mut(&holder_id) else {
            return (ReleaseReply::NotHeld(EndReason::Unknown), false);
        };
        if holder.holds.len() == 1 {
            self.remove_holder(holder_id);
            return (
                ReleaseReply::Released {
                    holds_left: 0,
                    holder: None,
                },
                true,
            );
        }
        let before = holder.mode();
        holder
            .holds
            .retain(|hold| hold.sequence != request.operation.sequence);
        let holds_left = u32::try_from(holder.holds.len()).unwrap_or(u32::MAX);
        let after = holder.mode();
        if before != after {
            // The last write hold went: what is left is a downgrade.
            self.used = self.used - self.weight(before) + self.weight(after);
            self.next_token(env.now, None);
        }
        let holder = self
            .holders
            .get(&holder_id)
            .map(|holder| self.view(holder, env.now));
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
        let dropped = self.begin(env, request.operation, None, |_| true, out);

        let Some(holder) = self.live(request.operation, env.now) else {
            return ConvertReply::Lost(self.reason(request.operation, env.now, dropped.own));
        };
        if self.spec.is_none_or(|spec| spec.kind() != Kind::RwLock) {
            return ConvertReply::NotSole;
        }
        if request.expected != self.token_of(holder) {
            return ConvertReply::WrongEpoch(self.view(holder, env.now));
        }
        let hold = holder
            .holds
            .iter()
            .find(|h| h.sequence == request.operation.sequence);
        if hold.is_some_and(|hold| hold.mode == request.to) {
            let view = self.view(holder, env.now);
            return ConvertReply::Converted {
                token: view.token,
                remaining: view.remaining,
            };
        }
        if request.to == Mode::Exclusive && !self.may_upgrade(holder) {
            return ConvertReply::NotSole;
        }
        self.convert_hold(env, request, out)
    }

    /// Only the sole holder may; while others wait, once in a holder.
    fn may_upgrade(&self, holder: &Holder) -> bool {
        let again = self.has_queue() && holder.upgraded;
        self.holders.len() == 1 && !again
    }

    fn convert_hold(
        &mut self,
        env: Env<'_>,
        request: &Convert,
        out: &mut Vec<Message>,
    ) -> ConvertReply {
        let holder_id = self.holder_id(request.operation);
        let others_wait = self.has_queue();
        let Some(holder) = self.holders.get_mut(&holder_id) else {
            return ConvertReply::Lost(EndReason::Unknown);
        };
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
            self.settle(env, Settling::freed(true), out);
        }
        ConvertReply::Converted { token, remaining }
    }

    pub(super) fn force_release(
        &mut self,
        env: Env<'_>,
        request: &ForceRelease,
        out: &mut Vec<Message>,
    ) -> ForceReply {
        self.forget_if_over(env.now);
        let how = Settling {
            needed: true,
            ..Settling::default()
        };
        self.settle(env, how, out);

        let seen: Vec<HolderId> = self
            .holders
            .iter()
            .filter(|(_, holder)| !is_over(holder.end, env.now))
            .filter(|(_, holder)| request.tokens.contains(&self.token_of(holder)))
            .map(|(holder_id, _)| *holder_id)
            .collect();
        for holder_id in &seen {
            self.force(env, *holder_id, request.how, out);
        }
        if seen.is_empty() {
            return ForceReply::WrongEpoch;
        }
        if request.how == ForceHow::Now {
            self.settle(env, Settling::freed(true), out);
        }
        ForceReply::Forced {
            holders: u32::try_from(seen.len()).unwrap_or(u32::MAX),
        }
    }

    fn force(&mut self, env: Env<'_>, holder_id: HolderId, how: ForceHow, out: &mut Vec<Message>) {
        let Some(holder) = self.holders.get_mut(&holder_id) else {
            return;
        };
        holder.revoked = true;
        let to = holder_id.session;
        let revoked = holder.holds.iter().map(|hold| hold.sequence);
        out.extend(revoked.map(|sequence| Message {
            to,
            payload: Payload::Revoked { sequence },
        }));
        if how == ForceHow::Revoke {
            return;
        }
        let Some(holder) = self.remove_holder(holder_id) else {
            return;
        };
        // So that a holder that comes late can still be told what happened to it.
        if let Some(watermark) = self
            .watermarks
            .get_mut(&to)
            .filter(|watermark| watermark.until > env.now)
            && holder.has(watermark.sequence)
        {
            watermark.reason = Some(EndReason::Forced);
        }
    }
}

//! Renew, end, convert and forced release: the commands on what is held.

use std::time::Duration;

use crate::id::{FencingToken, Operation};
use crate::machine::settle::Settling;
use crate::machine::state::{Holder, State, Tenure, is_over};
use crate::machine::{Env, Event, Message};
use crate::reply::{ConvertReply, EndReply, ForceReply, RenewReply, Why};
use crate::request::{Convert, End, ForceHow, ForceRelease, Kind, Mode, Renew};
use crate::time::ServerTime;

impl State {
    pub(super) fn renew(
        &mut self,
        env: Env<'_>,
        request: &Renew,
        out: &mut Vec<Message>,
    ) -> RenewReply {
        let dropped = self.begin(env, request.operation, None, Self::has_queue, out);

        let Some(tenure) = self.live(request.operation, env.now) else {
            return RenewReply::Lost(self.why(request.operation, env.now, dropped.own));
        };
        if tenure.revoked {
            return RenewReply::Lost(Why::Forced);
        }
        let token = self.token_of(tenure);
        let end = self.extend(env, request.operation, request.lease);
        RenewReply::Renewed {
            token,
            remaining: end.saturating_since(env.now),
        }
    }

    /// Moves the end of the operation's tenure, never to an earlier time; where it is then. The
    /// bound of the earliest end stays a lower bound.
    pub(super) fn extend(
        &mut self,
        env: Env<'_>,
        operation: Operation,
        lease: Duration,
    ) -> ServerTime {
        let Some(end) = self.live(operation, env.now).map(|tenure| tenure.end) else {
            return env.now;
        };
        let end = end.max(env.now.saturating_add(lease));
        let holder = self.holder(operation);
        if let Some(tenure) = self.tenures.get_mut(&holder) {
            tenure.end = end;
        }
        self.cover_tenure(end, env.settings);
        end
    }

    pub(super) fn end(&mut self, env: Env<'_>, request: &End, out: &mut Vec<Message>) -> EndReply {
        let dropped = self.begin(env, request.operation, None, Self::has_queue, out);

        let (reply, freed) = if self.live(request.operation, env.now).is_some() {
            self.end_hold(env, request)
        } else if let Some(ticket) = self.ticket(request.operation) {
            self.remove_place(ticket);
            (EndReply::Left, true)
        } else {
            let why = self.why(request.operation, env.now, dropped.own);
            (EndReply::NotHeld(why), false)
        };
        self.note(env, request.operation, Some(Why::Ended));
        if freed {
            self.settle(env, Settling::freed(self.has_queue()), out);
        }
        reply
    }

    /// Takes one hold out of its tenure; whether that freed something.
    fn end_hold(&mut self, env: Env<'_>, request: &End) -> (EndReply, bool) {
        let holder = self.holder(request.operation);
        let Some(tenure) = self.tenures.get_mut(&holder) else {
            return (EndReply::NotHeld(Why::Unknown), false);
        };
        if tenure.holds.len() == 1 {
            self.remove_tenure(holder);
            return (
                EndReply::Released {
                    holds_left: 0,
                    tenure: None,
                },
                true,
            );
        }
        let before = tenure.mode();
        tenure
            .holds
            .retain(|hold| hold.sequence != request.operation.sequence);
        let holds_left = u32::try_from(tenure.holds.len()).unwrap_or(u32::MAX);
        let after = tenure.mode();
        if before != after {
            // The last write hold went: what is left is a downgrade.
            self.used = self.used - self.weight(before) + self.weight(after);
            self.next_token(env.now, None);
        }
        let tenure = self
            .tenures
            .get(&holder)
            .map(|tenure| self.view(tenure, env.now));
        (EndReply::Released { holds_left, tenure }, before != after)
    }

    pub(super) fn convert(
        &mut self,
        env: Env<'_>,
        request: &Convert,
        out: &mut Vec<Message>,
    ) -> ConvertReply {
        let dropped = self.begin(env, request.operation, None, |_| true, out);

        let Some(tenure) = self.live(request.operation, env.now) else {
            return ConvertReply::Lost(self.why(request.operation, env.now, dropped.own));
        };
        if self.spec.is_none_or(|spec| spec.kind() != Kind::RwLock) {
            return ConvertReply::NotSole;
        }
        if request.expected != self.token_of(tenure) {
            return ConvertReply::WrongPeriod(self.view(tenure, env.now));
        }
        let hold = tenure
            .holds
            .iter()
            .find(|h| h.sequence == request.operation.sequence);
        if hold.is_some_and(|hold| hold.mode == request.to) {
            let view = self.view(tenure, env.now);
            return ConvertReply::Converted {
                token: view.token,
                remaining: view.remaining,
            };
        }
        if request.to == Mode::Exclusive && !self.may_upgrade(tenure) {
            return ConvertReply::NotSole;
        }
        self.convert_hold(env, request, out)
    }

    /// Only the sole holder may; while others wait, once in a tenure.
    fn may_upgrade(&self, tenure: &Tenure) -> bool {
        let again = self.has_queue() && tenure.upgraded;
        self.tenures.len() == 1 && !again
    }

    fn convert_hold(
        &mut self,
        env: Env<'_>,
        request: &Convert,
        out: &mut Vec<Message>,
    ) -> ConvertReply {
        let holder = self.holder(request.operation);
        let others_wait = self.has_queue();
        let Some(tenure) = self.tenures.get_mut(&holder) else {
            return ConvertReply::Lost(Why::Unknown);
        };
        let before = tenure.mode();
        for hold in &mut tenure.holds {
            if hold.sequence == request.operation.sequence {
                hold.mode = request.to;
            }
        }
        let after = tenure.mode();
        tenure.upgraded |= request.to == Mode::Exclusive && others_wait;
        let remaining = tenure.end.saturating_since(env.now);
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

        let seen: Vec<Holder> = self
            .tenures
            .iter()
            .filter(|(_, tenure)| !is_over(tenure.end, env.now))
            .filter(|(_, tenure)| request.tokens.contains(&self.token_of(tenure)))
            .map(|(holder, _)| *holder)
            .collect();
        for holder in &seen {
            self.force(env, *holder, request.how, out);
        }
        if seen.is_empty() {
            return ForceReply::WrongPeriod;
        }
        if request.how == ForceHow::Now {
            self.settle(env, Settling::freed(true), out);
        }
        ForceReply::Forced {
            tenures: u32::try_from(seen.len()).unwrap_or(u32::MAX),
        }
    }

    fn force(&mut self, env: Env<'_>, holder: Holder, how: ForceHow, out: &mut Vec<Message>) {
        let Some(tenure) = self.tenures.get_mut(&holder) else {
            return;
        };
        tenure.revoked = true;
        let to = holder.session;
        let revoked = tenure.holds.iter().map(|hold| hold.sequence);
        out.extend(revoked.map(|sequence| Message {
            to,
            event: Event::Revoked { sequence },
        }));
        if how == ForceHow::Revoke {
            return;
        }
        let Some(tenure) = self.remove_tenure(holder) else {
            return;
        };
        // So that a holder that comes late can still be told what happened to it.
        if let Some(mark) = self.marks.get_mut(&to).filter(|mark| mark.until > env.now)
            && tenure.has(mark.sequence)
        {
            mark.why = Some(Why::Forced);
        }
    }
}

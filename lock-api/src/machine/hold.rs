//! Renew, end, convert and forced release: the commands on what is held.

use std::time::Duration;

use crate::id::{FencingToken, Operation};
use crate::machine::settle::Settling;
use crate::machine::state::{Grant, Holder, State, Tenure, is_over};
use crate::machine::{Env, Event, Message};
use crate::mutants::mutant;
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
        self.forget_if_over(env.now);
        let dropped = self.drop_if_expired(request.operation, env.now);
        let needed = !self.places.is_empty();
        self.settle(
            env,
            Settling {
                needed,
                freed: dropped.freed,
                own: None,
            },
            out,
        );

        if mutant!(RenewRevives) {
            self.revive(env, request);
        }
        let Some(tenure) = self.live(request.operation, env.now) else {
            return RenewReply::Lost(self.why(request.operation, env.now, dropped.own));
        };
        if tenure.revoked && !mutant!(RevokedIsRenewed) {
            return RenewReply::Lost(Why::Forced);
        }
        let token = self.token_of(tenure);
        let before = tenure.end.saturating_since(env.now);
        if mutant!(CachedRenewal) && before * 4 > request.lease * 3 {
            let remaining = request.lease;
            return RenewReply::Renewed { token, remaining };
        }
        let end = self.extend(env, request.operation, request.lease);
        if mutant!(RenewalExtendsAll) {
            self.tenures
                .values_mut()
                .for_each(|tenure| tenure.end = tenure.end.max(end));
        }
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

    /// What a renewal does that sets an expiry without looking.
    fn revive(&mut self, env: Env<'_>, request: &Renew) {
        if self.live(request.operation, env.now).is_some() || !self.tenures.is_empty() {
            return;
        }
        self.spec = self.spec.or(Some(crate::LockSpec::mutex()));
        let grant = Grant {
            operation: request.operation,
            mode: Mode::Exclusive,
            label: crate::Label::new("").expect("empty is short enough"),
            floor: None,
            end: env.now.saturating_add(request.lease),
        };
        self.grant(env, grant);
    }

    pub(super) fn end(&mut self, env: Env<'_>, request: &End, out: &mut Vec<Message>) -> EndReply {
        self.forget_if_over(env.now);
        let dropped = self.drop_if_expired(request.operation, env.now);
        let needed = !self.places.is_empty();
        self.settle(
            env,
            Settling {
                needed,
                freed: dropped.freed,
                own: None,
            },
            out,
        );

        let held = self.live(request.operation, env.now);
        let (reply, freed) = if held.is_some_and(|tenure| self.misses(env.now, tenure)) {
            (EndReply::Left, false)
        } else if held.is_some() {
            self.end_hold(env, request)
        } else if let Some(ticket) = self.ticket(request.operation) {
            self.remove_place(ticket);
            (EndReply::Left, true)
        } else {
            let why = self.why(request.operation, env.now, dropped.own);
            let frees = match why {
                Why::Ended if mutant!(EndAgainFreesNext) => true,
                _ => mutant!(EndIgnoresOwner),
            };
            if frees && self.tenures.pop_first().is_some() {
                self.used = 0;
            }
            (EndReply::NotHeld(why), false)
        };
        if mutant!(NoMarkAfterEnd) {
            self.marks.remove(&request.operation.session);
        } else {
            self.note(env, request.operation, Some(Why::Ended));
        }
        if freed && !mutant!(EndGrantsNobody) {
            let needed = !self.places.is_empty();
            self.settle(
                env,
                Settling {
                    needed,
                    freed,
                    own: None,
                },
                out,
            );
        }
        reply
    }

    /// Whether an end that looks for a place or a confirmed hold finds neither. Nothing says which
    /// holds are claims; but a claim has no more left than a place.
    fn misses(&self, now: ServerTime, tenure: &Tenure) -> bool {
        let place = self.spec.map(|spec| spec.waiter_lease());
        mutant!(EndMissesClaim)
            && place.is_some_and(|place| tenure.end.saturating_since(now) <= place)
    }

    /// Takes one hold out of its tenure; whether that freed something.
    fn end_hold(&mut self, env: Env<'_>, request: &End) -> (EndReply, bool) {
        let holder = self.holder(request.operation);
        let Some(tenure) = self.tenures.get_mut(&holder) else {
            return (EndReply::NotHeld(Why::Unknown), false);
        };
        if tenure.holds.len() == 1 || mutant!(EndAtTwoFrees) {
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
        let mut view = self
            .tenures
            .get(&holder)
            .map(|tenure| self.view(tenure, env.now));
        if mutant!(EndTellsOldToken)
            && before != after
            && let Some(view) = &mut view
        {
            view.token = FencingToken::new(self.token - 1);
        }
        let holds_left = holds_left + u32::from(mutant!(EndCountsItself));
        let tenure = view;
        (EndReply::Released { holds_left, tenure }, before != after)
    }

    pub(super) fn convert(
        &mut self,
        env: Env<'_>,
        request: &Convert,
        out: &mut Vec<Message>,
    ) -> ConvertReply {
        self.forget_if_over(env.now);
        let dropped = self.drop_if_expired(request.operation, env.now);
        self.settle(
            env,
            Settling {
                needed: true,
                freed: dropped.freed,
                own: None,
            },
            out,
        );

        let Some(tenure) = self.live(request.operation, env.now) else {
            return ConvertReply::Lost(self.why(request.operation, env.now, dropped.own));
        };
        if self.spec.is_none_or(|spec| spec.kind() != Kind::RwLock) {
            return ConvertReply::NotSole;
        }
        if request.expected != self.token_of(tenure) && !mutant!(DuplicateConversionActs) {
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
        if mutant!(UpgradeAlwaysRefused) {
            return false;
        }
        let sole = self.tenures.len() == 1 || mutant!(UpgradeNotSole);
        let again = !self.places.is_empty() && tenure.upgraded;
        sole && (!again || mutant!(UpgradesAgain))
    }

    fn convert_hold(
        &mut self,
        env: Env<'_>,
        request: &Convert,
        out: &mut Vec<Message>,
    ) -> ConvertReply {
        let holder = self.holder(request.operation);
        let others_wait = !self.places.is_empty();
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
        if mutant!(DowngradeOvertakes) {
            let readers = |mode| mode == Mode::Shared;
            self.grant_in_order(env, None, readers, &mut 256, out);
        }
        if self.weight(after) < self.weight(before) {
            self.settle(
                env,
                Settling {
                    needed: true,
                    freed: true,
                    own: None,
                },
                out,
            );
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
        self.settle(
            env,
            Settling {
                needed: true,
                ..Settling::default()
            },
            out,
        );

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
            self.settle(
                env,
                Settling {
                    needed: true,
                    freed: true,
                    own: None,
                },
                out,
            );
        }
        let tenures = match mutant!(ForceCountsAll) {
            true => self.tenures.len(),
            false => seen.len(),
        };
        ForceReply::Forced {
            tenures: u32::try_from(tenures).unwrap_or(u32::MAX),
        }
    }

    fn force(&mut self, env: Env<'_>, holder: Holder, how: ForceHow, out: &mut Vec<Message>) {
        let Some(tenure) = self.tenures.get_mut(&holder) else {
            return;
        };
        tenure.revoked = true;
        let to = holder.session;
        let revoked = tenure.holds.iter().map(|hold| hold.sequence);
        let revoked = revoked.filter(|_| !mutant!(RevocationUntold));
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

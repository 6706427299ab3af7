//! Rules 2, 6 and 12: replies that depend on earlier steps of the key: why an operation is gone,
//! whether an acquire is stale, and whether a holder may upgrade.

use leasehold_api::bounds::DELIVERY_WINDOW;
use leasehold_api::machine::{Command, HolderParts, Reply};
use leasehold_api::{
    AcquireReply, Convert, ConvertReply, EndReason, Key, Kind, Label, Mode, NoteReply, Operation,
    PollReply, Refused, ReleaseReply, RenewReply, ServerTime, SessionId,
};

use crate::checker::small_map::SmallMap;
use crate::checker::step::{Step, find, has, holder_of, name, waiter_of};
use crate::checker::{Findings, Model, Set};

type Name = (SessionId, u64);

/// The memory of each key, and the label of each session.
#[derive(Debug, Default)]
pub(crate) struct Reasons {
    keys: SmallMap<Key, Memory, 1>,
    labels: SmallMap<SessionId, Label, 4>,
}

#[derive(Debug, Default)]
struct Memory {
    /// The watermark of each session: the highest sequence of its acquires and releases, and when
    /// the last of them arrived.
    seen: SmallMap<SessionId, (u64, ServerTime), 4>,
    /// Holds that were released by force.
    forced: Set<Name>,
    /// Holders that have upgraded while others waited.
    upgraded: Set<(SessionId, u64)>,
}

impl Reasons {
    /// Checks a step. `released` tells whether its operation was released before.
    pub(crate) fn step(
        &mut self,
        step: &Step<'_>,
        released: bool,
        model: Model,
        found: &mut Findings,
    ) {
        self.label(step, found);
        let memory = self.keys.or_insert_with(step.key, Memory::default);
        memory.forced(step);
        match (step.command, step.reply) {
            (Command::Acquire(request), Reply::Acquire(reply)) => {
                memory.stale(step, request.operation, reply, model, found);
            }
            // A server that lost data may have forgotten an upgrade.
            (Command::Convert(request), Reply::Convert(reply)) if model == Model::Within => {
                memory.upgrade(step, request, *reply, found);
            }
            _ => {}
        }
        if let (Some(operation), Some(reason)) = (step.operation(), reason(step.reply)) {
            memory.reason(step, operation, (reason, released), model, found);
        }
        memory.note(step);
    }

    /// Rule 2: a contention names the holder that expires first.
    fn label(&mut self, step: &Step<'_>, found: &mut Findings) {
        let Command::Acquire(request) = step.command else {
            return;
        };
        let session = request.operation.session;
        self.labels
            .or_insert_with(&session, || request.label.clone());
        let Reply::Acquire(AcquireReply::Contended(held)) = step.reply else {
            return;
        };
        let Some(end) = step.holders_after().map(|holder| holder.end).min() else {
            return;
        };
        let label = |holder: &HolderParts| self.labels.get(&holder.session);
        let mut first = step.holders_after().filter(|holder| holder.end == end);
        if !first.any(|holder| label(holder) == held.holder.as_ref()) {
            let text = format!(
                "{held:?} does not name the holder that expires first: {:?}",
                step.after
            );
            found.add("rule 2", text);
        }
    }
}

/// The end reason in a reply.
const fn reason(reply: &Reply) -> Option<EndReason> {
    match reply {
        Reply::Poll(PollReply::Gone(reason))
        | Reply::Renew(RenewReply::Lost(reason))
        | Reply::Release(ReleaseReply::NotHeld(reason))
        | Reply::Convert(ConvertReply::Lost(reason))
        | Reply::Note(NoteReply::Lost { reason, .. }) => Some(*reason),
        _ => None,
    }
}

/// Whether the operation's hold or waiter had expired before the step.
fn expired(step: &Step<'_>, operation: Operation) -> bool {
    let (session, sequence) = (operation.session, operation.sequence);
    let hold = holder_of(step.before, session, sequence).map(|holder| holder.end);
    let waiter = waiter_of(step.before, session, sequence).map(|waiter| waiter.end);
    hold.or(waiter).is_some_and(|end| end <= step.now)
}

impl Memory {
    /// Whether the operation is at or below the watermark, and the state must still have it.
    fn is_old(&self, operation: Operation, now: ServerTime) -> bool {
        let seen = self.seen.get(&operation.session);
        seen.is_some_and(|(highest, last)| {
            operation.sequence <= *highest && now < last.saturating_add(DELIVERY_WINDOW * 2)
        })
    }

    /// Rule 12: an acquire at or below the watermark has no effect, and no other acquire is stale.
    fn stale(
        &self,
        step: &Step<'_>,
        operation: Operation,
        reply: &AcquireReply,
        model: Model,
        found: &mut Findings,
    ) {
        let seen = self.seen.get(&operation.session);
        let above = seen.is_none_or(|(highest, _)| operation.sequence > *highest);
        if matches!(reply, AcquireReply::Refused(Refused::Stale)) && above {
            let text = format!("{operation:?} is refused as stale after {seen:?}");
            found.add("rule 12", text);
        }
        let acts = matches!(reply, AcquireReply::Acquired(_) | AcquireReply::Queued(_));
        let (session, sequence) = (operation.session, operation.sequence);
        let lived = holder_of(step.before, session, sequence).is_some()
            || waiter_of(step.before, session, sequence).is_some();
        if acts && !lived && model == Model::Within && self.is_old(operation, step.now) {
            let text = format!("{operation:?} took effect after {seen:?}");
            found.add("rule 12", text);
        }
    }

    /// A reason is true, and it is not `Unknown` if the state tells it.
    fn reason(
        &self,
        step: &Step<'_>,
        operation: Operation,
        (reason, released): (EndReason, bool),
        model: Model,
        found: &mut Findings,
    ) {
        let named = (operation.session, operation.sequence);
        let expired = expired(step, operation) && step.now < step.before.stored_end;
        let revoked = holder_of(step.after, named.0, named.1).is_some_and(|t| t.revoked);
        let last = self.seen.get(&named.0).is_some_and(|(s, _)| *s == named.1);
        let is = match reason {
            EndReason::Expired => expired,
            EndReason::Forced => revoked || self.forced.contains_key(&named),
            EndReason::Released => released && !expired,
            EndReason::Unknown if model == Model::Outside => true,
            EndReason::Unknown => {
                let remembered = last && self.is_old(operation, step.now);
                !(expired || revoked || released && remembered)
            }
        };
        if !is {
            let text = format!(
                "{} of {operation:?} reports {reason:?} (expired: {expired}, released: {released})",
                name(step.command)
            );
            found.add("reason", text);
        }
    }

    /// Rule 6: the sole holder may upgrade, but only once while others wait.
    fn upgrade(
        &mut self,
        step: &Step<'_>,
        request: &Convert,
        reply: ConvertReply,
        found: &mut Findings,
    ) {
        let operation = request.operation;
        let own = |facts| holder_of(facts, operation.session, operation.sequence);
        let Some(after) = own(step.after) else {
            return;
        };
        let name = (after.session, after.id);
        let others_wait = !step.after.waiters.is_empty();
        let again = others_wait && self.upgraded.contains_key(&name);
        match reply {
            ConvertReply::NotSoleHolder => {
                let alone = step.holders_after().count() == 1;
                let read_write = step.spec().is_some_and(|spec| spec.kind() == Kind::RwLock);
                if alone && read_write && !again {
                    let text = format!("the sole holder was refused: {:?}", step.after);
                    found.add("rule 6", text);
                }
            }
            ConvertReply::Converted { .. } if request.to == Mode::Exclusive => {
                let wrote = own(step.before).is_some_and(|before| {
                    let holds = before.holds.iter();
                    let mut own = holds.filter(|(s, _)| *s == operation.sequence);
                    own.any(|(_, mode)| *mode == Mode::Exclusive)
                });
                if again && !wrote {
                    let text = format!("upgraded twice while others wait: {after:?}");
                    found.add("rule 6", text);
                }
                if others_wait && !wrote {
                    self.upgraded.insert(name, ());
                }
            }
            _ => {}
        }
    }

    fn forced(&mut self, step: &Step<'_>) {
        let Command::ForceRelease(request) = step.command else {
            return;
        };
        let both = step.before.holders.iter().chain(&step.after.holders);
        for holder in both.filter(|holder| request.tokens.contains(&holder.token)) {
            let holds = holder.holds.iter();
            self.forced
                .extend(holds.map(|(s, _)| ((holder.session, *s), ())));
        }
    }

    fn note(&mut self, step: &Step<'_>) {
        let noted = match step.command {
            Command::Acquire(_) if step.settles() => step.operation(),
            Command::Release(request) => Some(request.operation),
            _ => None,
        };
        if let Some(operation) = noted {
            let seen = self
                .seen
                .or_insert_with(&operation.session, Default::default);
            *seen = (seen.0.max(operation.sequence), step.now);
        }
        if self.upgraded.is_empty() {
            return;
        }
        // A holder lives as long as one of its holds does.
        let goes_on = |before: &HolderParts| {
            find(step.after, before)
                .is_some_and(|after| before.holds.iter().any(|(s, _)| has(after, *s)))
        };
        let gone = step.before.holders.iter().filter(|t| !goes_on(t));
        for holder in gone {
            self.upgraded.remove(&(holder.session, holder.id));
        }
    }
}
